//! Stops the other threads by a real-time signal, lets each dump its own Python stack, and lets them go again.
//!
//! Python's dumper reads the structures of a thread that must hold still: parked, it does. A parked thread sleeps in
//! the signal's handler, on its own stack, and touches nothing. It dumps only when its turn comes, because the dumper
//! serves one thread at a time. Nothing of this exists before a crash: the signal's action is set in the dying process.

use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use crate::native::Registers;
use crate::{context, foreign, helper, sys};

/// How many threads are parked; of more, the rest is only counted.
pub const THREADS_MAX: usize = 1024;
/// How long parking goes on while threads may still answer, and how often it looks whether they may.
const PARKING_MAX_NS: u64 = 450_000_000;
const NEXT_ANSWER_MAX_NS: u64 = 20_000_000;
/// How long one thread may dump.
const DUMP_MAX_NS: u64 = 200_000_000;

/// What a thread has done.
const ASKED: u32 = 0;
const PARKED: u32 = 1;
const DUMPED: u32 = 2;
const FAULTED: u32 = 3;
const LEFT: u32 = 4;

/// What a thread is to do.
const WAIT: u32 = 0;
const DUMP: u32 = 1;
const RELEASE: u32 = 2;

/// One other thread.
#[derive(Debug)]
pub struct Slot {
    thread: AtomicI32,
    state: AtomicU32,
    command: AtomicU32,
    context: AtomicPtr<c_void>,
    /// Where its text is in the dump.
    from: AtomicUsize,
    to: AtomicUsize,
}

impl Slot {
    const fn new() -> Self {
        Self {
            thread: AtomicI32::new(0),
            state: AtomicU32::new(ASKED),
            command: AtomicU32::new(WAIT),
            context: AtomicPtr::new(core::ptr::null_mut()),
            from: AtomicUsize::new(0),
            to: AtomicUsize::new(0),
        }
    }

    /// Returns the thread's ID.
    pub fn thread(&self) -> i32 {
        self.thread.load(Ordering::Relaxed)
    }

    /// Returns whether the thread stopped when it was asked to.
    pub fn has_answered(&self) -> bool {
        self.state.load(Ordering::Relaxed) != ASKED
    }

    /// Returns where the thread stopped, `None` where it did not.
    pub fn registers(&self) -> Option<Registers> {
        matches!(
            self.state.load(Ordering::Acquire),
            PARKED | DUMPED | FAULTED
        )
        .then(|| Registers::of_context(self.context.load(Ordering::Relaxed)))
        .flatten()
    }

    /// The thread goes; nothing of the slot is its own any more.
    fn leave(&self) {
        self.state.store(LEFT, Ordering::Release);
        sys::futex_wake(&self.state);
    }

    /// Returns the range of the thread's text in the dump.
    pub fn dumped(&self) -> core::ops::Range<usize> {
        self.from.load(Ordering::Relaxed)..self.to.load(Ordering::Relaxed)
    }
}

static SLOTS: [Slot; THREADS_MAX] = [const { Slot::new() }; THREADS_MAX];
static USED: AtomicUsize = AtomicUsize::new(0);
static TOTAL: AtomicUsize = AtomicUsize::new(0);
static ANSWERED: AtomicU32 = AtomicU32::new(0);
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// Returns the other threads that were asked to park.
pub fn slots() -> &'static [Slot] {
    SLOTS
        .get(..USED.load(Ordering::Acquire))
        .unwrap_or_default()
}

/// Returns how many other threads there were.
pub fn total() -> usize {
    TOTAL.load(Ordering::Relaxed)
}

