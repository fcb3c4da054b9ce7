//! The one writer of error files: complete or absent, first final writer wins, nothing of others lost.
//!
//! Used by the signal handler and, with the same rules, by normal code. A record is written to a temporary file and
//! then given its name by link(2), which fails where the name is taken: that is what makes the first writer win. Our
//! own earlier record is replaced by rename(2). Only a target that cannot be renamed, a mount point, is written in
//! place. Everything that loses goes beside: `<stem>.<pid>.json`.

use core::ffi::CStr;
use core::sync::atomic::Ordering;

use firstfault_format::SECTION;

use crate::foreign;
use crate::path::PathBuffer;
use crate::place::{
    BESIDE, FINAL, IN_PLACE, LATER_MAX, NOTHING, PROVISIONAL, Place, Process, TARGET, aside, beside,
};
use crate::sys::{self, Errno, FileStatus};
use crate::temporary::{Kind, Temporary};

/// What can be written as an error file.
pub trait Content {
    /// Writes the whole record to the descriptor.
    fn write(&mut self, descriptor: i32) -> Result<(), Errno>;

    /// Returns the short form, for a target that is written in place: its first line says the essential.
    fn compact(&self) -> &[u8];
}

/// How much a record claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strength {
    /// The program goes on; a final record replaces this one.
    Provisional,
    /// The process is leaving because of this failure.
    Final,
    /// The same, of a crash: another handler may still let the process live, and then the record is withdrawn.
    Crash,
    /// The record that this process wrote last, with more in it.
    Enriched,
    /// The same, of a process that surely ends now: its own provisional record, which the crash put aside, is not needed
    /// any more.
    Last,
}

impl Strength {
    /// Returns whether this process has written the record before, with less in it.
    pub(crate) fn is_more(self) -> bool {
        matches!(self, Self::Enriched | Self::Last)
    }
}

/// Where a record ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// At the error file's own path.
    Target,
    /// At the error file's own path, in its short form and in place: the path is a mount point.
    InPlace,
    /// Beside, because another record holds the path. [`Paths::beside`] has the name.
    Beside,
}

/// Room for the paths of one commit; large, so whoever calls keeps one.
#[derive(Debug, Default)]
pub struct Paths {
    pub(crate) temporary: PathBuffer,
    pub(crate) nameless: PathBuffer,
    /// Where a record went that lost the error file's own path.
    pub beside: PathBuffer,
}

impl Paths {
    /// Returns empty room.
    pub const fn new() -> Self {
        Self {
            temporary: PathBuffer::new(),
            nameless: PathBuffer::new(),
            beside: PathBuffer::new(),
        }
    }
}

/// How often a race for the same path is run again before the record goes beside.
const ATTEMPTS: u8 = 4;

/// Writes a record to a place by the rules of this module.
///
/// Returns where it ended, or the errno of the step that failed; then nothing of it is left behind.
pub fn commit(
    place: &Place<'_>,
    process: &Process,
    strength: Strength,
    content: &mut dyn Content,
    paths: &mut Paths,
) -> Result<Outcome, Errno> {
    let kind = if place.is_nameless() {
        Kind::Nameless
    } else {
        Kind::Named
    };
    let result = with_temporary(place, process, strength, content, paths, kind);
    match result {
        Ok(_) | Err(libc::ENOSPC | libc::EDQUOT) => result,
        // No new file here; an old one may still be written, as a container's termination log.
        Err(errno @ (libc::EROFS | libc::EACCES | libc::EPERM)) => {
            match sys::status(place.error()) {
                Ok(status) if place.is_ours(&status) => in_place(place, content),
                Ok(status)
                    if status.is_regular()
                        && is_replaceable(place.error(), &status, process, held_by(strength)) =>
                {
                    in_place(place, content)
                }
                _ => Err(errno),
            }
        }
        // All descriptors are in use: one that is kept makes room.
        Err(libc::EMFILE | libc::ENFILE) if foreign::give_up_descriptor() => {
            with_temporary(place, process, strength, content, paths, Kind::Named)
        }
        // A file system without nameless files or links has another way.
        Err(_) if kind == Kind::Nameless => {
            with_temporary(place, process, strength, content, paths, Kind::Named)
        }
        Err(_) => result,
    }
}

/// By which way a record gets to a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rung {
    /// A nameless file and link(2): nothing is ever left behind.
    Nameless,
    /// A file under a temporary name and link(2), or rename(2) where the file system has no links.
    Named,
    /// No new file can be made, but the one that is there can be written.
    InPlace,
}

