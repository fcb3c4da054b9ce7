//! Finds and reads a job's evidence below some paths: error files, worker directories, launchers' logs. Parallel, bounded.

mod boxes;
mod excerpt;
mod list;
mod names;
mod output;
mod pace;
pub(crate) mod read;
mod utf16;
mod walk;

pub(crate) use boxes::whole as whole_box;
pub(crate) use names::{FileRole, RunPath, attempt_of, role, run_id};
pub use output::MAX_OUTPUT_BYTES;
pub use read::{MAX_FILE_BYTES, MAX_LOG_BYTES};

use crate::black_box::{BlackBox, Fate};
use crate::console::Console;
use crate::error::Error;
use crate::exits::Exit;
use crate::hosts::HostFact;
use crate::kept::{Record, Shared};
use crate::logs::AgentLog;
use crate::recorder::Dump;
use crate::schema::DamagedFile;
use crate::words::Words;
use pace::Pace;
use rayon::prelude::*;
use rustix::fs::FileType;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Directories deeper than this below a path are not entered.
pub const MAX_DEPTH: usize = 32;

/// Why a file that the user named is left out.
const STRANGER: &str = "neither an error file nor a log of a launcher or of failed ranks";

/// Everything found below the paths, read but not yet judged. Sorted by path.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Evidence {
    pub(crate) records: Vec<Record>,
    /// Of processes that were asked to end, the snapshot and what failed after: never the cause.
    pub(crate) terminated: Vec<Record>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) agents: Vec<AgentLog>,
    /// Logs in which ranks speak that have no directory of their own.
    pub(crate) consoles: Vec<Console>,
    /// What logs say of hosts.
    pub(crate) facts: Vec<HostFact>,
    /// How launchers other than torchrun saw processes end.
    pub(crate) exits: Vec<Exit>,
    /// What flight recorders dumped.
    pub(crate) dumps: Vec<Dump>,
    /// Logs of Slurm jobs that tell of no failure.
    pub(crate) quiet_logs: Vec<PathBuf>,
    /// Logs in which nobody speaks of an end, neither a rank nor anybody else.
    pub(crate) silent_logs: Vec<PathBuf>,
    /// What was left out in reading.
    pub(crate) notes: Vec<String>,
    pub(crate) damaged: Vec<(DamagedFile, Option<SlotKey>)>,
    pub(crate) boxes: Vec<Boxed>,
    /// Error files that a process found in its place and replaced: evidence of an earlier run.
    pub(crate) replaced: usize,
    /// What records and outputs have in common, once all are read.
    pub(crate) shared: Option<Arc<Shared>>,
}

/// One black box.
#[derive(Debug, Clone)]
pub(crate) struct Boxed {
    pub(crate) path: PathBuf,
    pub(crate) slot: Option<SlotKey>,
    pub(crate) content: Box<BlackBox>,
    pub(crate) fate: Fate,
}

/// Which worker directory of torchrun's layout: `<run>/attempt_<n>/<local_rank>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SlotKey {
    pub(crate) run: RunPath,
    pub(crate) attempt: u32,
    pub(crate) local_rank: u32,
}

/// One worker directory, whether it holds an error file or not.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) key: SlotKey,
    /// The worker's stderr, where it was redirected to a file.
    pub(crate) stderr: Option<PathBuf>,
    /// What the end of that tells, for a worker without an error file.
    pub(crate) words: Option<Box<Words>>,
    /// Whether the last line of that has no end.
    pub(crate) torn: bool,
    /// Whether torch's hook for uncaught exceptions printed a traceback into it.
    pub(crate) uncaught: bool,
    /// The rank that torch printed before the worker's last lines.
    pub(crate) printed_rank: Option<u32>,
    /// Whether it left a record, and whether that, or its black box, tells its rank.
    pub(crate) has_record: bool,
    pub(crate) is_ranked: bool,
}

impl Slot {
    pub(crate) fn of(key: SlotKey) -> Self {
        Self {
            key,
            stderr: None,
            words: None,
            torn: false,
            uncaught: false,
            printed_rank: None,
            has_record: false,
            is_ranked: false,
        }
    }
}