/// Stops the other threads; returns when all have answered or no more do.
///
/// `signal` must be a real-time signal that nobody else uses.
pub fn park(signal: libc::c_int, is_crash: impl Fn(libc::c_int) -> bool) {
    let mut action = sys::default_action();
    action.sa_sigaction = on_park as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    // A fault in the dumper must reach the crash handler: blocked, it would end the process at once.
    action.sa_mask = sys::all_signals_but(is_crash);
    if sys::set_action(signal, &action).is_err() {
        return;
    }
    SIGNAL.store(signal, Ordering::Relaxed);
    forget_earlier();
    // A thread may be born while the others are asked: look again until nobody is new.
    for _ in 0..3 {
        if ask_new_threads(signal) == 0 {
            break;
        }
    }
    let asked = slots().len() as u32;
    let deadline = sys::clock_ns(libc::CLOCK_MONOTONIC).saturating_add(PARKING_MAX_NS);
    loop {
        let answered = ANSWERED.load(Ordering::Acquire);
        if answered >= asked || sys::clock_ns(libc::CLOCK_MONOTONIC) > deadline {
            return;
        }
        sys::futex_wait(&ANSWERED, answered, NEXT_ANSWER_MAX_NS);
        // An interval without an answer: a busy machine, or threads that never will.
        if ANSWERED.load(Ordering::Acquire) == answered
            && slots()
                .iter()
                .filter(|slot| !slot.has_answered())
                .all(|slot| sys::thread_blocks(slot.thread(), signal))
        {
            return;
        }
    }
}

/// Counts the other threads and leaves them alone.
pub fn count_only() {
    forget_earlier();
    let own = sys::thread_id();
    let mut seen = 0_usize;
    sys::for_each_thread(|thread| {
        let is_counted = thread != own && !helper::is_helper(thread);
        seen = seen.saturating_add(usize::from(is_counted));
    });
    TOTAL.store(seen, Ordering::Relaxed);
}

/// Makes the slots free again after an earlier parking, whose failure was none: its threads have been released.
fn forget_earlier() {
    let deadline = sys::clock_ns(libc::CLOCK_MONOTONIC).saturating_add(NEXT_ANSWER_MAX_NS);
    for slot in slots() {
        loop {
            let state = slot.state.load(Ordering::Acquire);
            if state == LEFT || state == ASKED {
                break;
            }
            if sys::clock_ns(libc::CLOCK_MONOTONIC) > deadline {
                // It still runs our code with its slot.
                return;
            }
            sys::futex_wait(&slot.state, state, NEXT_ANSWER_MAX_NS);
        }
    }
    for slot in slots() {
        slot.thread.store(0, Ordering::Relaxed);
        slot.state.store(ASKED, Ordering::Relaxed);
        slot.command.store(WAIT, Ordering::Relaxed);
        slot.from.store(0, Ordering::Relaxed);
        slot.to.store(0, Ordering::Relaxed);
    }
    ANSWERED.store(0, Ordering::Relaxed);
    USED.store(0, Ordering::Release);
}

/// Lets every parked thread go on where it was.
pub fn release() {
    for slot in slots() {
        slot.command.store(RELEASE, Ordering::Release);
        sys::futex_wake(&slot.command);
    }
    let signal = SIGNAL.swap(0, Ordering::Relaxed);
    if signal != 0 {
        // A thread that did not answer may still have the signal pending: ignoring discards it, the default would
        // end the process by it.
        let mut action = sys::default_action();
        action.sa_sigaction = libc::SIG_IGN;
        let _ = sys::set_action(signal, &action);
        let _ = sys::set_action(signal, &sys::default_action());
    }
}