/// Tries, while the process is well, by which way a record gets to a place, and remembers it; leaves nothing there.
///
/// # Errors
/// The errno of the step that failed on the last way.
pub fn probe(
    place: &Place<'_>,
    process: &Process,
    content: &mut dyn Content,
    paths: &mut Paths,
) -> Result<Rung, Errno> {
    match Temporary::probe(place, process, Kind::Nameless, content, paths) {
        Ok(()) => return Ok(Rung::Nameless),
        Err(errno @ (libc::ENOSPC | libc::EDQUOT)) => return Err(errno),
        Err(_) => {}
    }
    match Temporary::probe(place, process, Kind::Named, content, paths) {
        Ok(()) => {
            place.need_names();
            Ok(Rung::Named)
        }
        Err(errno @ (libc::EROFS | libc::EACCES | libc::EPERM)) => {
            // As a container's termination log.
            let flags = libc::O_WRONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
            let descriptor = sys::open(place.error(), flags, 0).map_err(|_| errno)?;
            sys::close(descriptor);
            Ok(Rung::InPlace)
        }
        Err(errno) => Err(errno),
    }
}

/// What a place holds once a record of this strength is at its path.
fn held_by(strength: Strength) -> u8 {
    if strength == Strength::Provisional {
        PROVISIONAL
    } else {
        FINAL
    }
}

/// Replaces a file by new bytes, whatever was there; in place where the path is a mount point.
pub fn replace(
    place: &Place<'_>,
    process: &Process,
    content: &mut dyn Content,
    paths: &mut Paths,
) -> Result<Outcome, Errno> {
    let temporary = match Temporary::create(place, process, Kind::Named, paths) {
        Err(libc::EROFS | libc::EACCES | libc::EPERM)
            if sys::status(place.error()).is_ok_and(|status| status.is_regular()) =>
        {
            return in_place(place, content);
        }
        other => other?,
    };
    let result = content
        .write(temporary.descriptor)
        .and_then(|()| temporary.publish_over(place.error(), paths));
    let result = match result {
        Ok(()) => {
            place.hold(temporary.descriptor, FINAL, TARGET);
            Ok(Outcome::Target)
        }
        Err(libc::EBUSY | libc::EXDEV) => in_place(place, content),
        Err(errno) => Err(errno),
    };
    temporary.discard(paths);
    result
}

fn with_temporary(
    place: &Place<'_>,
    process: &Process,
    strength: Strength,
    content: &mut dyn Content,
    paths: &mut Paths,
    kind: Kind,
) -> Result<Outcome, Errno> {
    let temporary = Temporary::create(place, process, kind, paths)?;
    let result = match content.write(temporary.descriptor) {
        Ok(()) => settle(place, process, strength, content, &temporary, paths),
        Err(errno) => Err(errno),
    };
    place.settle();
    temporary.discard(paths);
    result
}

/// Finds the name for a finished temporary file.
fn settle(
    place: &Place<'_>,
    process: &Process,
    strength: Strength,
    content: &dyn Content,
    temporary: &Temporary,
    paths: &mut Paths,
) -> Result<Outcome, Errno> {
    let held = place.held.load(Ordering::Relaxed);
    if strength.is_more() {
        match place.latest.load(Ordering::Relaxed) {
            BESIDE => {
                let number = place.later.load(Ordering::Relaxed);
                let mut buffer = PathBuffer::new();
                let path = beside(place.stem(), process.id, number, &mut buffer)
                    .ok_or(libc::ENAMETOOLONG)?;
                temporary.publish_over(path, paths)?;
                paths.beside.start(path.to_bytes());
                return Ok(Outcome::Beside);
            }
            IN_PLACE => return in_place(place, content),
            _ => {}
        }
    }
    let new = held_by(strength);
    if !strength.is_more() {
        place.put_aside.store(NOTHING, Ordering::Relaxed);
    }
    for _ in 0..ATTEMPTS {
        match sys::status(place.error()) {
            Err(libc::ENOENT) => {
                place.expect(temporary.descriptor);
                match temporary.publish(place.error(), paths) {
                    Ok(()) => {
                        place.hold(temporary.descriptor, new, TARGET);
                        return Ok(Outcome::Target);
                    }
                    Err(libc::EEXIST) => {}
                    Err(errno) => return Err(errno),
                }
            }
            Err(errno) => return Err(errno),
            Ok(status) if place.is_ours(&status) => {
                if held == PROVISIONAL && strength == Strength::Crash {
                    displace(place, process, new, paths)?;
                    continue;
                }
                if held == PROVISIONAL || strength.is_more() {
                    place.expect(temporary.descriptor);
                    temporary.publish_over(place.error(), paths)?;
                    place.hold(temporary.descriptor, new, TARGET);
                    if strength == Strength::Last {
                        place.forget_own(process, paths);
                    }
                    return Ok(Outcome::Target);
                }
                break;
            }
            Ok(status)
                if status.is_regular() && is_replaceable(place.error(), &status, process, new) =>
            {
                match displace(place, process, new, paths) {
                    Ok(()) => {}
                    Err(libc::EBUSY) => return in_place(place, content),
                    // Another process was faster: look again.
                    Err(libc::ENOENT) => {}
                    Err(errno) => return Err(errno),
                }
            }
            // Another process's record, or something that is no file and not ours to touch.
            Ok(_) => break,
        }
    }
    publish_beside(place, process, temporary, paths)
}

