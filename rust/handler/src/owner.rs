//! Which thread handles a crash: one at a time, and those that crash meanwhile wait for what becomes of it.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::sys;

/// The thread that handles a crash: process ID in the upper half, thread ID in the lower; 0 is nobody.
static OWNER: AtomicU64 = AtomicU64::new(0);
/// Changes when an owner gives up ownership, for those who wait for it.
static OWNER_CHANGED: AtomicU32 = AtomicU32::new(0);

/// How long a thread that crashed second waits for the first one to end the process.
const LOSER_WAITS_NS: u64 = 10_000_000_000;

/// Who handles the crash that a thread has come with.
pub(crate) enum Claim {
    /// The calling thread, from now on.
    Taken,
    /// The calling thread, since its earlier delivery.
    Own,
    /// Another thread of this process.
    Another,
    /// A thread of another process, which does not exist here: of the one that this one was forked from, or of a child
    /// that shared the memory of this one, as after vfork(2).
    Inherited(u64),
}

/// Makes the calling thread the owner where there is none.
pub(crate) fn claim() -> Claim {
    let key = own_key();
    match OWNER.compare_exchange(0, key, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Claim::Taken,
        Err(owner) if owner == key => Claim::Own,
        Err(owner) if owner >> 32 != key >> 32 => Claim::Inherited(owner),
        Err(_) => Claim::Another,
    }
}

/// Forgets an owner that was inherited.
pub(crate) fn forget(inherited: u64) {
    let _ = OWNER.compare_exchange(inherited, 0, Ordering::AcqRel, Ordering::Relaxed);
}

/// Whether it is the calling thread.
pub(crate) fn is_own() -> bool {
    OWNER.load(Ordering::Acquire) == own_key()
}

/// Waits for the owner to end the process; returns whether it has ended its delivery instead.
pub(crate) fn has_ended() -> bool {
    let deadline = sys::clock_ns(libc::CLOCK_MONOTONIC).saturating_add(LOSER_WAITS_NS);
    loop {
        let seen = OWNER_CHANGED.load(Ordering::Acquire);
        if OWNER.load(Ordering::Acquire) == 0 {
            return true;
        }
        let left = deadline.saturating_sub(sys::clock_ns(libc::CLOCK_MONOTONIC));
        if left == 0 {
            return false;
        }
        // The parking signal ends it early.
        sys::futex_wait(&OWNER_CHANGED, seen, left);
    }
}

/// Lets the next one that waits have its turn.
pub(crate) fn give_up() {
    OWNER.store(0, Ordering::Release);
    OWNER_CHANGED.fetch_add(1, Ordering::Release);
    sys::futex_wake(&OWNER_CHANGED);
}

fn own_key() -> u64 {
    let process = u64::from(sys::process_id().unsigned_abs());
    (process << 32) | u64::from(sys::thread_id().unsigned_abs())
}
