//! Stops the other threads by a real-time signal, lets each dump its own Python stack, and lets them go again.
//!
//! Python's dumper reads the structures of a thread that must hold still: parked, it does. A parked thread sleeps in
//! the signal's handler, on its own stack, and touches nothing. It dumps only when its turn comes, because the dumper
//! serves one thread at a time. Nothing of this exists before a crash: the signal's action is set in the dying process.

use core::ffi::c_void;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

use crate::native::Registers;
use crate::python_state::Note;
use crate::sys::{self, ThreadStatus};
use crate::{context, foreign, helper, install};

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
/// Nothing: the kernel did not take the signal, as where the user has no more pending signals.
const UNASKED: u32 = 5;

/// What a thread is to do.
const WAIT: u32 = 0;
const DUMP: u32 = 1;
const RELEASE: u32 = 2;

/// One other thread.
#[derive(Debug)]
pub struct Slot {
    thread: AtomicI32,
    /// What the kernel said of the thread before it was asked to park.
    name: [AtomicU64; 2],
    kernel_state: AtomicU8,
    /// What the thread said of its Python state.
    python: Note,
    state: AtomicU32,
    command: AtomicU32,
    /// Whether a signal was sent that ends the thread's dump.
    is_cut: AtomicBool,
    context: AtomicPtr<c_void>,
    /// Where its text is in the dump.
    from: AtomicUsize,
    to: AtomicUsize,
}

impl Slot {
    const fn new() -> Self {
        Self {
            thread: AtomicI32::new(0),
            name: [const { AtomicU64::new(0) }; 2],
            kernel_state: AtomicU8::new(0),
            python: Note::new(),
            state: AtomicU32::new(ASKED),
            command: AtomicU32::new(WAIT),
            is_cut: AtomicBool::new(false),
            context: AtomicPtr::new(core::ptr::null_mut()),
            from: AtomicUsize::new(0),
            to: AtomicUsize::new(0),
        }
    }

    /// Returns the thread's ID.
    pub fn thread(&self) -> i32 {
        self.thread.load(Ordering::Relaxed)
    }

    /// Returns the thread's name and state as they were before it was asked to park.
    pub fn status(&self) -> ThreadStatus {
        let mut name = [0; 16];
        for (bytes, word) in name.as_chunks_mut().0.iter_mut().zip(&self.name) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        ThreadStatus {
            name,
            state: self.kernel_state.load(Ordering::Relaxed),
        }
    }

    fn set_status(&self, status: &ThreadStatus) {
        for (bytes, word) in status.name.as_chunks().0.iter().zip(&self.name) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        self.kernel_state.store(status.state, Ordering::Relaxed);
    }

    /// Returns what the thread said of its Python state when it stopped.
    pub(crate) fn python(&self) -> &Note {
        &self.python
    }

    /// Returns whether the thread stopped when it was asked to, or never will.
    pub fn is_still(&self) -> bool {
        self.has_answered() || self.status().has_ended()
    }

    /// Returns whether the thread stopped when it was asked to.
    pub fn has_answered(&self) -> bool {
        !matches!(self.state.load(Ordering::Relaxed), ASKED | UNASKED)
    }

