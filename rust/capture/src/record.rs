//! Writes a finished record from normal code, by the same rules as the handler.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use firstfault_format::{env, files};
use firstfault_handler::commit::{self, Content, Outcome, Paths, Strength};
use firstfault_handler::handle;
use firstfault_handler::place::{Place, Process, share_with_handler};
use firstfault_handler::sys::{self, Errno};
use firstfault_handler::termination;

use crate::identity::{self, Identity};
use crate::named_error;
use crate::patience::{self, Wanted};
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

/// Tries whether records can be written to these targets; returns why one cannot take any.
pub(crate) fn probe(targets: &[Target]) -> io::Result<()> {
    let mut paths = PATHS.lock().unwrap_or_else(PoisonError::into_inner);
    for target in targets {
        let named = |errno| named_error::named(&io::Error::from_raw_os_error(errno), &target.error);
        let mut nothing = Record {
            whole: b"",
            compact: b"",
        };
        commit::probe(place(target)?, &this_process(), &mut nothing, &mut paths).map_err(named)?;
    }
    Ok(())
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
/// The first target that could not be written, after all were tried, or `ETIMEDOUT` where one does not answer; the
/// record is in memory of this node then, if that has room.
pub fn commit(
    error_file: Option<&Path>,
    record: &[u8],
    compact: &[u8],
    strength: Strength,
    copy: bool,
) -> io::Result<Option<PathBuf>> {
    handle::notice_survival();
    if strength == Strength::Provisional {
        precede_crash(record);
    }
    let wanted = Wanted::now(error_file);
    let spared = || commit_to_spare(record, compact, strength);
    if !wanted.may_hang() {
        let mut paths = PATHS.lock().unwrap_or_else(PoisonError::into_inner);
        let tried = commit_to_targets(&wanted, record, compact, strength, copy, &mut paths);
        drop(paths);
        return match tried.failed {
            None => Ok(tried.written),
            // What a target did not take must not be lost for it.
            Some(error) if tried.has_targets => Err(named_error::kept_in(error, spared())),
            Some(error) => Err(error),
        };
    }
    let kept = spared();
    let tried = patience::within({
        let (wanted, record, compact) = (wanted.clone(), record.to_vec(), compact.to_vec());
        move || {
            let mut paths = Box::new(Paths::new());
            commit_to_targets(&wanted, &record, &compact, strength, copy, &mut paths)
        }
    });
    match tried {
        Ok(Tried {
            written,
            failed: None,
            ..
        }) => {
            withdraw_from_spare();
            Ok(written)
        }
        Ok(Tried {
            failed: Some(error),
            ..
        }) => Err(named_error::kept_in(error, kept)),
        Err(error) => Err(named_error::kept_in(
            named_error::named(&error, wanted.path()),
            kept,
        )),
    }
}

/// What came of a record at the targets.
struct Tried {
    written: Option<PathBuf>,
    failed: Option<io::Error>,
    has_targets: bool,
}

fn commit_to_targets(
    wanted: &Wanted,
    record: &[u8],
    compact: &[u8],
    strength: Strength,
    copy: bool,
    paths: &mut Paths,
) -> Tried {
    let error_file = wanted.error_file.as_deref().and_then(target::usable);
    let claim = Claim::own(error_file);
    let parent = claim.inherited_from(std::env::var(env::CLAIM).ok().as_deref());
    let identity = Identity::of_this_process(&[], None);
    let (mut targets, mut failed) =
        target::targets(error_file, wanted.archive.as_deref(), &identity, parent);
    // What fails once the process was asked to end is not what the job died of.
    let is_late = termination::is_received();
    if is_late {
        targets = targets.iter().map(Target::terminated).collect();
    }
    let mut content = Record {
        whole: record,
        compact,
    };
    // Nobody overwrites a child's record.
    let copy = copy && parent.is_none() && !is_late;
    let mut written = None;
    for target in &targets {
        if parent.is_some()
            && let Ok(place) = place(target)
        {
            share_with_handler(place);
        }
        match commit_to(target, strength, &mut content, copy, paths) {
            Ok(path) => written = written.or(Some(path)),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    Tried {
        written,
        failed,
        has_targets: !targets.is_empty(),
    }
}

fn spare() -> Option<Target> {
    let spare = Target::spare()?;
    Some(if termination::is_received() {
        spare.terminated()
    } else {
        spare
    })
}

/// Writes a record into memory of this node; returns where it is.
fn commit_to_spare(record: &[u8], compact: &[u8], strength: Strength) -> Option<PathBuf> {
    let mut content = Record {
        whole: record,
        compact,
    };
    let mut paths = PATHS.lock().unwrap_or_else(PoisonError::into_inner);
    commit_to(&spare()?, strength, &mut content, false, &mut paths).ok()
}

/// Takes back what [`commit_to_spare`] wrote last: it is where it was wanted.
fn withdraw_from_spare() {
    let mut paths = PATHS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(place) = spare().and_then(|spare| place(&spare).ok()) {
        place.withdraw(&this_process(), &mut paths);
    }
}

fn commit_to(
    target: &Target,
    strength: Strength,
    content: &mut Record<'_>,
    copy: bool,
    paths: &mut Paths,
) -> io::Result<PathBuf> {
    let named =
        |errno: Errno| named_error::named(&io::Error::from_raw_os_error(errno), &target.error);
    let process = this_process();
    let outcome =
        commit::commit(place(target)?, &process, strength, content, paths).map_err(named)?;
    if outcome == Outcome::Target && copy {
        let path = target.beside(files::COPY);
        let copy = Target {
            stem: target.beside(".firstfault"),
            error: path,
            kind: target.kind,
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

/// Replaces a file by these bytes, whole or not at all; a mount point is written in place, in short form.
///
/// # Errors
/// The operating system's, with the path; `ETIMEDOUT` where it does not answer. The bytes are in memory of this node
/// then, if that has room.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let compact = compacted(bytes);
    let result = if patience::may_hang(path) {
        let (path, bytes, compact) = (path.to_owned(), bytes.to_vec(), compact.clone());
        patience::within(move || replace_now(&path, &bytes, &compact, &mut Paths::new()))
    } else {
        let mut paths = PATHS.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(replace_now(path, bytes, &compact, &mut paths))
    };
    result.unwrap_or_else(|error| {
        let kept = commit_to_spare(bytes, &compact, Strength::Final);
        Err(named_error::kept_in(named_error::named(&error, path), kept))
    })
}

fn replace_now(path: &Path, whole: &[u8], compact: &[u8], paths: &mut Paths) -> io::Result<()> {
    let target = Target::at(path)?;
    let mut content = Record { whole, compact };
    commit::replace(place(&target)?, &this_process(), &mut content, paths)
        .map(drop)
        .map_err(|errno| named_error::named(&io::Error::from_raw_os_error(errno), path))
}

/// How large a record may be that is written in place, bytes.
///
/// Source: kubelet keeps 4,096 bytes of a termination message.
const COMPACT_MAX: usize = 4000;

/// A record in at most [`COMPACT_MAX`] bytes: the message first, cut texts, and of our section what orders failures.
fn compacted(record: &[u8]) -> Vec<u8> {
    if record.len() <= COMPACT_MAX {
        return record.to_vec();
    }
    let Ok(mut value) = serde_json::from_slice::<serde_json::Value>(record) else {
        return record[..COMPACT_MAX].to_vec();
    };
    let mut short = serde_json::Map::new();
    if let Some(section) = value[firstfault_format::SECTION].as_object() {
        for key in ["schema_version", "kind", "final", "time_ns", "rank"] {
            if let Some(fact) = section.get(key) {
                short.insert(key.to_owned(), fact.clone());
            }
        }
    }
    let mut most = COMPACT_MAX / 2;
    loop {
        shorten(&mut value["message"], most);
        let message = serde_json::json!({ "message": value["message"] }).to_string();
        let section = serde_json::json!({ firstfault_format::SECTION: short }).to_string();
        // The message comes first, whatever order a map would give.
        let whole = format!("{},{}", &message[..message.len() - 1], &section[1..]);
        if whole.len() <= COMPACT_MAX || most < 64 {
            return whole.into_bytes();
        }
        most = most * 3 / 4;
    }
}

/// Cuts every text in a value to so many characters.
fn shorten(value: &mut serde_json::Value, most: usize) {
    match value {
        serde_json::Value::String(text) => {
            if let Some((end, _)) = text.char_indices().nth(most) {
                text.truncate(end);
            }
        }
        serde_json::Value::Array(values) => {
            values.iter_mut().for_each(|value| shorten(value, most))
        }
        serde_json::Value::Object(values) => {
            values.values_mut().for_each(|value| shorten(value, most))
        }
        _ => {}
    }
}

/// Returns what the writer must know of this process.
pub(crate) fn this_process() -> Process {
    Process {
        id: nix::unistd::getpid().as_raw(),
        start_time_ns: identity::start_time_ns(),
    }
}

/// The provisional records so far, as a crash record will carry them: when each was made first, and what is said of it.
static PRECEDING: Mutex<Vec<(Option<i64>, String)>> = Mutex::new(Vec::new());
/// Whose they are: a forked child begins anew.
static PRECEDING_PROCESS: AtomicU32 = AtomicU32::new(0);
/// How many are kept: what the handler was told is never freed.
const PRECEDING_MAX: usize = 8;

/// Lets a later crash record say what was recorded before it and survived; the same failure again takes the place of
/// the one before.
fn precede_crash(record: &[u8]) {
    let Ok(record) = serde_json::from_slice::<serde_json::Value>(record) else {
        return;
    };
    let section = &record[firstfault_format::SECTION];
    let message = record["message"]["message"].as_str().unwrap_or_default();
    let mut entry = serde_json::json!({
        "kind": section["kind"],
        "message": message.chars().take(1000).collect::<String>(),
        "time_ns": section["time_ns"],
    });
    if !section["deferred"].is_null() {
        entry["deferred"] = section["deferred"].clone();
    }
    let is_kept = keep(section["time_ns"].as_i64(), entry.to_string());
    firstfault_handler::install::note_carried(is_kept);
}

/// Lets a later crash record mention a failure that the process survived: a JSON object. At most eight are kept.
pub fn precede(entry: String) {
    keep(None, entry);
}

/// Returns whether there was room for it.
fn keep(time_ns: Option<i64>, entry: String) -> bool {
    let mut preceding = PRECEDING.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if PRECEDING_PROCESS.swap(process, Ordering::Relaxed) != process {
        preceding.clear();
    }
    let known = preceding
        .iter()
        .position(|(time, _)| time_ns.is_some() && *time == time_ns);
    match known {
        Some(index) if preceding[index].1 == entry => return true,
        Some(index) => preceding[index].1 = entry,
        None if preceding.len() < PRECEDING_MAX => preceding.push((time_ns, entry)),
        None => return false,
    }
    let entries: Vec<&str> = preceding.iter().map(|(_, entry)| entry.as_str()).collect();
    let all: &'static [u8] = Box::leak(entries.join(",").into_boxed_str()).as_bytes();
    firstfault_handler::install::set_preceded_by(Box::leak(Box::new(all)));
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_record_is_shortened_to_a_valid_one_with_the_message_first() {
        let record = serde_json::json!({
            "message": {"message": "E: it".repeat(1000), "errorCode": 1,
                        "extraInfo": {"py_callstack": "\u{1f3d6}\n".repeat(9000), "timestamp": "1790000000"}},
            "firstfault": {"schema_version": 1, "kind": "exception", "final": true, "time_ns": 1, "threads": [1, 2]},
        });
        let short = compacted(record.to_string().as_bytes());
        assert!(short.len() <= COMPACT_MAX, "{}", short.len());
        assert!(short.starts_with(b"{\"message\":{"));
        let value: serde_json::Value = serde_json::from_slice(&short).expect("valid JSON");
        assert_eq!(value["message"]["extraInfo"]["timestamp"], "1790000000");
        assert_eq!(value["firstfault"]["time_ns"], 1);
        assert!(value["firstfault"]["threads"].is_null());
        assert_eq!(compacted(b"{}"), b"{}");
    }
}
