//! Probes of the machine and of the limits that a process inherits: no capture is needed for them.

use std::fs;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::statvfs::{FsFlags, Statvfs, statvfs};

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
        shared_memory(statvfs("/dev/shm").ok().map(|found| Room::new(&found))),
        seccomp(&read("/proc/self/status")),
        ptrace(&read("/proc/sys/kernel/yama/ptrace_scope")),
    ]
}

/// Returns a file's text, none where there is no such file.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn limit(resource: Resource) -> (u64, u64) {
    getrlimit(resource).unwrap_or((RLIM_INFINITY, RLIM_INFINITY))
}

/// Source: core(5)
fn core_dumps() -> Probe {
    const NAME: &str = "core dumps";
    let pattern = read("/proc/sys/kernel/core_pattern");
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

/// A file system's size and free room, bytes.
struct Room {
    size: u64,
    free: u64,
    is_read_only: bool,
}

impl Room {
    fn new(found: &Statvfs) -> Self {
        Self {
            size: found.blocks() * found.fragment_size(),
            free: found.blocks_available() * found.fragment_size(),
            is_read_only: found.flags().contains(FsFlags::ST_RDONLY),
        }
    }
}

fn shared_memory(found: Option<Room>) -> Probe {
    const NAME: &str = "/dev/shm";
    let Some(found) = found else {
        return Probe::note(
            NAME,
            "not there",
            "DataLoader workers and NCCL need it: mount a tmpfs there",
        );
    };
    let Room { size, free, .. } = found;
    let text = format!("{} MiB, {} MiB free", size / MIB, free / MIB);
    if found.is_read_only {
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
fn seccomp(status: &str) -> Probe {
    const NAME: &str = "seccomp";
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
fn ptrace(scope: &str) -> Probe {
    const NAME: &str = "ptrace";
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

#[cfg(test)]
mod tests {
    use super::*;
    use firstfault_format::probe::Status;

    fn said(probe: Probe) -> (bool, String) {
        assert_eq!(probe.status == Status::Ok, probe.advice.is_empty());
        (probe.status == Status::Ok, probe.found)
    }

    #[test]
    fn who_may_attach_is_what_yama_says() {
        let anybody = "debuggers of the same user may attach";
        for (scope, is_ok, found) in [
            ("", true, anybody),
            ("0\n", true, anybody),
            ("1\n", false, "only a parent may attach (Yama)"),
            ("2\n", false, "only root may attach (Yama)"),
            ("3\n", false, "nobody may attach (Yama)"),
        ] {
            assert_eq!(said(ptrace(scope)), (is_ok, found.to_owned()), "{scope:?}");
        }
    }

    #[test]
    fn what_seccomp_does_is_in_the_status() {
        let unknown = "unknown: /proc/self/status does not say";
        for (status, is_ok, found) in [
            ("", false, unknown),
            ("Name:\tpython3\nNoNewPrivs:\t0\n", false, unknown),
            ("NoNewPrivs:\t0\nSeccomp:\t0\n", true, "no filter"),
            ("Seccomp:\t1\nSeccomp_filters:\t0\n", false, "mode 1"),
            (
                "Seccomp:\t2\nSeccomp_filters:\t1\n",
                true,
                "a filter is in force; what it refuses shows in other probes",
            ),
        ] {
            assert_eq!(said(seccomp(status)), (is_ok, found.to_owned()));
        }
    }

    #[test]
    fn shared_memory_is_large_enough_or_not() {
        let room = |size, free| {
            Some(Room {
                size: size * MIB,
                free: free * MIB,
                is_read_only: false,
            })
        };
        for (found, is_ok, text) in [
            (None, false, "not there"),
            (room(64, 64), false, "64 MiB, 64 MiB free"),
            (room(65, 64), true, "65 MiB, 64 MiB free"),
            (room(128, 63), false, "128 MiB, 63 MiB free"),
        ] {
            assert_eq!(said(shared_memory(found)), (is_ok, text.to_owned()));
        }
        let read_only = room(128, 128).map(|room| Room {
            is_read_only: true,
            ..room
        });
        assert_eq!(
            said(shared_memory(read_only)),
            (false, "read-only".to_owned())
        );
    }
}
