//! A place where the records of this process go, and what this process has put there.

use core::ffi::CStr;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering,
};

use firstfault_format::files;

use crate::commit::Paths;
use crate::path::PathBuffer;
use crate::sys::{self, FileStatus};

/// The process that writes: its ID names its files, its start tells old files from its own.
#[derive(Debug, Clone, Copy)]
pub struct Process {
    /// The process ID.
    pub id: i32,
    /// When it started, nanoseconds since the Unix epoch.
    pub start_time_ns: u64,
}

/// What this process holds at the error file's own path.
pub(crate) const NOTHING: u8 = 0;
pub(crate) const PROVISIONAL: u8 = 1;
pub(crate) const FINAL: u8 = 2;

/// Where this process's latest record is.
pub(crate) const NOWHERE: u8 = 0;
pub(crate) const TARGET: u8 = 1;
pub(crate) const IN_PLACE: u8 = 2;
pub(crate) const BESIDE: u8 = 3;

/// How many later failures of one process are kept.
pub(crate) const LATER_MAX: u8 = 9;

/// How long the process waits for a file system; longer than a busy one takes, shorter than anybody's patience.
pub const PATIENCE_NS: u64 = 2_000_000_000;

/// What can be expected of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// On a file system of this node.
    Local,
    /// On a network file system, which may not answer.
    Remote,
    /// In memory on this node: for what the other places did not take, and for as long as it is not known whether they
    /// do.
    Spare,
}

/// One place where the records of this process go, and what this process has put there.
#[derive(Debug)]
pub struct Place<'a> {
    error: &'a CStr,
    stem: &'a CStr,
    directory: &'a CStr,
    kind: Kind,
    /// Whether the file system has nameless files that can be named, as far as was tried.
    is_nameless: AtomicBool,
    /// Why the last record could not be written here; 0 where it could.
    pub(crate) trouble: AtomicI32,
    pub(crate) held: AtomicU8,
    pub(crate) latest: AtomicU8,
    pub(crate) later: AtomicU8,
    /// What the last record put aside, to be put back if that record is withdrawn: `NOTHING`, `FINAL` for another's
    /// file, `PROVISIONAL` for a record of this process.
    pub(crate) put_aside: AtomicU8,
    /// The file that this process has put at the error file's path, and the one that it is about to put there: a fault
    /// between the two steps leaves it open which of them is there.
    here: Identity,
    next: Identity,
}

/// How many places of forked children are known at once: one child writes to no more.
const CHILD_PLACES: usize = 4;

