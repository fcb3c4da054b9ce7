//! Facts from a launcher's log: how each worker ended, which it ended itself, and whether it was ended.
//!
//! Source: torch/distributed/elastic/multiprocessing/api.py and errors/__init__.py (`ChildFailedError.format_msg`)

use std::path::{Path, PathBuf};

/// What one launcher's log says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AgentLog {
    /// The log.
    pub path: PathBuf,
    /// The entries of torchrun's last summary.
    pub entries: Vec<Entry>,
    /// The worker that torchrun named when each attempt failed, in order of attempts.
    pub failed: Vec<Failed>,
    /// The workers that torchrun sent a signal, by process ID.
    pub closed: Vec<u32>,
    /// The workers that did not end by that and were killed, by process ID.
    pub forced: Vec<u32>,
    /// The signal that ended the launcher itself.
    pub signalled: Option<Signalled>,
}

/// One worker in torchrun's summary.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// Its line in the log, from 1.
    pub line: usize,
    /// The global rank.
    pub rank: u32,
    /// The rank on its host.
    pub local_rank: u32,
    /// How it ended: an exit code, or minus a signal's number.
    pub status: Option<i64>,
    /// Its process ID.
    pub pid: Option<u32>,
    /// Its host, as the launcher's resolver calls it.
    pub host: String,
    /// When, in seconds, in the launcher's own time zone.
    pub local_time: Option<i64>,
    /// Its error file; `None` for `<N/A>`.
    pub error_file: Option<PathBuf>,
}

/// A line `failed (exitcode: -11) local_rank: 1 (pid: 6980)`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failed {
    /// Its line in the log, from 1.
    pub line: usize,
    /// How the worker ended: an exit code, or minus a signal's number.
    pub status: i64,
    /// The rank on its host.
    pub local_rank: u32,
    /// Its process ID.
    pub pid: Option<u32>,
}

/// The end of a launcher by a signal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Signalled {
    /// Its line in the log, from 1.
    pub line: usize,
    /// The line, cut to 200 bytes.
    pub text: String,
}

impl AgentLog {
    /// Whether the launcher asked a process to end, and whether it killed it; `None` where nothing tells.
    ///
    /// A launcher that was ended itself shares the signal with all workers of its group.
    pub(crate) fn ended(&self, pid: Option<u32>) -> (Option<bool>, Option<bool>) {
        let Some(pid) = pid else { return (None, None) };
        let told = !(self.closed.is_empty() && self.failed.is_empty()) && self.signalled.is_none();
        let asked = self.closed.contains(&pid) || self.forced.contains(&pid);
        let forced = self.forced.contains(&pid);
        (
            (told || asked).then_some(asked),
            (told || forced).then_some(forced),
        )
    }
}

/// Returns what a launcher's log says, or `None` when the text is none.
pub fn agent(path: &Path, text: &str) -> Option<AgentLog> {
    let mut log = AgentLog {
        path: path.to_owned(),
        ..AgentLog::default()
    };
    let mut entry = Entry::default();
    let mut in_entry = false;
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        // Every line of interest holds one of these; most logs are millions of others.
        let Some(colon) = memchr::memchr(b':', line.as_bytes()) else {
            continue;
        };
        let key = line[..colon].trim();
        let value = line[colon + 1..].trim();
        match key {
            // A summary without whole entries is a worker's own output about something else.
            "Failures" | "Root Cause (first observed failure)" if value.is_empty() => {
                if key == "Failures" {
                    log.entries.clear();
                }
                in_entry = true;
            }
            "time" if in_entry => {
                entry = Entry {
                    local_time: local_time(value),
                    ..Entry::default()
                }
            }
            "host" if in_entry => value.clone_into(&mut entry.host),
            "rank" if in_entry => {
                if let Some((rank, local_rank)) = ranks(value) {
                    (entry.rank, entry.local_rank, entry.line) = (rank, local_rank, line_number);
                }
            }
            "exitcode" if in_entry => (entry.status, entry.pid) = status(value),
            "error_file" if in_entry => {
                entry.error_file = (value != "<N/A>").then(|| PathBuf::from(value));
                if entry.line > 0 {
                    log.entries.push(std::mem::take(&mut entry));
                }
            }
            _ => other(&mut log, line, line_number),
        }
    }
    let empty = log.entries.is_empty()
        && log.failed.is_empty()
        && log.closed.is_empty()
        && log.signalled.is_none();
    (!empty).then_some(log)
}

