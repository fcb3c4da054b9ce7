//! Probes of the machine and of the limits that a process inherits: no capture is needed for them.

use std::fs;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::statvfs::{FsFlags, statvfs};

type Probe = firstfault_format::probe::Probe<String>;

const MIB: u64 = 1024 * 1024;
/// What container runtimes give `/dev/shm` by default.
const SMALL_SHM: u64 = 64 * MIB;
/// Fewer descriptors are soon used up by loaders and their queues.
const FEW_FILES: u64 = 1024;
/// A smaller stack overflows where programs are used to one of 8 MiB.
const SMALL_STACK: u64 = MIB;

pub(super) fn probes() -> Vec<Probe> {
    vec![
        core_dumps(),
        open_files(),
        stack(),
        shared_memory(),
        seccomp(),
        ptrace(),
    ]
}

fn limit(resource: Resource) -> (u64, u64) {
    getrlimit(resource).unwrap_or((RLIM_INFINITY, RLIM_INFINITY))
}

/// Source: core(5)
fn core_dumps() -> Probe {
    const NAME: &str = "core dumps";
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let pattern = pattern.trim_end();
    if let Some(program) = pattern.strip_prefix('|') {
        let program = program.split(' ').next().unwrap_or_default();
        return Probe::ok(NAME, format!("handed to {program}"));
    }
    let (soft, hard) = limit(Resource::RLIMIT_CORE);
    match (soft, hard) {
        (0, 0) => Probe::note(
            NAME,
            "none: the hard limit of their size is 0",
            "raise it in limits.conf or in the container's settings to have one",
        ),
        (0, _) => Probe::note(
            NAME,
            "none: the limit of their size is 0",
            "ulimit -c unlimited in the job's script lets the kernel write one",
        ),
        _ if pattern.is_empty() => Probe::note(
            NAME,
            "none: kernel.core_pattern is empty",
            "sysctl kernel.core_pattern=core names one",
        ),
        (RLIM_INFINITY, _) => Probe::ok(NAME, format!("written to {pattern:?}")),
        _ => Probe::note(
            NAME,
            format!("written to {pattern:?}, cut at {} MiB", soft / MIB),
            "a debugger makes little of one that is cut: ulimit -c unlimited",
        ),
    }
}

fn open_files() -> Probe {
    const NAME: &str = "open files";
    let (soft, _) = limit(Resource::RLIMIT_NOFILE);
    // The directory itself is open while it is read.
    let used = fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1));
    let found = format!("{used} of at most {soft}");
    if soft < FEW_FILES {
        Probe::note(
            NAME,
            found,
            "data loaders and stores need many: ulimit -n 65536",
        )
    } else {
        Probe::ok(NAME, found)
    }
}

fn stack() -> Probe {
    const NAME: &str = "stack";
    match limit(Resource::RLIMIT_STACK).0 {
        RLIM_INFINITY => Probe::note(
            NAME,
            "unlimited",
            "an endless recursion eats all memory before it ends: ulimit -s 8192",
        ),
        size if size < SMALL_STACK => Probe::note(
            NAME,
            format!("at most {} KiB", size / 1024),
            "deep calls overflow it early: ulimit -s 8192",
        ),
        size => Probe::ok(NAME, format!("at most {} KiB", size / 1024)),
    }
}

fn shared_memory() -> Probe {
    const NAME: &str = "/dev/shm";
    let Ok(found) = statvfs("/dev/shm") else {
        return Probe::note(
            NAME,
            "not there",
            "DataLoader workers and NCCL need it: mount a tmpfs there",
        );
    };
    let size = found.blocks() * found.fragment_size();
    let free = found.blocks_available() * found.fragment_size();
    let text = format!("{} MiB, {} MiB free", size / MIB, free / MIB);
    if found.flags().contains(FsFlags::ST_RDONLY) {
        Probe::note(NAME, "read-only", "DataLoader workers and NCCL write there")
    } else if size <= SMALL_SHM {
        Probe::note(
            NAME,
            text,
            "when it is full, workers die by SIGBUS: docker --shm-size, or an emptyDir of medium Memory",
        )
    } else if free < SMALL_SHM {
        Probe::note(
            NAME,
            text,
            "when it is full, workers die by SIGBUS: remove what dead jobs left there",
        )
    } else {
        Probe::ok(NAME, text)
    }
}

/// Source: proc(5), /proc/[pid]/status
fn seccomp() -> Probe {
    const NAME: &str = "seccomp";
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mode = status
        .lines()
        .find_map(|line| line.strip_prefix("Seccomp:"))
        .map(str::trim);
    match mode {
        Some("0") => Probe::ok(NAME, "no filter"),
        Some("2") => Probe::ok(
            NAME,
            "a filter is in force; what it refuses shows in other probes",
        ),
        Some(mode) => Probe::note(
            NAME,
            format!("mode {mode}"),
            "most system calls are refused",
        ),
        None => Probe::note(
            NAME,
            "unknown: /proc/self/status does not say",
            "mount /proc in the container",
        ),
    }
}

/// Source: Documentation/admin-guide/LSM/Yama.rst
fn ptrace() -> Probe {
    const NAME: &str = "ptrace";
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let attaches = "firstfault does without; to attach gdb or py-spy to a rank that hangs, sysctl kernel.yama.ptrace_scope=0";
    match scope.trim() {
        "" | "0" => Probe::ok(NAME, "debuggers of the same user may attach"),
        "1" => Probe::note(NAME, "only a parent may attach (Yama)", attaches),
        "2" => Probe::note(NAME, "only root may attach (Yama)", attaches),
        _ => Probe::note(
            NAME,
            "nobody may attach (Yama)",
            "until the next boot, that is so",
        ),
    }
}
