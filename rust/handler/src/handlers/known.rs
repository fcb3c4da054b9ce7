//! Where the handlers below ours are, asked in normal context: a first record names them before the memory map is read.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::install;

/// How many handlers are known; one function handles many signals.
const MAX: usize = 16;
/// A longer path keeps its end, where the name is.
const PATH_MAX: usize = 256;

/// A handler's file.
struct Entry {
    /// 0 until all else is there.
    handler: AtomicUsize,
    offset: AtomicUsize,
    length: AtomicUsize,
    path: UnsafeCell<[u8; PATH_MAX]>,
}

// SAFETY: the path is written under the installer's lock before `handler` is published, and never again.
unsafe impl Sync for Entry {}

static KNOWN: [Entry; MAX] = [const {
    Entry {
        handler: AtomicUsize::new(0),
        offset: AtomicUsize::new(0),
        length: AtomicUsize::new(0),
        path: UnsafeCell::new([0; PATH_MAX]),
    }
}; MAX];

/// Remembers the file of a handler, as far as there is room. Normal context, under the installer's lock.
pub(crate) fn note(handler: usize) {
    if super::is_none(handler) || find(handler).is_some() {
        return;
    }
    let free = KNOWN
        .iter()
        .find(|entry| entry.handler.load(Ordering::Relaxed) == 0);
    let (Some(entry), Some(found)) = (free, install::locate(handler)) else {
        return;
    };
    let cut = found.path.len().saturating_sub(PATH_MAX);
    let path = found.path.get(cut..).unwrap_or_default();
    // SAFETY: see the `Sync` of this type: nobody reads it yet.
    let room = unsafe { &mut *entry.path.get() };
    for (slot, byte) in room.iter_mut().zip(path) {
        *slot = *byte;
    }
    entry.length.store(path.len(), Ordering::Relaxed);
    entry.offset.store(found.offset, Ordering::Relaxed);
    entry.handler.store(handler, Ordering::Release);
}

/// Returns the file of a handler and how far behind its first byte it is.
pub(crate) fn find(handler: usize) -> Option<(&'static [u8], usize)> {
    let entry = KNOWN
        .iter()
        .find(|entry| entry.handler.load(Ordering::Acquire) == handler)?;
    // SAFETY: see the `Sync` of this type.
    let path = unsafe { &*entry.path.get() }.get(..entry.length.load(Ordering::Relaxed))?;
    Some((path, entry.offset.load(Ordering::Relaxed)))
}
