//! Walks directories, and gives each file to who reads it.

use super::list::{self, Entry, Listing};
use super::names::{self, FileRole, RunPath};
use super::read::{self, Location};
use super::{Common, Evidence, MAX_DEPTH, STRANGER, Slot, SlotKey, boxes, output};
use crate::console::console;
use crate::dress;
use crate::error::Error;
use crate::exits::{Exit, exits};
use crate::hosts::{HostFact, facts};
use crate::kept::Record;
use crate::logs;
use crate::parse;
use crate::recorder;
use rayon::prelude::*;
use rustix::fs::{AtFlags, FileType, statat};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Where a directory stands in a launcher's layout.
#[derive(Clone, Default)]
struct Place {
    /// Which attempt of which run, where it is such a directory.
    attempt: Option<(RunPath, u32)>,
    slot: Option<SlotKey>,
    /// Whether a directory above it keeps all threads busy.
    is_shared_out: bool,
}

/// A directory of so many entries keeps all threads busy.
const MANY: usize = 64;

impl Place {
    fn of(path: &Path) -> Self {
        // Its parents' names are not in what the user gave.
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let parent = absolute.parent().and_then(names::attempt);
        Self::new(&absolute, parent.as_ref())
    }

    fn child(&self, path: &Path, siblings: usize) -> Self {
        Self {
            is_shared_out: self.is_shared_out || siblings >= MANY,
            ..Self::new(path, self.attempt.as_ref())
        }
    }

    /// Whether the entries of the directory are for several threads: each piece of evidence is moved once more then, and
    /// to split a worker's directory, with its handful of entries, costs more than to read it.
    fn is_worth_splitting(&self, entries: usize) -> bool {
        let least = match (self.is_shared_out, &self.slot) {
            (true, _) => MANY,
            (_, Some(_)) => 8,
            _ => 2,
        };
        entries >= least
    }

    fn new(path: &Path, parent: Option<&(RunPath, u32)>) -> Self {
        let name = path.file_name().unwrap_or_default();
        Self {
            slot: parent.and_then(|(run, attempt)| names::slot(name, run, *attempt)),
            attempt: names::attempt(path),
            is_shared_out: false,
        }
    }
}

/// Returns what lies below a directory that the user named.
///
/// # Errors
///
/// It cannot be listed.
pub(super) fn root(path: &Path, common: &Common) -> Result<Evidence, Error> {
    let mut found = Evidence::default();
    let listed = list::list(Location::of(path)).map_err(|error| Error::io(path, error))?;
    directory(path, listed, &Place::of(path), 0, common, &mut found);
    Ok(found)
}

/// Returns what a file tells that the user named, so that it is read whatever it is called.
pub(super) fn named(path: &Path, common: &Common) -> Evidence {
    let mut found = Evidence::default();
    let place = Place::of(path.parent().unwrap_or(Path::new("")));
    let role = names::role(path.file_name().unwrap_or_default());
    file(Location::of(path), role, &place, true, common, &mut found);
    found
}

fn directory(
    path: &Path,
    listing: Listing,
    place: &Place,
    depth: usize,
    common: &Common,
    found: &mut Evidence,
) {
    let (open, entries) = (&listing.directory, &listing.entries);
    let own = output::Own::of(found);
    if let Some(key) = &place.slot {
        let stderr = entries.iter().find(|entry| entry.name() == "stderr.log");
        found.slots.push(Slot {
            stderr: stderr.map(|entry| path.join(entry.name())),
            ..Slot::of(key.clone())
        });
    }
    let one = |entry: &Entry, found: &mut Evidence| {
        let name = entry.name();
        if entry.kind != FileType::Directory {
            listed_file(path, open, entry, place, common, found);
        } else if depth < MAX_DEPTH {
            let path = below(path, name);
            // The kernel finds a name in an open directory sooner than a path.
            match list::list(Location::within(open, name, &path)) {
                Ok(listed) => {
                    let place = place.child(&path, entries.len());
                    directory(&path, listed, &place, depth + 1, common, found);
                }
                Err(error) => {
                    let reason = Error::io(&path, error).reason();
                    found.damage(&path, None, format!("cannot be listed: {reason}"), b"");
                }
            }
        }
    };
    let is_split = entries.len() > 1 && common.pace.is_slow();
    if !is_split && !place.is_worth_splitting(entries.len()) {
        entries.iter().for_each(|entry| one(entry, found));
    } else {
        let more = |mut found: Evidence, entry: &Entry| {
            one(entry, &mut found);
            found
        };
        let merge = |mut a: Evidence, b: Evidence| {
            a.absorb(b);
            a
        };
        let below = || {
            let parts = entries.par_iter().fold(Evidence::default, more);
            parts.reduce(Evidence::default, merge)
        };
        found.absorb(common.pace.run(&listing, below));
    }
    if place.slot.is_some() {
        output::read(found, own, &common.kept);
    }
}

