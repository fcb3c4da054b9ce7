//! Whose words are whose where several launchers write into one log: by their process IDs, and by those of workers.

use super::{AgentLog, Entry, Failed, Signalled};
use crate::parse::begin;
use aho_corasick::{AhoCorasick, MatchKind};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// At most so many attempts of one launcher are told apart.
const MAX_ATTEMPTS: usize = 1000;

/// Local ranks from here on are no launcher's.
const MAX_WORKERS: u32 = 4096;

/// What each launcher of one log says.
pub(super) struct Writers {
    path: PathBuf,
    /// In the order in which they first spoke.
    logs: Vec<AgentLog>,
    /// The hosts whose launchers say that the rendezvous is gone.
    nodes: BTreeSet<String>,
    /// The launchers by their own process IDs.
    by_pid: HashMap<u32, usize>,
    /// The launchers that spoke of a worker, by its process ID.
    by_worker: HashMap<u32, Vec<usize>>,
}

impl Writers {
    pub(super) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            logs: Vec::new(),
            nodes: BTreeSet::new(),
            by_pid: HashMap::new(),
            by_worker: HashMap::new(),
        }
    }

    /// Reads a line of a launcher's own, and gives it to the launcher that wrote it.
    pub(super) fn add_line(&mut self, line: &str, line_number: usize) {
        let mut said = said(line, line_number);
        self.nodes.extend(said.node.take());
        if said == AgentLog::default() {
            return;
        }
        let pid = launcher(line);
        // A line without a number is that of the launcher that spoke last.
        let whose = match pid {
            Some(pid) => self.by_pid.get(&pid).copied(),
            None => self.logs.len().checked_sub(1),
        };
        // In containers all launchers have one number.
        let whose = whose.filter(|at| !said.is_of_another(&self.logs[*at]));
        let whose = whose.unwrap_or_else(|| self.add(AgentLog::default()));
        if let Some(pid) = pid {
            self.by_pid.insert(pid, whose);
        }
        self.note_workers(whose, &said);
        let log = &mut self.logs[whose];
        if log.failed.len() < MAX_ATTEMPTS {
            log.failed.append(&mut said.failed);
        }
        // In containers the workers of all launchers have the same few numbers.
        said.closed.retain(|pid| !log.closed.contains(pid));
        said.forced.retain(|pid| !log.forced.contains(pid));
        log.closed.append(&mut said.closed);
        log.forced.append(&mut said.forced);
        log.succeeded |= said.succeeded;
        log.signalled = log.signalled.take().or(said.signalled);
    }

    /// Gives a summary to the launcher that spoke of its workers, else to one of its own.
    pub(super) fn add_summary(&mut self, entries: Vec<Entry>) {
        let Some(whose) = self.whose(&entries) else {
            self.add(AgentLog {
                entries,
                ..AgentLog::default()
            });
            return;
        };
        let known = &mut self.logs[whose];
        if !is_anothers(&known.entries, &entries) {
            // Of one launcher the last: it has one for each try of the job.
            known.entries = entries;
            return;
        }
        // In containers all launchers are process 1: the workers tell them apart.
        let own: Vec<u32> = entries.iter().filter_map(|entry| entry.pid).collect();
        // A worker fails once: what has its number and fails again is of another launcher, and a third of one more.
        let mut times: HashMap<(u32, u32, i64), usize> = HashMap::new();
        let is_its = |failed: &mut Failed| {
            let Some(pid) = failed.pid else {
                return false;
            };
            let key = (pid, failed.local_rank, failed.status);
            let times = times.entry(key).or_default();
            *times += 1;
            let is_others = failed.is_among(&entries) && !failed.is_among(&known.entries);
            *times == if is_others { 1 } else { 2 }
        };
        let failed: Vec<Failed> = known.failed.extract_if(.., is_its).collect();
        // A worker of the other may have the same number.
        let asked = |pids: &[u32]| {
            let pids = pids.iter().copied();
            pids.filter(|pid| own.contains(pid)).collect()
        };
        let log = AgentLog {
            failed,
            closed: asked(&known.closed),
            forced: asked(&known.forced),
            entries,
            ..AgentLog::default()
        };
        self.add(log);
    }

    /// Returns what each launcher says.
    ///
    /// What failed after the last that a launcher sums up is of another, whose summary is not here.
    pub(super) fn into_logs(mut self) -> Vec<AgentLog> {
        for at in 0..self.logs.len() {
            let log = &mut self.logs[at];
            let summed: HashSet<u32> = log.entries.iter().filter_map(|entry| entry.pid).collect();
            let is_summed = |failed: &Failed| failed.pid.is_some_and(|pid| summed.contains(&pid));
            // What ended otherwise than a worker of its number that is summed up is another's as well.
            let is_others =
                |failed: &mut Failed| is_summed(failed) && !failed.is_among(&log.entries);
            let others: Vec<Failed> = log.failed.extract_if(.., is_others).collect();
            for failed in others {
                self.add(AgentLog {
                    failed: vec![failed],
                    ..AgentLog::default()
                });
            }
            let log = &mut self.logs[at];
            if let Some(last) = log.failed.iter().rposition(is_summed)
                && last + 1 < log.failed.len()
            {
                let failed = log.failed.split_off(last + 1);
                self.add(AgentLog {
                    failed,
                    ..AgentLog::default()
                });
            }
        }
        self.tell_node();
        self.logs
    }

    /// Gives the only launcher that has neither a summary nor a failed worker the only host that no summary is of.
    fn tell_node(&mut self) {
        let entries = self.logs.iter().flat_map(|log| &log.entries);
        let summed: HashSet<&str> = entries.map(|entry| entry.host.as_str()).collect();
        let mut nodes = self.nodes.iter();
        let node = nodes.find(|node| !summed.contains(node.as_str()));
        let is_only = nodes.all(|node| summed.contains(node.as_str()));
        let node = node.filter(|_| is_only).cloned();
        let is_bare = |log: &&mut AgentLog| log.entries.is_empty() && log.failed.is_empty();
        let mut bare = self
            .logs
            .iter_mut()
            .filter(|log| is_bare(log) && !log.closed.is_empty());
        if let (Some(node), Some(log), None) = (node, bare.next(), bare.next()) {
            log.node = Some(node);
        }
    }

    /// Adds a launcher; returns its index.
    fn add(&mut self, log: AgentLog) -> usize {
        let index = self.logs.len();
        self.note_workers(index, &log);
        let path = self.path.clone();
        self.logs.push(AgentLog { path, ..log });
        index
    }

    /// Remembers that a launcher spoke of its workers.
    fn note_workers(&mut self, launcher: usize, said: &AgentLog) {
        let failed = said.failed.iter().filter_map(|failed| failed.pid);
        for pid in failed.chain(said.closed.iter().copied()) {
            let launchers = self.by_worker.entry(pid).or_default();
            if launchers.last() != Some(&launcher) {
                launchers.push(launcher);
            }
        }
    }

    /// Returns the first launcher that spoke of one of a summary's workers; that of all, where there is only one.
    fn whose(&self, summary: &[Entry]) -> Option<usize> {
        let pids = || summary.iter().filter_map(|entry| entry.pid);
        // What was said of a worker may have been given to another since.
        let still = |pid: u32| {
            let spoke = move |&at: &usize| {
                let log = &self.logs[at];
                log.failed.iter().any(|failed| failed.pid == Some(pid)) || log.closed.contains(&pid)
            };
            let launchers = self.by_worker.get(&pid).into_iter().flatten();
            launchers.copied().filter(spoke)
        };
        // Of several the one that saw such a worker end so.
        let saw = |at: &usize| {
            let mut failed = self.logs[*at].failed.iter();
            failed.any(|failed| failed.is_among(summary))
        };
        let alone = (self.logs.len() == 1).then_some(0);
        let saw = pids().flat_map(still).filter(saw).min();
        saw.or_else(|| pids().flat_map(still).min()).or(alone)
    }
}