    /// Returns whether the thread may still stop.
    fn is_awaited(&self) -> bool {
        self.state.load(Ordering::Relaxed) == ASKED && !self.status().has_ended()
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

    /// Waits until the thread's state is another; returns whether it is by then.
    fn leaves(&self, state: u32, most_ns: u64) -> bool {
        let deadline = sys::clock_ns(libc::CLOCK_MONOTONIC).saturating_add(most_ns);
        while self.state.load(Ordering::Acquire) == state {
            let left = deadline.saturating_sub(sys::clock_ns(libc::CLOCK_MONOTONIC));
            if left == 0 {
                return false;
            }
            sys::futex_wait(&self.state, state, left);
        }
        true
    }

    /// Ends the thread's dump by a signal that is taken for a fault in it; returns whether it has ended.
    fn cut(&self) -> bool {
        self.is_cut.store(true, Ordering::Release);
        install::signal_of_ours()
            .is_some_and(|signal| sys::signal_thread(self.thread(), signal).is_ok())
            && self.leaves(PARKED, NEXT_ANSWER_MAX_NS)
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
/// What the kernel says of each is read before it is asked: all that are parked sleep.
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
    let deadline = sys::clock_ns(libc::CLOCK_MONOTONIC).saturating_add(PARKING_MAX_NS);
    loop {
        let answered = ANSWERED.load(Ordering::Acquire);
        let mut awaited = slots().iter().filter(|slot| slot.is_awaited());
        if awaited.next().is_none() || sys::clock_ns(libc::CLOCK_MONOTONIC) > deadline {
            return;
        }
        sys::futex_wait(&ANSWERED, answered, NEXT_ANSWER_MAX_NS);
        // An interval without an answer: a busy machine, or threads that never will.
        if ANSWERED.load(Ordering::Acquire) == answered
            && slots()
                .iter()
                .filter(|slot| slot.is_awaited())
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
            if matches!(state, LEFT | ASKED | UNASKED) {
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
        slot.python.forget();
        slot.state.store(ASKED, Ordering::Relaxed);
        slot.command.store(WAIT, Ordering::Relaxed);
        slot.is_cut.store(false, Ordering::Relaxed);
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
        sys::discard_signal(signal);
    }
}

/// Lets every parked thread dump its Python stack, the main thread first, which is the kernel's first too. Returns
/// whether all who have one did.
///
/// With `may_cut` a dump that takes too long is cut short, for which the dumper may never serve again: the process is
/// dying.
pub fn dump_python_stacks(descriptor: i32, may_cut: bool) -> bool {
    let mut position = sys::seek(descriptor, 0, libc::SEEK_CUR).unwrap_or(0) as usize;
    let mut all = true;
    for slot in slots().iter().filter(|slot| slot.has_answered()) {
        slot.command.store(DUMP, Ordering::Release);
        sys::futex_wake(&slot.command);
        let is_over = slot.leaves(PARKED, DUMP_MAX_NS) || may_cut && slot.cut();
        if !is_over {
            // It may write on at any time: what others wrote now could not be told from it.
            return false;
        }
        let end = sys::seek(descriptor, 0, libc::SEEK_CUR).unwrap_or(0) as usize;
        slot.from.store(position, Ordering::Relaxed);
        slot.to.store(end, Ordering::Relaxed);
        let is_missing = slot.python.is_pythons() && end == position;
        all &= slot.state.load(Ordering::Relaxed) != FAULTED && !is_missing;
        position = end;
    }
    all
}

/// Takes a fault of the dumper in a parked thread; returns whether it was one.
///
/// The thread goes on waiting and, once released, goes on where the parking signal found it.
///
/// # Safety
/// The context must be the one that the kernel passed to the running handler.
pub unsafe fn take_fault(own_context: *mut c_void) -> bool {
    if slots().is_empty() {
        return false;
    }
    let thread = sys::thread_id();
    let Some(slot) = slots().iter().find(|slot| slot.thread() == thread) else {
        return false;
    };
    if slot.command.load(Ordering::Acquire) != DUMP || slot.state.load(Ordering::Relaxed) != PARKED
    {
        // The signal that was to end the dump comes after its end.
        return slot.is_cut.swap(false, Ordering::AcqRel);
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
        slot.python.take();
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
        let status = sys::thread_status(thread);
        slot.set_status(&status);
        USED.store(used.saturating_add(1), Ordering::Release);
        if status.has_ended() {
            return;
        }
        match sys::signal_thread(thread, signal) {
            Ok(()) => asked = asked.saturating_add(1),
            Err(libc::ESRCH) => {
                // Gone between the look and the question.
                USED.store(used, Ordering::Release);
                seen = seen.saturating_sub(1);
            }
            Err(_) => slot.state.store(UNASKED, Ordering::Relaxed),
        }
    });
    TOTAL.store(seen, Ordering::Relaxed);
    asked
}
