//! Lists directories: four system calls each, and no allocation but for the names.

use super::read::Location;
use rustix::fs::{AtFlags, FileType, OFlags, RawDir, statat};
use std::cell::RefCell;
use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

/// Room for some hundred entries at a time; a name has at most 255 bytes.
const BUFFER: usize = 32 << 10;

/// One name in a directory.
pub(super) struct Entry {
    name: Box<[u8]>,
    pub(super) kind: FileType,
}

impl Entry {
    pub(super) fn name(&self) -> &OsStr {
        OsStr::from_bytes(&self.name)
    }

    /// Whether it is a file or a directory: nothing that does something when it is opened.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.kind, FileType::Directory | FileType::RegularFile)
    }
}

/// A directory and what is in it, by name: what is read in the order in which it is judged lies in that order in memory.
pub(super) struct Listing {
    pub(super) directory: OwnedFd,
    pub(super) entries: Vec<Entry>,
    /// How long it took to open.
    pub(super) took: Duration,
}

/// Returns what is in a directory.
///
/// What cannot be read any further ends the list; a path that is no directory, or may not be listed, is an error.
pub(super) fn list(location: Location<'_>) -> io::Result<Listing> {
    thread_local! {
        static ROOM: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(BUFFER));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let start = Instant::now();
    let directory = location.open_as(flags)?;
    let took = start.elapsed();
    let mut entries = Vec::new();
    ROOM.with_borrow_mut(|room| {
        let mut listing = RawDir::new(&directory, room.spare_capacity_mut());
        while let Some(Ok(entry)) = listing.next() {
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            entries.push(Entry {
                name: name.to_bytes().into(),
                kind: kind(&directory, name, entry.file_type()),
            });
        }
    });
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(Listing {
        directory,
        entries,
        took,
    })
}

/// Some file systems do not tell the kinds of files as they list them. Source: getdents(2), `DT_UNKNOWN`
fn kind(directory: &OwnedFd, name: &CStr, told: FileType) -> FileType {
    if told != FileType::Unknown {
        return told;
    }
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
        .map_or(told, |status| FileType::from_raw_mode(status.st_mode))
}