/// An empty file says nothing, and one older than this process says nothing about it. A final record also takes the
/// place of one that another recorder wrote: what that one saw did not end the process, for it still runs.
fn is_replaceable(path: &CStr, status: &FileStatus, process: &Process, new: u8) -> bool {
    let is_stale = status.size == 0 || status.modified_ns < process.start_time_ns;
    is_stale || (new == FINAL && !is_record_of_ours(path))
}

/// Returns whether a file has our section; one that cannot be read is left alone.
fn is_record_of_ours(path: &CStr) -> bool {
    let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let Ok(descriptor) = sys::open(path, flags, 0) else {
        return true;
    };
    // A quotation mark inside a JSON string is escaped, so the quoted name is a key (or a string of its own).
    let key = [b"\"", SECTION.as_bytes(), b"\""];
    let mut rest = key.iter().copied().flatten().copied();
    let mut buffer = [0_u8; 1024];
    let mut found = false;
    while let Ok(count @ 1..) = sys::read(descriptor, &mut buffer)
        && !found
    {
        for byte in buffer.iter().take(count) {
            let wanted = rest.next();
            if wanted != Some(*byte) {
                // The mark stands only at the two ends of the key, so a mismatch can at most begin it anew.
                rest = key.iter().copied().flatten().copied();
                if *byte == b'"' {
                    rest.next();
                }
            }
            if rest.clone().next().is_none() {
                found = true;
                break;
            }
        }
    }
    sys::close(descriptor);
    found
}

/// Moves what is at the error file's path out of the way, and keeps it unless it is empty.
fn displace(place: &Place<'_>, process: &Process, new: u8, paths: &mut Paths) -> Result<(), Errno> {
    let replaced = aside(place.stem(), process.id, &mut paths.beside).ok_or(libc::ENAMETOOLONG)?;
    // Before it is: a fault in between must not make its way back forgotten.
    place.put_aside.store(FINAL, Ordering::Relaxed);
    let moved = sys::rename(place.error(), replaced);
    if moved.is_err() {
        place.put_aside.store(NOTHING, Ordering::Relaxed);
    }
    moved?;
    let status = sys::status(replaced)?;
    if status.size == 0 {
        place.put_aside.store(NOTHING, Ordering::Relaxed);
        return sys::unlink(replaced);
    }
    if place.is_ours(&status) {
        place.put_aside.store(PROVISIONAL, Ordering::Relaxed);
        return Ok(());
    }
    if !is_replaceable(replaced, &status, process, new) {
        // Between the look and the rename somebody committed a record: it was first, so it gets its name back.
        let _ = sys::link(replaced, place.error());
        place.put_aside.store(NOTHING, Ordering::Relaxed);
        return sys::unlink(replaced);
    }
    Ok(())
}

fn publish_beside(
    place: &Place<'_>,
    process: &Process,
    temporary: &Temporary,
    paths: &mut Paths,
) -> Result<Outcome, Errno> {
    loop {
        let number = place.later.load(Ordering::Relaxed).saturating_add(1);
        if number > LATER_MAX {
            return Err(libc::EEXIST);
        }
        place.later.store(number, Ordering::Relaxed);
        let mut buffer = PathBuffer::new();
        let path =
            beside(place.stem(), process.id, number, &mut buffer).ok_or(libc::ENAMETOOLONG)?;
        // As with `Place::expect`: a fault right after the step must find it noted.
        let latest = place.latest.swap(BESIDE, Ordering::Relaxed);
        match temporary.publish(path, paths) {
            Ok(()) => {
                paths.beside.start(path.to_bytes());
                return Ok(Outcome::Beside);
            }
            Err(errno) => {
                place.latest.store(latest, Ordering::Relaxed);
                if errno != libc::EEXIST {
                    return Err(errno);
                }
            }
        }
    }
}

/// What covers the rest of an old file that a record is written over: JSON allows blanks behind it.
static BLANKS: [u8; 4096] = [b' '; 4096];

/// Writes the short form over a target that cannot be renamed.
///
/// A process that is killed in here leaves the old content or the new: the target is not emptied first, and the record
/// goes over it by one call, with blanks over the rest, which are cut off at last. Only what an old file has behind
/// its first page stays until then.
fn in_place(place: &Place<'_>, content: &dyn Content) -> Result<Outcome, Errno> {
    let descriptor = sys::open(place.error(), libc::O_WRONLY | libc::O_NOFOLLOW, 0)?;
    let record = content.compact();
    let old = sys::descriptor_status(descriptor).map_or(0, |status| status.size);
    let rest = old
        .min(BLANKS.len() as u64)
        .saturating_sub(record.len() as u64) as usize;
    let result = sys::write_both(descriptor, record, BLANKS.get(..rest).unwrap_or_default())
        .and_then(|()| sys::cut(descriptor, record.len() as u64));
    if result.is_ok() {
        place.hold(descriptor, FINAL, IN_PLACE);
    }
    sys::close(descriptor);
    result.map(|()| Outcome::InPlace)
}