/// Lets every parked thread dump its Python stack, the main thread first. Returns whether all did.
pub fn dump_python_stacks(descriptor: i32, main_thread: i32) -> bool {
    let main = slots().iter().filter(|slot| slot.thread() == main_thread);
    let others = slots().iter().filter(|slot| slot.thread() != main_thread);
    let mut position = sys::seek(descriptor, 0, libc::SEEK_CUR).unwrap_or(0) as usize;
    for slot in main.chain(others).filter(|slot| slot.has_answered()) {
        slot.command.store(DUMP, Ordering::Release);
        sys::futex_wake(&slot.command);
        let deadline = sys::clock_ns(libc::CLOCK_MONOTONIC).saturating_add(DUMP_MAX_NS);
        while slot.state.load(Ordering::Acquire) == PARKED {
            if sys::clock_ns(libc::CLOCK_MONOTONIC) > deadline {
                // The dumper serves nobody else before it has returned here.
                return false;
            }
            sys::futex_wait(&slot.state, PARKED, DUMP_MAX_NS);
        }
        let end = sys::seek(descriptor, 0, libc::SEEK_CUR).unwrap_or(0) as usize;
        slot.from.store(position, Ordering::Relaxed);
        slot.to.store(end, Ordering::Relaxed);
        position = end;
        if slot.state.load(Ordering::Relaxed) == FAULTED {
            return false;
        }
    }
    true
}

/// Takes a fault of the dumper in a parked thread; returns whether it was one.
///
/// The thread goes on waiting and, once released, goes on where the parking signal found it.
///
/// # Safety
/// The context must be the one that the kernel passed to the running handler.
pub unsafe fn take_fault(own_context: *mut c_void) -> bool {
    let thread = sys::thread_id();
    let Some(slot) = slots().iter().find(|slot| slot.thread() == thread) else {
        return false;
    };
    if slot.command.load(Ordering::Acquire) != DUMP || slot.state.load(Ordering::Relaxed) != PARKED
    {
        return false;
    }
    slot.state.store(FAULTED, Ordering::Release);
    sys::futex_wake(&slot.state);
    wait_for(&slot.command, |command| command == RELEASE);
    slot.leave();
    // SAFETY: the context was passed to `on_park` in this thread, and its frame is below this one.
    unsafe { context::return_to(slot.context.load(Ordering::Relaxed), own_context) };
    true
}

extern "C" fn on_park(_signal: libc::c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    let errno = sys::errno();
    let thread = sys::thread_id();
    if let Some(slot) = slots().iter().find(|slot| slot.thread() == thread)
        && slot.command.load(Ordering::Acquire) != RELEASE
    {
        slot.context.store(context, Ordering::Relaxed);
        slot.state.store(PARKED, Ordering::Release);
        ANSWERED.fetch_add(1, Ordering::Release);
        sys::futex_wake(&ANSWERED);
        if wait_for(&slot.command, |command| command != WAIT) == DUMP {
            foreign::dump_python_stack();
            slot.state.store(DUMPED, Ordering::Release);
            sys::futex_wake(&slot.state);
            wait_for(&slot.command, |command| command == RELEASE);
        }
        slot.leave();
    }
    sys::set_errno(errno);
}

fn wait_for(command: &AtomicU32, is_due: impl Fn(u32) -> bool) -> u32 {
    loop {
        let now = command.load(Ordering::Acquire);
        if is_due(now) {
            return now;
        }
        sys::futex_wait(command, now, 1_000_000_000);
    }
}

/// Asks every thread that has no slot yet; returns how many there were.
fn ask_new_threads(signal: libc::c_int) -> usize {
    let own = sys::thread_id();
    let mut asked = 0_usize;
    let mut seen = 0_usize;
    sys::for_each_thread(|thread| {
        if thread == own || helper::is_helper(thread) {
            return;
        }
        seen = seen.saturating_add(1);
        let used = USED.load(Ordering::Relaxed);
        if slots().iter().any(|slot| slot.thread() == thread) {
            return;
        }
        let Some(slot) = SLOTS.get(used) else {
            return;
        };
        slot.thread.store(thread, Ordering::Relaxed);
        USED.store(used.saturating_add(1), Ordering::Release);
        asked = asked.saturating_add(1);
        if sys::signal_thread(thread, signal).is_err() {
            // Gone between the look and the question.
            USED.store(used, Ordering::Release);
            asked = asked.saturating_sub(1);
            seen = seen.saturating_sub(1);
        }
    });
    TOTAL.store(seen, Ordering::Relaxed);
    asked
}