/// Returns the path of a name in a directory; `Path::join` allocates it twice.
fn below(directory: &Path, name: &OsStr) -> PathBuf {
    let mut path = PathBuf::with_capacity(directory.as_os_str().len() + 1 + name.len());
    path.push(directory);
    path.push(name);
    path
}

/// A name that says nothing costs nothing: no stat, no open.
fn listed_file(
    directory: &Path,
    open: &OwnedFd,
    entry: &Entry,
    place: &Place,
    common: &Common,
    found: &mut Evidence,
) {
    let name = entry.name();
    let role = names::role(name);
    let in_slot = place.slot.is_some();
    if role == FileRole::Other || in_slot && role == FileRole::Log {
        return;
    }
    let path = below(directory, name);
    if entry.kind != FileType::RegularFile {
        let target = statat(open, name, AtFlags::empty());
        let reason = match target.map(|status| FileType::from_raw_mode(status.st_mode)) {
            Ok(FileType::RegularFile) => String::new(),
            Ok(kind) => Error::not_a_file(&path, names::kind_of(kind)).reason(),
            Err(error) => Error::io(&path, error.into()).reason(),
        };
        if !reason.is_empty() {
            if role.is_error_file() {
                found.damage(&path, place.slot.clone(), reason, b"");
            }
            return;
        }
    }
    let location = Location::within(open, name, &path);
    file(location, role, place, false, common, found);
}

/// Reads one file; `named` when the user named it, so that it is read whatever it is called.
fn file(
    location: Location<'_>,
    role: FileRole,
    place: &Place,
    named: bool,
    common: &Common,
    found: &mut Evidence,
) {
    if !crate::work::goes_on() {
        return;
    }
    let path = location.path;
    let slot = place.slot.clone();
    match role {
        FileRole::Replaced => found.replaced += 1,
        FileRole::BlackBox => boxes::read(location, slot, found),
        FileRole::Log => {
            if !log(path, found) && named {
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
                if named && !log(path, found) {
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
}

/// Reads a log, of a launcher or of ranks; returns whether it is one.
fn log(path: &Path, found: &mut Evidence) -> bool {
    let Ok(excerpt) = read::log(path) else {
        return false;
    };
    let plain = dress::plain(&excerpt.text);
    let text = &*plain.text;
    let (agents, console) = (logs::agents_of(path, &plain), console(path, &plain));
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
    if !is_one {
        found.silent_logs.push(path.to_owned());
    }
    let number = |line: usize| excerpt.line(plain.line(line));
    found.facts.extend(facts.into_iter().map(|fact| HostFact {
        line: number(fact.line),
        ..fact
    }));
    found.exits.extend(exits.into_iter().map(|exit| Exit {
        line: number(exit.line),
        host: exit.host.or_else(|| plain.host(exit.line)),
        ..exit
    }));
    let agents = agents.into_iter().map(|agent| agent.renumbered(number));
    found.agents.extend(agents);
    found
        .consoles
        .extend(console.map(|console| console.renumbered(number)));
    is_one
}
