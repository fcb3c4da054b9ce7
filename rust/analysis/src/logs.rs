//! Facts from a launcher's log: how each worker ended, which it ended itself, and whether it was ended.
//!
//! Source: torch/distributed/elastic/multiprocessing/api.py and errors/__init__.py (`ChildFailedError.format_msg`)

mod workers;
mod writers;

use crate::console::{are_tasks, task};
use crate::date::local_seconds;
use crate::dress::{Plain, Whose};
use crate::rendezvous::{Round, rounds};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use writers::Writers;

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
    /// Whether it says that its workers ended well.
    pub succeeded: bool,
    /// Its host, where it has no summary, and says that the rendezvous is gone.
    pub node: Option<String>,
    /// The rounds of rendezvous that it took part in.
    pub rounds: Vec<Round>,
    /// Whether no other launcher's words can be among these.
    pub is_alone: bool,
    /// The task as which srun runs the launcher, where it labels the lines of each.
    pub task: Option<u32>,
    /// The number of the process as which an orchestrator names the launcher, where it labels the lines of each.
    pub process: Option<u32>,
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
    /// The traceback that torchrun shows of it; empty where it shows another text.
    pub traceback: String,
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
    /// Returns the same with other numbers of lines.
    pub(crate) fn renumbered(mut self, number: impl Fn(usize) -> usize) -> Self {
        let entries = self.entries.iter_mut().map(|entry| &mut entry.line);
        let failed = self.failed.iter_mut().map(|failed| &mut failed.line);
        let signalled = self
            .signalled
            .iter_mut()
            .map(|signalled| &mut signalled.line);
        for line in entries.chain(failed).chain(signalled) {
            *line = number(*line);
        }
        self
    }
}

/// Returns what the launchers say whose log this is, in the order in which they first spoke.
///
/// Several nodes may write into one log: their lines are told apart by the numbers that srun puts before them. Without
/// these by the launchers' process IDs, and a summary belongs to the launcher that spoke of the same workers.
pub fn agents(path: &Path, text: &str) -> Vec<AgentLog> {
    let all = speakers(path, text);
    if all.is_empty() || !are_tasks(text) {
        return all;
    }
    let told = |_, line: &str| task(line).map(|(task, _)| task);
    let of_task = |(task, log)| AgentLog { task, ..log };
    apart(path, text, told).map(of_task).collect()
}

/// Returns the same of a log in which an orchestrator may name the process of each line: one for each launcher's pod.
pub(crate) fn agents_of(path: &Path, plain: &Plain<'_>) -> Vec<AgentLog> {
    let text = &*plain.text;
    let all = agents(path, text);
    if all.is_empty() || plain.names.len() < 2 {
        return all;
    }
    let told = |index, _: &str| match plain.whose(index) {
        Some(Whose::Process(process)) => Some(process),
        _ => None,
    };
    let of_process = |(process, log)| AgentLog { process, ..log };
    let mut found: Vec<AgentLog> = apart(path, text, told).map(of_process).collect();
    // As they are numbered: `worker-2` before `worker-10`.
    let name = |log: &AgentLog| {
        let name = log.process.and_then(|at| plain.names.get(at as usize));
        name.map(|name| (name.len(), name.clone()))
    };
    found.sort_by_cached_key(name);
    found
}

/// Returns what launchers say in the lines of each speaker, and the number of the speaker, where one is told.
fn apart(
    path: &Path,
    text: &str,
    told: impl Fn(usize, &str) -> Option<u32>,
) -> impl Iterator<Item = (Option<u32>, AgentLog)> {
    let mut speeches: BTreeMap<Option<u32>, (String, Vec<usize>)> = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        let (lines, numbers) = speeches.entry(told(index, line)).or_default();
        lines.push_str(line);
        lines.push('\n');
        numbers.push(index + 1);
    }
    let path = path.to_owned();
    speeches
        .into_iter()
        .flat_map(move |(speaker, (lines, numbers))| {
            let number = move |line: usize| numbers.get(line - 1).copied().unwrap_or(0);
            let logs = speakers(&path, &lines).into_iter();
            logs.map(move |log| (speaker, log.renumbered(&number)))
        })
}

