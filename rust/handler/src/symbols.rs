//! The functions that native frames are in, as far as the modules export them: names for whoever has nothing but the
//! record.
//!
//! Only a function whose extent covers a frame gives its name: a neighbour's would be worse than none. Names stay as
//! they are exported; what makes them readable allocates, and runs in the reader.
//!
//! All is read through the kernel, so that a module which is broken or gone costs its own names. A page of a module on
//! a file server may never come: such modules are read by a helper thread, for which this one waits so long and no
//! longer.

mod exports;
mod names;

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

use names::Names;

use crate::alternate_stack::has_room_for;
use crate::helper::{self, Work};
use crate::sys::{self, MemoryPage};
use crate::{modules, native, park};

/// How long reading may take, nanoseconds; its stage has more.
const PATIENCE_NS: u64 = 150_000_000;

/// What reading may need of a stack, with room to spare; measured: less than 24 KiB without optimization.
const STACK_NEEDED: usize = 32 * 1024;

/// What one thread at a time touches: the owner of the handler, or the helper that it waits for.
struct Room {
    names: UnsafeCell<Names>,
    page: UnsafeCell<MemoryPage>,
}

// SAFETY: one thread at a time owns the handler (`owner::OWNER`), and only it uses `OWN`; a nested entry on that thread
// abandons the frames whose references into the room it overlaps. `REMOTE` is the helper's until that has ended.
unsafe impl Sync for Room {}

impl Room {
    const fn new() -> Self {
        Self {
            names: UnsafeCell::new(Names::new()),
            page: UnsafeCell::new(MemoryPage::new()),
        }
    }

    /// Finds the names that are wanted. Returns whether time sufficed.
    fn read(&self) -> bool {
        // SAFETY: see `Room`.
        let (names, page) = unsafe { (&mut *self.names.get(), &mut *self.page.get()) };
        names.read(page)
    }
}

static OWN: Room = Room::new();
/// Of modules whose files may be on a file server.
static REMOTE: Room = Room::new();
/// Whether the helper has come back: what it found may be looked at.
static HAS_REMOTE: AtomicBool = AtomicBool::new(false);

/// Finds the functions of all frames, first those of the crashed thread's modules. Returns whether all modules could be
/// asked in time.
pub(crate) fn read() -> bool {
    forget();
    if !has_room_for(STACK_NEEDED) {
        return false;
    }
    let deadline = sys::clock_ns(libc::CLOCK_MONOTONIC).saturating_add(PATIENCE_NS);
    // SAFETY: see `Room`.
    let own = unsafe { &mut *OWN.names.get() };
    own.start(deadline);
    // SAFETY: see `Room`: the helper does not run.
    let mut remote = (!helper::READER.is_busy()).then(|| unsafe { &mut *REMOTE.names.get() });
    if let Some(remote) = &mut remote {
        remote.start(deadline);
    }
    let mut is_whole = true;
    for (address, is_crashed) in addresses() {
        if own.has(address) || remote.as_ref().is_some_and(|remote| remote.has(address)) {
            continue;
        }
        match (modules::module_of(address), &mut remote) {
            (Some(module), _) if !module.is_remote => own.want(address, module.base, is_crashed),
            (Some(module), Some(remote)) => remote.want(address, module.base, is_crashed),
            (Some(_), None) => is_whole = false,
            (None, _) => {}
        }
    }
    is_whole &= OWN.read();
    sys::close_memory();
    if remote.is_some_and(|remote| !remote.is_empty()) {
        is_whole &= read_remote(deadline);
    }
    is_whole
}

/// The addresses of all frames, and whether they are the crashed thread's, which come first.
fn addresses() -> impl Iterator<Item = (u64, bool)> {
    let others = (0..park::THREADS_MAX).zip(park::slots());
    let others = others.flat_map(|(index, _)| native::frames_of_slot(index));
    let crashed = native::crashed_frames().map(|frame| (frame.lookup, true));
    crashed.chain(others.map(|frame| (frame.lookup, false)))
}

fn read_remote(deadline: u64) -> bool {
    let work = Work {
        run: || {
            let is_whole = REMOTE.read();
            sys::close_memory();
            is_whole
        },
        undo: || {},
    };
    let left = deadline.saturating_sub(sys::clock_ns(libc::CLOCK_MONOTONIC));
    let result = helper::READER.run(work, left);
    HAS_REMOTE.store(result.is_ok(), Ordering::Release);
    result == Ok(true)
}

/// Returns the exported function that covers a frame's address, where it is known.
pub(crate) fn of(address: u64) -> Option<&'static [u8]> {
    // SAFETY: see `Room`.
    let own = unsafe { &*OWN.names.get() };
    if let Some(name) = own.of(address) {
        return Some(name);
    }
    if !HAS_REMOTE.load(Ordering::Acquire) {
        return None;
    }
    // SAFETY: see `Room`: the helper has ended.
    unsafe { &*REMOTE.names.get() }.of(address)
}

/// Forgets all names: the failure was none.
pub(crate) fn forget() {
    HAS_REMOTE.store(false, Ordering::Relaxed);
    // SAFETY: see `Room`.
    unsafe { &mut *OWN.names.get() }.start(0);
}
