//! Finds and reads a job's evidence below some paths: error files, worker directories, launchers' logs. Parallel, bounded.

mod boxes;
mod excerpt;
mod list;
mod names;
mod pace;
pub(crate) mod read;
mod utf16;

pub(crate) use names::{FileRole, RunPath, attempt_of, role, run_id};
pub use read::{MAX_FILE_BYTES, MAX_LOG_BYTES};

use crate::black_box::{BlackBox, Fate};
use crate::console::{Console, console};
use crate::dress;
use crate::error::Error;
use crate::exits::{Exit, exits};
use crate::hosts::{HostFact, facts};
use crate::kept::{Record, Shared};
use crate::logs::{self, AgentLog};
use crate::parse;
use crate::recorder::{self, Dump};
use crate::schema::DamagedFile;
use crate::traceback;
use list::Entry;
use pace::Pace;
use rayon::prelude::*;
use read::Location;
use rustix::fs::{AtFlags, FileType, statat};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Directories deeper than this below a path are not entered.
pub const MAX_DEPTH: usize = 32;

/// At most this much of the end of a worker's own output is read, in bytes.
pub const MAX_OUTPUT_BYTES: usize = 256 << 10;

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
    /// What was left out in reading.
    pub(crate) notes: Vec<String>,
    pub(crate) damaged: Vec<(DamagedFile, Option<SlotKey>)>,
    pub(crate) boxes: Vec<Boxed>,
    /// Error files that a process found in its place and replaced: evidence of an earlier run.
    pub(crate) replaced: usize,
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
    /// The end of that, for a worker without an error file.
    pub(crate) output: String,
    /// Whether `output` is all of it, so that its lines can be numbered.
    pub(crate) output_whole: bool,
    /// The number of each of its lines in the file, from 1, where these are not the same.
    pub(crate) output_lines: Vec<usize>,
    /// Whether its last line has no end.
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
            output: String::new(),
            output_whole: false,
            output_lines: Vec::new(),
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

    fn absorb(&mut self, mut other: Self) {
        self.records.append(&mut other.records);
        self.terminated.append(&mut other.terminated);
        self.slots.append(&mut other.slots);
        self.agents.append(&mut other.agents);
        self.consoles.append(&mut other.consoles);
        self.facts.append(&mut other.facts);
        self.quiet_logs.append(&mut other.quiet_logs);
        self.exits.append(&mut other.exits);
        self.dumps.append(&mut other.dumps);
        self.notes.append(&mut other.notes);
        self.damaged.append(&mut other.damaged);
        self.boxes.append(&mut other.boxes);
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
    kept: Shared,
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
            list::list(path).map_err(|error| Error::io(path, error))?;
            evidence.absorb(directory(path, Place::of(path), 0, &common));
        } else if metadata.is_file() {
            let place = Place::of(path.parent().unwrap_or(Path::new("")));
            let role = names::role(path.file_name().unwrap_or_default());
            evidence.absorb(file(Location::of(path), role, &place, true, &common));
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
    evidence.notes.sort_unstable();
    evidence.notes.dedup();
    evidence
        .consoles
        .sort_by(|a, b| a.path.as_os_str().cmp(b.path.as_os_str()));
    evidence.consoles.dedup_by(|a, b| a.path == b.path);
    evidence.damaged.sort_by(|a, b| a.0.path.cmp(&b.0.path));
    boxes::settle(&mut evidence, proc, &common.kept);
    let slots = &mut evidence.slots;
    common.pace.as_decided(|| read_ranks(slots));
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

/// Where a directory stands in a launcher's layout.
#[derive(Clone, Default)]
struct Place {
    /// The directory, absolute, so that its parents' names are known.
    absolute: PathBuf,
    /// Which attempt of which run, where it is such a directory.
    attempt: Option<(RunPath, u32)>,
    slot: Option<SlotKey>,
}

impl Place {
    fn of(path: &Path) -> Self {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let parent = absolute.parent().and_then(names::attempt);
        Self::new(absolute, parent.as_ref())
    }

    fn child(&self, name: &OsStr) -> Self {
        Self::new(self.absolute.join(name), self.attempt.as_ref())
    }

    fn new(absolute: PathBuf, parent: Option<&(RunPath, u32)>) -> Self {
        let name = absolute.file_name().unwrap_or_default();
        Self {
            slot: parent.and_then(|(run, attempt)| names::slot(name, run, *attempt)),
            attempt: names::attempt(&absolute),
            absolute,
        }
    }
}

fn directory(path: &Path, place: Place, depth: usize, common: &Common) -> Evidence {
    let mut found = Evidence::default();
    let (open, entries) = match list::list(path) {
        Ok(listed) => listed,
        Err(error) => {
            found.damage(
                path,
                None,
                format!("cannot be listed: {}", Error::io(path, error).reason()),
                b"",
            );
            return found;
        }
    };
    if let Some(key) = &place.slot {
        let stderr = entries.iter().find(|entry| entry.name() == "stderr.log");
        found.slots.push(Slot {
            stderr: stderr.map(|entry| path.join(entry.name())),
            ..Slot::of(key.clone())
        });
    }
    let one = |entry: &Entry| -> Evidence {
        if entry.kind != FileType::Directory {
            listed_file(path, &open, entry, &place, common)
        } else if depth < MAX_DEPTH {
            let name = entry.name();
            directory(&path.join(name), place.child(name), depth + 1, common)
        } else {
            Evidence::default()
        }
    };
    let merge = |mut a: Evidence, b: Evidence| {
        a.absorb(b);
        a
    };
    // A worker's directory holds a handful of entries: splitting it costs more than reading it.
    let below = if entries.len() < 8 && place.slot.is_some() {
        entries.iter().map(one).reduce(merge).unwrap_or_default()
    } else {
        let more = |found: Evidence, entry: &Entry| merge(found, one(entry));
        let below = || {
            let parts = entries.par_iter().fold(Evidence::default, more);
            parts.reduce(Evidence::default, merge)
        };
        common.pace.run(&open, &entries, below)
    };
    found.absorb(below);
    if place.slot.is_some() {
        read_output(&mut found);
    }
    found
}

/// A name that says nothing costs nothing: no stat, no open.
fn listed_file(
    directory: &Path,
    open: &OwnedFd,
    entry: &Entry,
    place: &Place,
    common: &Common,
) -> Evidence {
    let name = entry.name();
    let role = names::role(name);
    let in_slot = place.slot.is_some();
    if role == FileRole::Other || in_slot && role == FileRole::Log {
        return Evidence::default();
    }
    let path = directory.join(name);
    if entry.kind != FileType::RegularFile {
        let target = statat(open, name, AtFlags::empty());
        let reason = match target.map(|status| FileType::from_raw_mode(status.st_mode)) {
            Ok(FileType::RegularFile) => String::new(),
            Ok(kind) => Error::not_a_file(&path, names::kind_of(kind)).reason(),
            Err(error) => Error::io(&path, error.into()).reason(),
        };
        if !reason.is_empty() {
            let mut found = Evidence::default();
            if role.is_error_file() {
                found.damage(&path, place.slot.clone(), reason, b"");
            }
            return found;
        }
    }
    file(
        Location::within(open, name, &path),
        role,
        place,
        false,
        common,
    )
}

/// Reads one file; `named` when the user named it, so that it is read whatever it is called.
fn file(
    location: Location<'_>,
    role: FileRole,
    place: &Place,
    named: bool,
    common: &Common,
) -> Evidence {
    let mut found = Evidence::default();
    if !crate::work::goes_on() {
        return found;
    }
    let path = location.path;
    let slot = place.slot.clone();
    match role {
        FileRole::Replaced => found.replaced += 1,
        FileRole::BlackBox => boxes::read(location, slot, &mut found),
        FileRole::Log => {
            if !log(path, &mut found) && named {
                found.damage(path, slot, STRANGER.to_owned(), b"");
            }
        }
        FileRole::Other if !named => {}
        _ => read::with_file(location, |bytes| match bytes {
            Err(error) => found.damage(path, slot, error.reason(), b""),
            Ok(bytes) if !role.is_error_file() && recorder::looks_like_dump(bytes) => {
                match recorder::dump(path, bytes) {
                    Ok(dump) => found.dumps.push(dump),
                    Err(reason) => found.damage(path, slot, reason, bytes),
                }
            }
            Ok(bytes) if !role.is_error_file() && !parse::looks_like_error_file(bytes) => {
                if named && !log(path, &mut found) {
                    found.damage(path, slot, STRANGER.to_owned(), bytes);
                }
            }
            Ok(bytes) => match Record::read(path, slot.clone(), role, bytes, &common.kept) {
                Ok(record) if role == FileRole::Terminated => found.terminated.push(record),
                Ok(record) => found.records.push(record),
                Err(error) => found.damage(path, slot, error.reason(), bytes),
            },
        }),
    }
    found
}

/// Reads a log, of a launcher or of ranks; returns whether it is one.
fn log(path: &Path, found: &mut Evidence) -> bool {
    let Ok(excerpt) = read::log(path) else {
        return false;
    };
    let plain = dress::plain(&excerpt.text);
    let text = &*plain.text;
    let (agents, console) = (logs::agents(path, text), console(path, &plain));
    let (facts, exits) = (facts(path, text), exits(path, text));
    let is_one = !agents.is_empty() || console.is_some() || !facts.is_empty() || !exits.is_empty();
    if is_one && excerpt.skipped > 0 {
        found.notes.push(format!(
            "{}: {} MB in its middle were searched for failures and left out otherwise",
            path.display(),
            excerpt.skipped.div_ceil(1_000_000)
        ));
    }
    if console.is_none() && agents.iter().all(|agent| agent.succeeded) && exits.is_empty() {
        let of_slurm = crate::jobs::number(path).map(|_| path.to_owned());
        found.quiet_logs.extend(of_slurm);
    }
    let number = |line: usize| excerpt.line(plain.line(line));
    found.facts.extend(facts.into_iter().map(|fact| HostFact {
        line: number(fact.line),
        ..fact
    }));
    found.exits.extend(exits.into_iter().map(|exit| Exit {
        line: number(exit.line),
        ..exit
    }));
    let agents = agents.into_iter().map(|agent| agent.renumbered(number));
    found.agents.extend(agents);
    found
        .consoles
        .extend(console.map(|console| console.renumbered(number)));
    is_one
}

/// Reads the output of the worker whose directory this is, where no record tells how it ended.
fn read_output(found: &mut Evidence) {
    let sections = found.records.iter().map(|record| &record.failure.section);
    let sections = sections.flatten();
    let is_ranked = sections.clone().any(|section| section.rank.rank.is_some());
    let aborted = sections.clone().any(|section| section.signal == Some(6));
    let boxes = found.boxes.iter().map(|boxed| &boxed.content);
    let boxed_rank = boxes.clone().any(|content| content.rank.rank.is_some());
    let mut crashes = boxes.filter_map(|content| content.crash.as_ref());
    let has_record = !found.records.is_empty() || crashes.clone().next().is_some();
    let aborted = aborted || crashes.any(|crash| crash.signal == 6);
    let Some(slot) = found.slots.first_mut() else {
        return;
    };
    slot.has_record = has_record;
    slot.is_ranked = has_record && (is_ranked || boxed_rank);
    // Why a process aborted is often in its output alone.
    if (aborted || !has_record)
        && let Some(stderr) = &slot.stderr
    {
        let text = read::tail(stderr, MAX_OUTPUT_BYTES).unwrap_or_default();
        if !has_record {
            slot.output_whole = text.len() < MAX_OUTPUT_BYTES;
            slot.torn = !text.ends_with('\n');
            slot.printed_rank = traceback::printed_rank(&text);
            slot.uncaught = crate::ending::is_uncaught(&text);
        }
        let plain = dress::plain(&text);
        slot.output = traceback::strip_prefixes(&plain.text).into_owned();
        if slot.output_whole && plain.is_renumbered() {
            let count = slot.output.lines().count();
            slot.output_lines = (1..=count).map(|number| plain.line(number)).collect();
            slot.output_whole = false;
        }
    }
}

/// Reads enough of the outputs of workers whose records do not tell their ranks to learn these.
fn read_ranks(slots: &mut [Slot]) {
    // One worker that tells its rank tells those of its neighbours.
    let one_attempt = |a: &Slot, b: &Slot| a.key.attempt == b.key.attempt && a.key.run == b.key.run;
    let attempts: Vec<&mut [Slot]> = slots.chunk_by_mut(one_attempt).collect();
    attempts.into_par_iter().for_each(|slots| {
        if slots.iter().any(|slot| slot.is_ranked) {
            return;
        }
        let untold = slots.iter_mut().filter(|slot| slot.has_record);
        let mut tries =
            untold.filter_map(|slot| Some((slot.stderr.as_ref()?, &mut slot.printed_rank)));
        tries.by_ref().take(8).any(|(stderr, printed_rank)| {
            let head = read::head(stderr, 4096).unwrap_or_default();
            *printed_rank = traceback::printed_rank(&head);
            printed_rank.is_some()
        });
    });
}