/// Returns what is said of launchers in lines that nothing but process IDs tells apart.
fn speakers(path: &Path, text: &str) -> Vec<AgentLog> {
    let mut writers = Writers::new(path);
    let mut summaries: Vec<Vec<Entry>> = Vec::new();
    let mut entry = Entry::default();
    // How many bytes stand before each line of the traceback that is being read.
    let mut traceback: Option<usize> = None;
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        let last = summaries.last_mut().and_then(|entries| entries.last_mut());
        if let (Some(margin), Some(entry)) = (traceback, last) {
            let rest = line.get(margin..).unwrap_or("");
            // The next entry, or a rule below the last.
            if !rest.starts_with("  ") {
                traceback = None;
            } else if entry.traceback.len() < MAX_TRACEBACK {
                entry.traceback.push_str(&rest[2..]);
                entry.traceback.push('\n');
                continue;
            } else {
                continue;
            }
        }
        // Every line of interest holds one of these; most logs are millions of others.
        if memchr::memchr(b':', line.as_bytes()).is_none() {
            continue;
        }
        let Some((margin, key, value)) = keyed(line, !summaries.is_empty()) else {
            writers.add_line(line, line_number);
            continue;
        };
        match key {
            FAILURES => summaries.push(Vec::new()),
            ROOT_CAUSE => {
                if summaries.is_empty() {
                    summaries.push(Vec::new());
                }
            }
            "time" => {
                entry = Entry {
                    local_time: local_seconds(value),
                    ..Entry::default()
                }
            }
            "host" => value.clone_into(&mut entry.host),
            "rank" => {
                if let Some((rank, local_rank)) = ranks(value) {
                    (entry.rank, entry.local_rank, entry.line) = (rank, local_rank, line_number);
                }
            }
            "exitcode" => (entry.status, entry.pid) = status(value),
            "error_file" => {
                entry.error_file = (value != "<N/A>").then(|| PathBuf::from(value));
                if let Some(summary) = summaries.last_mut().filter(|_| entry.line > 0) {
                    summary.push(std::mem::take(&mut entry));
                }
            }
            _ => {
                let last = summaries.last_mut().and_then(|entries| entries.last_mut());
                if let Some(entry) = last
                    && value.starts_with("Traceback (most recent call last)")
                {
                    entry.traceback = format!("{value}\n");
                    traceback = Some(margin);
                }
            }
        }
    }
    // A summary without whole entries is a worker's own output about something else.
    for summary in summaries.into_iter().filter(|summary| !summary.is_empty()) {
        writers.add_summary(summary);
    }
    let mut logs = writers.into_logs();
    // Of several launchers' rounds in one log nothing tells whose is whose.
    if let [log] = &mut logs[..] {
        log.rounds = rounds(text);
        log.is_alone = true;
    }
    logs
}

const FAILURES: &str = "Failures";
pub(crate) const ROOT_CAUSE: &str = "Root Cause (first observed failure)";

/// The fields of an entry, in torchrun's own form.
const KEYS: &[&str] = &[
    "time",
    "host",
    "rank",
    "exitcode",
    "error_file",
    "traceback",
];

/// At most so many bytes of a traceback in a summary are kept.
const MAX_TRACEBACK: usize = 64 << 10;

/// Returns what stands before a line of a summary, in bytes, its key and its value.
///
/// srun, docker and kubectl put a label or a time before each line.
fn keyed(line: &str, in_entry: bool) -> Option<(usize, &str, &str)> {
    let line = line.trim_end();
    for title in [FAILURES, ROOT_CAUSE] {
        let before = line
            .strip_suffix(':')
            .and_then(|line| line.strip_suffix(title));
        if let Some(before) = before.filter(|before| is_label(before)) {
            return Some((before.len(), title, ""));
        }
    }
    if !in_entry {
        return None;
    }
    KEYS.iter().find_map(|key| {
        let key_and_colon = format!("{key:<10}:");
        let at = line.find(&key_and_colon)?;
        let margin = line[..at]
            .strip_suffix("  ")
            .filter(|before| is_label(before))?
            .len();
        Some((margin, *key, line[at + key_and_colon.len()..].trim()))
    })
}