fn other(log: &mut AgentLog, line: &str, line_number: usize) {
    if let Some((_, rest)) = line.split_once("failed (exitcode: ") {
        let found = || {
            let (status, rest) = rest.split_once(") local_rank: ")?;
            let (local_rank, rest) = rest.split_once(" (pid: ")?;
            let pid = rest.split_once(')')?.0;
            Some(Failed {
                line: line_number,
                status: status.parse().ok()?,
                local_rank: local_rank.parse().ok()?,
                pid: pid.parse().ok(),
            })
        };
        log.failed.extend(found());
    } else if let Some((_, rest)) = line.split_once("Sending process ") {
        log.closed.extend(
            rest.split_once(" closing signal ")
                .and_then(|(pid, _)| pid.parse::<u32>().ok()),
        );
    } else if let Some((_, rest)) = line.split_once("Unable to shutdown process ") {
        log.forced.extend(
            rest.split_once(" via ")
                .and_then(|(pid, _)| pid.parse::<u32>().ok()),
        );
    } else if line.contains("death signal, shutting down workers")
        || line.contains("SignalException: Process ")
    {
        log.signalled.get_or_insert_with(|| Signalled {
            line: line_number,
            text: crate::parse::begin(line, 200).to_owned(),
        });
    }
}

/// Reads `3 (local_rank: 1)`.
fn ranks(value: &str) -> Option<(u32, u32)> {
    let (rank, rest) = value.split_once(" (local_rank: ")?;
    Some((rank.parse().ok()?, rest.split_once(')')?.0.parse().ok()?))
}

/// Reads `-11 (pid: 6980)  (SIGSEGV)`.
fn status(value: &str) -> (Option<i64>, Option<u32>) {
    let (status, rest) = value.split_once(' ').unwrap_or((value, ""));
    let pid = rest
        .trim_start()
        .strip_prefix("(pid: ")
        .and_then(|rest| rest.split_once(')'))
        .and_then(|(pid, _)| pid.parse().ok());
    (status.parse().ok(), pid)
}

/// Reads `2026-11-29_16:33:26` as seconds since 1970-01-01 00:00:00 of the same time zone.
fn local_time(value: &str) -> Option<i64> {
    let (date, time) = value.split_once('_')?;
    let numbers = |text: &str, by: char| -> Option<[i64; 3]> {
        let all: Vec<i64> = text
            .split(by)
            .map(|part| part.parse().ok())
            .collect::<Option<_>>()?;
        all.try_into().ok()
    };
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(time, ':')?;
    if !(1970..10_000).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days of a civil date, the year taken to begin in March. Source: Hinnant, chrono-compatible date algorithms.
    let (year, month) = if month < 3 {
        (year - 1, month + 9)
    } else {
        (year, month - 3)
    };
    let days =
        365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some(days * 86_400 + hour * 3_600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "W1129 16:33:27.4 18241 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 18810 closing signal SIGTERM\n\
        E1129 16:33:27.4 18241 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -11) local_rank: 0 (pid: 18808) of binary: /opt/venv/bin/python3\n\
        train.py FAILED\nFailures:\n[1]:\n  time      : 2026-11-29_16:33:26\n  host      : node-7\n  rank      : 9 (local_rank: 1)\n  \
        exitcode  : -15 (pid: 18810)  (SIGTERM)\n  error_file: /j/run_x/attempt_0/1/error.json\n  traceback : Traceback (most recent call last):\n\
        Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-29_16:33:26\n  host      : node-7\n  rank      : 8 (local_rank: 0)\n  \
        exitcode  : -11 (pid: 18808)  (SIGSEGV)\n  error_file: <N/A>\n  traceback : Signal 11 (SIGSEGV) received by PID 18808\n";

    #[test]
    fn a_summary_is_read_whole() {
        let log = agent(Path::new("a.err"), LOG).unwrap();
        assert_eq!(log.closed, [18810]);
        assert_eq!(
            (
                log.failed[0].status,
                log.failed[0].local_rank,
                log.failed[0].pid
            ),
            (-11, 0, Some(18808))
        );
        let [victim, cause] = &log.entries[..] else {
            panic!("{:?}", log.entries)
        };
        assert_eq!(
            (victim.rank, victim.local_rank, victim.status, victim.pid),
            (9, 1, Some(-15), Some(18810))
        );
        assert_eq!(
            victim.error_file.as_deref(),
            Some(Path::new("/j/run_x/attempt_0/1/error.json"))
        );
        assert_eq!(
            (cause.rank, cause.status, cause.host.as_str(), cause.line),
            (8, Some(-11), "node-7", 16)
        );
        assert_eq!(
            (cause.error_file.as_ref(), cause.local_time),
            (None, Some(1_795_970_006))
        );
    }

    #[test]
    fn a_launcher_that_was_ended_says_so() {
        let log = agent(
            Path::new("a"),
            "x\nW1 api.py:1] Received Signals.SIGTERM death signal, shutting down workers\n",
        )
        .unwrap();
        assert_eq!(log.signalled.unwrap().line, 2);
    }

    #[test]
    fn other_text_is_no_log() {
        assert_eq!(
            agent(
                Path::new("a"),
                "epoch: 1\n  rank      : 3 (local_rank: 1)\ntime : 3\n"
            ),
            None
        );
    }
}