impl AgentLog {
    /// Whether what is said in one line cannot be of the launcher that said this: a worker that has failed is not asked to
    /// end.
    fn is_of_another(&self, known: &Self) -> bool {
        let has_failed = |pid: &u32| known.failed.iter().any(|failed| failed.pid == Some(*pid));
        self.closed.iter().any(has_failed)
    }
}

impl Failed {
    /// Whether it is the end of a worker that some entries of a summary tell of.
    fn is_among(&self, entries: &[Entry]) -> bool {
        let is_it = |entry: &Entry| {
            let same = (entry.pid, entry.local_rank) == (self.pid, self.local_rank);
            same && entry.status.is_none_or(|status| status == self.status)
        };
        self.pid.is_some() && entries.iter().any(is_it)
    }
}

/// Whether two summaries are of two launchers: they name hosts or ranks apart.
fn is_anothers(known: &[Entry], summary: &[Entry]) -> bool {
    let apart = |entry: &Entry| {
        let same = |other: &Entry| other.rank == entry.rank && other.host == entry.host;
        !known.iter().any(same)
    };
    !known.is_empty() && summary.iter().all(apart)
}

/// Reads a line of a launcher's own.
fn said(line: &str, line_number: usize) -> AgentLog {
    // Of a program's millions of lines none has any of these.
    static WORDS: LazyLock<AhoCorasick> = LazyLock::new(|| {
        let words = [
            "failed (exitcode: ",
            "Sending process ",
            "Unable to shutdown process ",
            "worker group successfully finished",
            "death signal, shutting down workers",
            "SignalException: Process ",
            "The node '",
        ];
        // Leftmost matches alone are looked for by SIMD.
        let words = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostFirst)
            .build(words);
        words.expect("a few short texts")
    });
    let mut said = AgentLog::default();
    if !WORDS.is_match(line) {
        return said;
    }
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
        // More workers than any launcher has are a mistake, not a list to write out.
        let failed = found().filter(|failed: &Failed| failed.local_rank < MAX_WORKERS);
        said.failed.extend(failed);
    } else if let Some((_, rest)) = line.split_once("Sending process ") {
        said.closed.extend(
            rest.split_once(" closing signal ")
                .and_then(|(pid, _)| pid.parse::<u32>().ok()),
        );
    } else if let Some((_, rest)) = line.split_once("Unable to shutdown process ") {
        said.forced.extend(
            rest.split_once(" via ")
                .and_then(|(pid, _)| pid.parse::<u32>().ok()),
        );
    } else if let Some((_, rest)) = line.split_once("The node '") {
        said.node = node(rest).map(str::to_owned);
    } else if line.contains("worker group successfully finished") {
        said.succeeded = true;
    } else if line.contains("death signal, shutting down workers")
        || line.contains("SignalException: Process ")
    {
        said.signalled = Some(Signalled {
            line: line_number,
            text: begin(line, 200).to_owned(),
        });
    }
    said
}

/// Reads `node2_18_0' has failed to shutdown the rendezvous …`: the host of a launcher, its process ID and a number.
///
/// Source: torch/distributed/elastic/rendezvous/dynamic_rendezvous.py, `_NodeDescGenerator`
fn node(text: &str) -> Option<&str> {
    let (name, rest) = text.split_once('\'')?;
    let mut parts = name.rsplitn(3, '_');
    let are_numbers = parts
        .by_ref()
        .take(2)
        .all(|part| part.parse::<u32>().is_ok());
    let host = parts.next().filter(|host| !host.is_empty())?;
    (are_numbers && rest.starts_with(" has failed to ")).then_some(host)
}

/// Reads the process ID of a line's writer: `E1129 16:33:27.4 18241 torch/…`. Source: torch/_logging/_internal.py
fn launcher(line: &str) -> Option<u32> {
    let is_level = |word: &str| {
        let digits = word.strip_prefix(['E', 'W', 'I', 'C', 'V']).unwrap_or("");
        digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    let mut words = line
        .split_ascii_whitespace()
        .skip_while(|word| !is_level(word));
    words.nth(2)?.parse().ok()
}