/// The places that normal code has written to in a forked child, the latest ones.
static OF_CHILDREN: [AtomicPtr<Place<'static>>; CHILD_PLACES] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; CHILD_PLACES];
static OF_CHILDREN_USED: AtomicUsize = AtomicUsize::new(0);

/// Lets the handler know what a forked child has written itself. Normal context, under the caller's lock.
pub fn share_with_handler(place: &'static Place<'static>) {
    if of_child(place.error).is_some() {
        return;
    }
    let used = OF_CHILDREN_USED.fetch_add(1, Ordering::Relaxed);
    if let Some(slot) = OF_CHILDREN.get(used % CHILD_PLACES) {
        slot.store((&raw const *place).cast_mut(), Ordering::Release);
    }
}

/// Returns the place of an error file that a forked child has written to, if it has.
pub(crate) fn of_child(error: &CStr) -> Option<&'static Place<'static>> {
    let known = OF_CHILDREN.iter();
    // SAFETY: only `share_with_handler` stores here, values that live for ever.
    let mut known = known.filter_map(|slot| unsafe { slot.load(Ordering::Acquire).as_ref() });
    known.find(|place| place.error == error)
}

/// Device and inode of a file; zeros are none.
#[derive(Debug)]
struct Identity(AtomicU64, AtomicU64);

impl Identity {
    const fn none() -> Self {
        Self(AtomicU64::new(0), AtomicU64::new(0))
    }

    fn store(&self, identity: (u64, u64)) {
        self.0.store(identity.0, Ordering::Relaxed);
        self.1.store(identity.1, Ordering::Relaxed);
    }

    fn load(&self) -> (u64, u64) {
        (
            self.0.load(Ordering::Relaxed),
            self.1.load(Ordering::Relaxed),
        )
    }
}

impl<'a> Place<'a> {
    /// Returns a place for an error file: its absolute path, that path without `.json`, and its directory.
    pub const fn new(error: &'a CStr, stem: &'a CStr, directory: &'a CStr, kind: Kind) -> Self {
        Self {
            error,
            stem,
            directory,
            kind,
            is_nameless: AtomicBool::new(true),
            trouble: AtomicI32::new(0),
            held: AtomicU8::new(NOTHING),
            latest: AtomicU8::new(NOWHERE),
            later: AtomicU8::new(0),
            put_aside: AtomicU8::new(NOTHING),
            here: Identity::none(),
            next: Identity::none(),
        }
    }

    /// Returns the error file's own path.
    pub fn error(&self) -> &'a CStr {
        self.error
    }

    /// Returns the path that all files of this place begin with.
    pub fn stem(&self) -> &'a CStr {
        self.stem
    }

    /// Returns the directory of the error file.
    pub fn directory(&self) -> &'a CStr {
        self.directory
    }

    /// Returns what can be expected of it.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the permissions of a new file: in a directory that everybody shares it is for its owner alone.
    pub(crate) fn mode(&self) -> libc::mode_t {
        match self.kind {
            Kind::Spare => 0o600,
            Kind::Local | Kind::Remote => 0o666,
        }
    }

    /// Returns whether nameless files work here, as far as is known.
    pub fn is_nameless(&self) -> bool {
        self.is_nameless.load(Ordering::Relaxed)
    }

    /// Remembers that nameless files do not work here.
    pub(crate) fn need_names(&self) {
        self.is_nameless.store(false, Ordering::Relaxed);
    }

    /// Takes back the record that this process committed last, because its failure turned out to be none.
    pub fn withdraw(&self, process: &Process, paths: &mut Paths) {
        match self.latest.swap(NOWHERE, Ordering::Relaxed) {
            TARGET => {
                if sys::status(self.error).is_ok_and(|status| self.is_ours(&status)) {
                    let _ = sys::unlink(self.error);
                }
                self.held.store(NOTHING, Ordering::Relaxed);
                self.put_back(process, paths);
            }
            IN_PLACE => {
                // A mount point cannot be removed; empty, it says nothing.
                if let Ok(descriptor) = sys::open(
                    self.error,
                    libc::O_WRONLY | libc::O_TRUNC | libc::O_NOFOLLOW,
                    0,
                ) {
                    sys::close(descriptor);
                }
                self.held.store(NOTHING, Ordering::Relaxed);
            }
            BESIDE => {
                let number = self.later.load(Ordering::Relaxed);
                if let Some(path) = beside(self.stem, process.id, number, &mut paths.beside) {
                    let _ = sys::unlink(path);
                }
                self.later
                    .store(number.saturating_sub(1), Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// Gives what the withdrawn record put aside its name again.
    fn put_back(&self, process: &Process, paths: &mut Paths) {
        let held = self.put_aside.swap(NOTHING, Ordering::Relaxed);
        let Some(aside) = aside(self.stem, process.id, &mut paths.beside) else {
            return;
        };
        // Not over a record that came meanwhile.
        if held == NOTHING || sys::link(aside, self.error).is_err() {
            return;
        }
        let _ = sys::unlink(aside);
        if held == PROVISIONAL
            && let Ok(status) = sys::status(self.error)
        {
            self.here.store(status.identity);
            self.held.store(PROVISIONAL, Ordering::Relaxed);
            self.latest.store(TARGET, Ordering::Relaxed);
        }
    }

    /// Removes a record of this process that its latest one put aside.
    pub(crate) fn forget_own(&self, process: &Process, paths: &mut Paths) {
        if self.put_aside.load(Ordering::Relaxed) == PROVISIONAL
            && let Some(aside) = aside(self.stem, process.id, &mut paths.beside)
        {
            let _ = sys::unlink(aside);
            self.put_aside.store(NOTHING, Ordering::Relaxed);
        }
    }

    /// Returns whether a file is the one that this process put at the error file's path.
    pub(crate) fn is_ours(&self, status: &FileStatus) -> bool {
        let is_held = self.held.load(Ordering::Relaxed) != NOTHING;
        is_held && status.identity == self.here.load() || status.identity == self.next.load()
    }

    /// Remembers the open file as the one that the next step puts at the error file's path.
    pub(crate) fn expect(&self, descriptor: i32) {
        if let Ok(status) = sys::descriptor_status(descriptor) {
            self.next.store(status.identity);
            self.latest.store(TARGET, Ordering::Relaxed);
        }
    }

    /// Remembers the open file as the one that is now at the error file's path.
    pub(crate) fn hold(&self, descriptor: i32, held: u8, latest: u8) {
        if let Ok(status) = sys::descriptor_status(descriptor) {
            self.here.store(status.identity);
        }
        self.held.store(held, Ordering::Relaxed);
        self.latest.store(latest, Ordering::Relaxed);
    }

    /// Nothing is about to be put anywhere any more.
    pub(crate) fn settle(&self) {
        self.next.store((0, 0));
    }
}

/// Returns `<stem>.<pid>.replaced.json`.
pub(crate) fn aside<'p>(stem: &CStr, id: i32, path: &'p mut PathBuffer) -> Option<&'p CStr> {
    path.start(stem.to_bytes())
        .push(b".")
        .push_decimal(id as u64)
        .push(files::REPLACED.as_bytes())
        .as_c_str()
}

/// Returns `<stem>.<pid>.json`, and `<stem>.<pid>.2.json` and so on for more failures of the same process.
pub(crate) fn beside<'p>(
    stem: &CStr,
    id: i32,
    number: u8,
    path: &'p mut PathBuffer,
) -> Option<&'p CStr> {
    path.start(stem.to_bytes())
        .push(b".")
        .push_decimal(id as u64);
    if number > 1 {
        path.push(b".").push_decimal(u64::from(number));
    }
    path.push(files::ERROR.as_bytes()).as_c_str()
}