fn is_label(text: &str) -> bool {
    text.len() <= 120 && (text.is_empty() || text.ends_with([' ', '\t', ':', ']', '|', '>']))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(path: &Path, text: &str) -> AgentLog {
        let [log] = &agents(path, text)[..] else {
            panic!("not one launcher");
        };
        log.clone()
    }

    const LOG: &str = "W1129 16:33:27.4 18241 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 18810 closing signal SIGTERM\n\
        E1129 16:33:27.4 18241 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -11) local_rank: 0 (pid: 18808) of binary: /opt/venv/bin/python3\n\
        train.py FAILED\nFailures:\n[1]:\n  time      : 2026-11-29_16:33:26\n  host      : node-7\n  rank      : 9 (local_rank: 1)\n  \
        exitcode  : -15 (pid: 18810)  (SIGTERM)\n  error_file: /j/run_x/attempt_0/1/error.json\n  traceback : Traceback (most recent call last):\n\
        Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-29_16:33:26\n  host      : node-7\n  rank      : 8 (local_rank: 0)\n  \
        exitcode  : -11 (pid: 18808)  (SIGSEGV)\n  error_file: <N/A>\n  traceback : Signal 11 (SIGSEGV) received by PID 18808\n";

    #[test]
    fn a_summary_is_read_whole() {
        let log = agent(Path::new("a.err"), LOG);
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
    fn what_stands_before_each_line_does_not_matter() {
        let bare = agent(Path::new("a"), LOG);
        assert!(bare.entries[0].traceback.starts_with("Traceback"));
        for label in [
            "2026-11-29T20:01:41.461000000Z ",
            "[node0] ",
            "0: ",
            "pod/a-0 trainer | ",
            "2026-11-29 20:01:41,461 x: ",
        ] {
            let text: String = LOG.lines().map(|line| format!("{label}{line}\n")).collect();
            let mut found = agent(Path::new("a"), &text);
            let task = found.task.take();
            assert_eq!(
                task,
                label.strip_suffix(": ").and_then(|it| it.parse().ok())
            );
            assert_eq!(found, bare, "{label}");
        }
    }

    #[test]
    fn a_summary_shows_the_traceback_of_each() {
        let shown = "Traceback (most recent call last):\n    File \"t.py\", line 1, in main\n  OSError: [Errno 28] x\n  \n  second\n";
        let text = LOG.replace("Traceback (most recent call last):\n", shown);
        let log = agent(Path::new("a"), &text);
        assert_eq!(log.entries[0].traceback, shown.replace("\n  ", "\n"));
        assert_eq!(
            (log.entries[1].rank, log.entries[1].traceback.as_str()),
            (8, "")
        );
    }

    #[test]
    fn a_launcher_that_was_ended_says_so() {
        let log = agent(
            Path::new("a"),
            "x\nW1 api.py:1] Received Signals.SIGTERM death signal, shutting down workers\n",
        );
        assert_eq!(log.signalled.unwrap().line, 2);
    }

    #[test]
    fn other_text_is_no_log() {
        assert_eq!(
            agents(
                Path::new("a"),
                "epoch: 1\n  rank      : 3 (local_rank: 1)\ntime : 3\n"
            ),
            []
        );
    }

    #[test]
    fn launchers_of_several_nodes_in_one_log_are_told_apart() {
        let other = LOG
            .replace("18241", "777")
            .replace("1880", "990")
            .replace("18810", "9910")
            .replace("node-7", "node-8")
            .replace("rank      : 9", "rank      : 1")
            .replace("rank      : 8", "rank      : 0");
        let lines = |text: &str, range: std::ops::Range<usize>| -> String {
            text.lines()
                .skip(range.start)
                .take(range.len())
                .map(|line| format!("{line}\n"))
                .collect()
        };
        // Their lines in turns, then one summary after the other.
        let text = lines(&other, 0..1)
            + &lines(LOG, 0..1)
            + &lines(&other, 1..2)
            + &lines(LOG, 1..40)
            + &lines(&other, 2..40);
        let told: Vec<_> = agents(Path::new("a"), &text)
            .iter()
            .map(|log| {
                (
                    log.entries
                        .iter()
                        .map(|entry| entry.rank)
                        .collect::<Vec<_>>(),
                    log.failed[0].pid,
                )
            })
            .collect();
        assert_eq!(told, [(vec![1, 0], Some(9908)), (vec![9, 8], Some(18808))]);
    }
}
