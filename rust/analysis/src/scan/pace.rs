//! How many files are opened at once: as many as there are processors, many more where an open takes long.

use super::list::Listing;
use crate::rules::rules;
use crate::work;
use rayon::ThreadPool;
use rustix::fs::{Mode, OFlags, openat};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// An open that takes longer is one of a file system that answers from elsewhere.
const SLOW: Duration = Duration::from_millis(1);

/// So many opens wait at once for such a file system.
const MAX_WAITING: usize = 128;

/// A directory of fewer entries neither tells nor needs more threads.
const LEAST_ENTRIES: usize = 8;

/// Decided once in a scan, at the first directory that is large enough.
#[derive(Debug, Default)]
pub(super) struct Pace {
    waiting: OnceLock<Option<ThreadPool>>,
}

impl Pace {
    /// Does the work on a directory in as many threads as its file system deserves.
    pub(super) fn run<T: Send>(&self, listing: &Listing, work: impl FnOnce() -> T + Send) -> T {
        if listing.entries.len() >= LEAST_ENTRIES {
            self.waiting
                .get_or_init(|| is_slow(listing).then(many).flatten());
        }
        self.as_decided(work)
    }

    /// Returns whether opens were found to take long.
    pub(super) fn is_slow(&self) -> bool {
        matches!(self.waiting.get(), Some(Some(_)))
    }

    /// Does work on files of the same scan.
    pub(super) fn as_decided<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match self.waiting.get() {
            Some(Some(pool)) => pool.install(work),
            _ => work(),
        }
    }
}

fn many() -> Option<ThreadPool> {
    let pool = work::threads(MAX_WAITING).ok()?;
    // While the others wait for their first files, and not when all of them have one.
    pool.spawn(|| {
        rules();
    });
    Some(pool)
}

/// The quicker of two opens: any one may have waited for a processor, or for a disk to turn.
fn is_slow(listing: &Listing) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut entries = listing.entries.iter();
    let Some(entry) = entries
        .find(|entry| entry.is_plain())
        .filter(|_| listing.took > SLOW)
    else {
        return false;
    };
    let start = Instant::now();
    let _ = openat(&listing.directory, entry.name(), flags, Mode::empty());
    start.elapsed() > SLOW
}
