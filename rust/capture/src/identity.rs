//! Who this process is: host, process and rank, as the error file says it.

use std::fs;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use serde::Serialize;

use firstfault_handler::sys;

use crate::redact;

/// The facts of the `host`, `process` and `rank` objects of an error file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Identity {
    /// The machine.
    pub host: Host,
    /// The process.
    pub process: Process,
    /// Its place in the job; absent facts are absent keys.
    pub rank: Rank,
}

/// The machine that a process runs on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Host {
    /// What uname(2) calls it: no name lookup, ever.
    pub name: String,
    /// Changes with every boot; makes monotonic times comparable.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
    /// Stays over boots.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub machine_id: String,
}

/// The process itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Its ID.
    pub pid: i32,
    /// Its parent's ID.
    pub ppid: i32,
    /// When it started, nanoseconds since the Unix epoch, to a clock tick (10 ms).
    pub start_time_ns: u64,
    /// Its command line, secrets replaced.
    pub argv: Vec<String>,
    /// The running program.
    pub executable: String,
    /// The qualified name of the function that `record` decorates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<String>,
}

/// The place of a process in its job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Rank {
    /// Global rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Rank on its node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_rank: Option<u32>,
    /// Number of ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub world_size: Option<u32>,
    /// Rank of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_rank: Option<u32>,
    /// torchrun's `--role`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// torchrun's `--rdzv-id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// How often the worker group was restarted before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
}

impl Rank {
    /// Returns the place that torchrun gave this process, read from variables by this look-up.
    ///
    /// Source: torch/distributed/elastic/agent/server/local_elastic_agent.py
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let number = |name: &str| variable(name).and_then(|value| value.trim().parse().ok());
        let text = |name: &str| variable(name).filter(|value| !value.is_empty());
        Self {
            rank: number("RANK"),
            local_rank: number("LOCAL_RANK"),
            world_size: number("WORLD_SIZE"),
            group_rank: number("GROUP_RANK"),
            role: text("ROLE_NAME"),
            run_id: text("TORCHELASTIC_RUN_ID"),
            attempt: number("TORCHELASTIC_RESTART_COUNT"),
        }
    }
}

impl Identity {
    /// Returns the identity as the JSON object that an error file's section takes its three keys from.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers always become JSON")
    }

    /// Returns the identity of the calling process.
    ///
    /// What cannot be read is left empty: identity never fails.
    pub fn of_this_process(arguments: &[String], entrypoint: Option<&str>) -> Self {
        let read = |path: &str| {
            fs::read_to_string(path)
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        let host = nix::unistd::gethostname().unwrap_or_default();
        Self {
            host: Host {
                name: host.to_string_lossy().into_owned(),
                boot_id: read("/proc/sys/kernel/random/boot_id"),
                machine_id: read("/etc/machine-id"),
            },
            process: Process {
                pid: nix::unistd::getpid().as_raw(),
                ppid: nix::unistd::getppid().as_raw(),
                start_time_ns: start_time_ns(),
                argv: redact::command_line(arguments),
                executable: std::env::current_exe()
                    .map(|path| path.to_string_lossy().into_owned())
                    .unwrap_or_default(),
                entrypoint: entrypoint.map(str::to_owned),
            },
            rank: Rank::read(|name| std::env::var(name).ok()),
        }
    }
}

/// Returns when this process started, nanoseconds since the Unix epoch, at most a clock tick (10 ms) too early; 0 where
/// it cannot be told.
///
/// The kernel's own time of boot has whole seconds; the difference of two clocks now is exact.
pub(crate) fn start_time_ns() -> u64 {
    let Some(ticks) = start_ticks() else {
        return 0;
    };
    let boot_ns =
        sys::clock_ns(sys::CLOCK_REALTIME).saturating_sub(sys::clock_ns(sys::CLOCK_BOOTTIME));
    // USER_HZ is 100 on every Linux that runs PyTorch.
    boot_ns + ticks * 10_000_000
}

/// The process whose start was read, and that. A forked child inherits its parent's, and may inherit no lock.
static READ_BY: AtomicU32 = AtomicU32::new(0);
static STARTED: AtomicU64 = AtomicU64::new(0);

/// Returns the start of this process in clock ticks since boot, read once.
///
/// With the process ID it names one process among all of a boot. Source: proc_pid_stat(5), field 22.
pub(crate) fn start_ticks() -> Option<u64> {
    if READ_BY.load(Ordering::Acquire) != std::process::id() {
        let stat = fs::read("/proc/self/stat").ok()?;
        let text = String::from_utf8_lossy(&stat);
        // The second field, the program's name in parentheses, may hold anything.
        let (_, rest) = text.rsplit_once(')')?;
        let ticks = rest.split_ascii_whitespace().nth(19)?.parse().ok()?;
        STARTED.store(ticks, Ordering::Relaxed);
        READ_BY.store(std::process::id(), Ordering::Release);
    }
    Some(STARTED.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_read_from_torchruns_variables_and_nothing_else() {
        let rank = Rank::read(|name| match name {
            "RANK" => Some("3".to_owned()),
            "LOCAL_RANK" => Some("x".to_owned()),
            "TORCHELASTIC_RUN_ID" => Some("job".to_owned()),
            _ => None,
        });
        assert_eq!(
            rank,
            Rank {
                rank: Some(3),
                run_id: Some("job".to_owned()),
                ..Rank::default()
            }
        );
    }

    #[test]
    fn this_process_has_started_a_moment_ago() {
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("after 1970")
            .as_nanos();
        let start = u128::from(start_time_ns());
        // btime has whole seconds; a test process lives for less than an hour.
        assert!(
            start < now + 1_000_000_000 && now - 3_600_000_000_000 < start,
            "{start} {now}"
        );
    }
}
