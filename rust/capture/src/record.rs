//! Writes a finished record from normal code, by the same rules as the handler.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use firstfault_format::{env, files};
use firstfault_handler::commit::{self, Content, Outcome, Paths, Strength};
use firstfault_handler::place::{Place, Process};
use firstfault_handler::sys::{self, Errno};

use crate::identity::{self, Identity};
use crate::target::{self, Claim, Target};

/// The places of this process: kept for its life, because they know which files are its own.
static PLACES: Mutex<Vec<&'static Place<'static>>> = Mutex::new(Vec::new());

/// Room for paths, made before memory is short.
static PATHS: Mutex<Paths> = Mutex::new(Paths::new());

/// Returns the one place of a target, made at its first use.
pub(crate) fn place(target: &Target) -> io::Result<&'static Place<'static>> {
    use std::os::unix::ffi::OsStrExt;
    let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    let wanted = target.error.as_os_str().as_bytes();
    if let Some(place) = places
        .iter()
        .find(|place| place.error().to_bytes() == wanted)
    {
        return Ok(place);
    }
    let place = target.leak()?;
    places.push(place);
    Ok(place)
}

/// A record in memory.
struct Record<'a> {
    whole: &'a [u8],
    compact: &'a [u8],
}

impl Content for Record<'_> {
    fn write(&mut self, descriptor: i32) -> Result<(), Errno> {
        sys::write_all(descriptor, self.whole)
    }

    fn compact(&self) -> &[u8] {
        self.compact
    }
}

/// Writes a record to every target of this process.
///
/// `record` is a whole error file, `compact` its form of at most 4,000 bytes for a target that can only be written in
/// place. With `copy` a final record that took the error file's own path is written to `<stem>.firstfault.json` too,
/// because an outer recorder may overwrite the first.
///
/// Returns the path of the record at the first target that took it, or `None` where there is no target.
///
/// # Errors
/// The first target that could not be written, after all were tried.
pub fn commit(
    error_file: Option<&Path>,
    record: &[u8],
    compact: &[u8],
    strength: Strength,
    copy: bool,
) -> io::Result<Option<PathBuf>> {
    let error_file = error_file.and_then(target::usable);
    let claim = Claim::own(error_file);
    let parent = claim.inherited_from(std::env::var(env::CLAIM).ok().as_deref());
    let identity = Identity::of_this_process(&[], None);
    let (targets, mut failed) = target::targets(
        error_file,
        target::archive_directory().as_deref(),
        &identity,
        parent,
    );
    let mut content = Record {
        whole: record,
        compact,
    };
    if strength == Strength::Provisional {
        precede_crash(record);
    }
    let mut paths = PATHS.lock().unwrap_or_else(PoisonError::into_inner);
    // Nobody overwrites a child's record.
    let copy = copy && parent.is_none();
    let mut written = None;
    for target in &targets {
        match commit_to(target, strength, &mut content, copy, &mut paths) {
            Ok(path) => written = written.or(Some(path)),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(written),
    }
}

fn commit_to(
    target: &Target,
    strength: Strength,
    content: &mut Record<'_>,
    copy: bool,
    paths: &mut Paths,
) -> io::Result<PathBuf> {
    let named = |errno: Errno| target::named(&io::Error::from_raw_os_error(errno), &target.error);
    let process = this_process();
    let outcome =
        commit::commit(place(target)?, &process, strength, content, paths).map_err(named)?;
    if outcome == Outcome::Target && copy {
        let path = target.beside(files::COPY);
        let copy = Target {
            stem: target.beside(".firstfault"),
            error: path,
        };
        commit::replace(place(&copy)?, &process, content, paths).map_err(named)?;
    }
    Ok(match outcome {
        Outcome::Target | Outcome::InPlace => target.error.clone(),
        Outcome::Beside => {
            use std::os::unix::ffi::OsStrExt;
            let beside = paths
                .beside
                .as_c_str()
                .map(|path| path.to_bytes())
                .unwrap_or_default();
            PathBuf::from(std::ffi::OsStr::from_bytes(beside))
        }
    })
}

/// Replaces a file by these bytes, whole or not at all; a mount point is written in place.
///
/// # Errors
/// The operating system's, with the path.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let target = Target::at(path)?;
    let mut content = Record {
        whole: bytes,
        compact: bytes,
    };
    let mut paths = PATHS.lock().unwrap_or_else(PoisonError::into_inner);
    commit::replace(place(&target)?, &this_process(), &mut content, &mut paths)
        .map(drop)
        .map_err(|errno| target::named(&io::Error::from_raw_os_error(errno), path))
}

/// Returns what the writer must know of this process.
pub(crate) fn this_process() -> Process {
    Process {
        id: nix::unistd::getpid().as_raw(),
        start_time_ns: identity::start_time_ns(),
    }
}

/// The provisional records so far, as a crash record will carry them.
static PRECEDING: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// How many are kept: what the handler was told is never freed.
const PRECEDING_MAX: usize = 8;

/// Lets a later crash record say what was recorded before it and survived.
fn precede_crash(record: &[u8]) {
    let mut preceding = PRECEDING.lock().unwrap_or_else(PoisonError::into_inner);
    let Ok(record) = serde_json::from_slice::<serde_json::Value>(record) else {
        return;
    };
    if preceding.len() >= PRECEDING_MAX {
        return;
    }
    let section = &record[firstfault_format::SECTION];
    let message = record["message"]["message"].as_str().unwrap_or_default();
    let entry = serde_json::json!({
        "kind": section["kind"],
        "message": message.chars().take(1000).collect::<String>(),
        "time_ns": section["time_ns"],
    });
    preceding.push(entry.to_string());
    let all: &'static [u8] = Box::leak(preceding.join(",").into_boxed_str()).as_bytes();
    firstfault_handler::install::set_preceded_by(Box::leak(Box::new(all)));
}