impl Evidence {
    /// Returns whether nothing was found that could tell of a job.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
            && self.terminated.is_empty()
            && self.slots.is_empty()
            && self.agents.is_empty()
            && self.consoles.is_empty()
            && self.facts.is_empty()
            && self.exits.is_empty()
            && self.dumps.is_empty()
            && self.boxes.is_empty()
            && self.damaged.iter().all(|(file, _)| file.reason == STRANGER)
    }

    fn absorb(&mut self, other: Self) {
        fn join<T>(all: &mut Vec<T>, more: Vec<T>) {
            match all.is_empty() {
                true => *all = more,
                false => all.extend(more),
            }
        }
        join(&mut self.records, other.records);
        join(&mut self.terminated, other.terminated);
        join(&mut self.slots, other.slots);
        join(&mut self.agents, other.agents);
        join(&mut self.consoles, other.consoles);
        join(&mut self.facts, other.facts);
        join(&mut self.quiet_logs, other.quiet_logs);
        join(&mut self.silent_logs, other.silent_logs);
        join(&mut self.exits, other.exits);
        join(&mut self.dumps, other.dumps);
        join(&mut self.notes, other.notes);
        join(&mut self.damaged, other.damaged);
        join(&mut self.boxes, other.boxes);
        self.replaced += other.replaced;
    }

    fn damage(&mut self, path: &Path, slot: Option<SlotKey>, reason: String, bytes: &[u8]) {
        let first: Vec<u8> = bytes.iter().take(80).copied().collect();
        let first_bytes = first.escape_ascii().to_string().replace("\\\"", "\"");
        self.damaged.push((
            DamagedFile {
                path: path.display().to_string(),
                reason,
                first_bytes,
            },
            slot,
        ));
    }
}

/// What all threads of one scan share.
#[derive(Default)]
struct Common {
    kept: Arc<Shared>,
    pace: Pace,
}

/// Returns everything that lies below the paths.
///
/// Each directory is listed once and each file opened once. Symbolic links to directories are followed only where they
/// are one of `paths`, so that a loop ends and a `latest` link shows nothing twice. `proc` is the process file system
/// that is asked what became of the processes of black boxes.
///
/// # Errors
///
/// [`ErrorKind::Io`](crate::ErrorKind::Io) or [`ErrorKind::NotAFile`](crate::ErrorKind::NotAFile) for one of `paths` itself.
pub fn scan(paths: &[PathBuf], proc: &Path) -> Result<Evidence, Error> {
    let (mut evidence, common) = (Evidence::default(), Common::default());
    for path in outermost(paths) {
        let metadata = std::fs::metadata(path).map_err(|error| Error::io(path, error))?;
        if metadata.is_dir() {
            evidence.absorb(walk::root(path, &common)?);
        } else if metadata.is_file() {
            evidence.absorb(walk::named(path, &common));
        } else {
            return Err(Error::not_a_file(
                path,
                names::kind_of(FileType::from_raw_mode(metadata.mode())),
            ));
        }
    }
    evidence
        .records
        .par_sort_by(|a, b| a.path.as_os_str().cmp(b.path.as_os_str()));
    evidence
        .records
        .dedup_by(|a, b| a.path.as_os_str() == b.path.as_os_str());
    evidence
        .terminated
        .sort_by(|a, b| a.path.as_os_str().cmp(b.path.as_os_str()));
    evidence
        .terminated
        .dedup_by(|a, b| a.path.as_os_str() == b.path.as_os_str());
    evidence.slots.par_sort_by(|a, b| a.key.cmp(&b.key));
    evidence.slots.dedup_by(|a, b| a.key == b.key);
    evidence
        .agents
        .sort_by(|a, b| a.path.as_os_str().cmp(b.path.as_os_str()));
    evidence.agents.dedup();
    let place = |fact: &HostFact| (fact.path.clone().into_os_string(), fact.line);
    evidence.facts.sort_by_key(place);
    evidence.facts.dedup_by_key(|fact| place(fact));
    evidence
        .exits
        .sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    evidence.exits.dedup();
    // Of one rank the latest: attempts leave theirs in one directory.
    evidence
        .dumps
        .sort_by(|a, b| (a.rank, b.last_ns(), &a.path).cmp(&(b.rank, a.last_ns(), &b.path)));
    evidence.dumps.dedup_by_key(|dump| dump.rank);
    evidence.quiet_logs.sort();
    evidence.silent_logs.sort();
    evidence.notes.sort_unstable();
    evidence.notes.dedup();
    evidence
        .consoles
        .sort_by(|a, b| a.path.as_os_str().cmp(b.path.as_os_str()));
    evidence.consoles.dedup_by(|a, b| a.path == b.path);
    evidence.damaged.sort_by(|a, b| a.0.path.cmp(&b.0.path));
    boxes::settle(&mut evidence, proc, &common.kept);
    let slots = &mut evidence.slots;
    common.pace.as_decided(|| output::read_ranks(slots));
    evidence.shared = Some(common.kept);
    Ok(evidence)
}

/// Returns the paths without those that are, or lie below, another one of them.
fn outermost(paths: &[PathBuf]) -> impl Iterator<Item = &PathBuf> {
    let real: Vec<PathBuf> = paths
        .iter()
        .map(|path| std::fs::canonicalize(path).unwrap_or_else(|_| path.clone()))
        .collect();
    paths.iter().enumerate().filter_map(move |(index, path)| {
        let within = |(other, outer): (usize, &PathBuf)| {
            other != index
                && real[index].starts_with(outer)
                && (real[index] != *outer || other < index)
        };
        (!real.iter().enumerate().any(within)).then_some(path)
    })
}
