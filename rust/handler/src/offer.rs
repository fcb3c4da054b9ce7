//! Offers threads that run already, and that nobody prepared for it, an alternate signal stack.
//!
//! sigaltstack(2) serves the calling thread alone, and what it sets in a signal handler is undone by the handler's
//! return: that restores the stack which the kernel noted in the handler's context. So a handler edits the note.
//!
//! Source: Linux, kernel/signal.c, `restore_altstack`.

use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use crate::alternate_stack::{Room, SIZE};
use crate::install;
use crate::sys::{self, Errno};

/// How long one thread may take to answer: it may be where the kernel lets no signal through.
const ANSWER_MAX_NS: u64 = 50_000_000;

/// The thread that an offer is for, 0 once it has taken it up or the offer is withdrawn.
static THREAD: AtomicI32 = AtomicI32::new(0);
/// The lowest byte of the stack on offer.
static BOTTOM: AtomicUsize = AtomicUsize::new(0);
static ANSWER: AtomicU32 = AtomicU32::new(NONE);

const NONE: u32 = 0;
const TAKEN: u32 = 1;
const DECLINED: u32 = 2;

/// What a thread did with an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The stack is the thread's now.
    Taken,
    /// The thread has one.
    Declined,
    /// The thread has ended, blocks the signal, or did not answer in time.
    Missing,
}

/// The right to make offers; dropped, its signal is free again. One at a time.
#[derive(Debug)]
pub struct Offers {
    signal: i32,
}

impl Offers {
    /// Prepares a signal for them, `None` where none is free. The caller sees to it that there is one at a time.
    ///
    /// Not the parking signal: a crash meanwhile would find its action changed.
    ///
    /// # Errors
    /// The kernel refused the signal's action.
    pub fn begin() -> Result<Option<Self>, Errno> {
        let Some(signal) = install::spare_signal() else {
            return Ok(None);
        };
        let mut action = sys::default_action();
        action.sa_sigaction = on_offer as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        sys::set_action(signal, &action)?;
        Ok(Some(Self { signal }))
    }

    /// Offers a thread of this process memory for an alternate stack.
    pub fn make(&self, thread: i32, room: &Room) -> Answer {
        if sys::thread_status(thread).has_ended() || sys::thread_blocks(thread, self.signal) {
            return Answer::Missing;
        }
        ANSWER.store(NONE, Ordering::Relaxed);
        BOTTOM.store(room.bottom() as usize, Ordering::Relaxed);
        THREAD.store(thread, Ordering::Release);
        let deadline = sys::clock_ns(libc::CLOCK_MONOTONIC).saturating_add(ANSWER_MAX_NS);
        let mut is_open = sys::signal_thread(thread, self.signal).is_ok();
        loop {
            match ANSWER.load(Ordering::Acquire) {
                TAKEN => return Answer::Taken,
                DECLINED => return Answer::Declined,
                _ => {}
            }
            let left = deadline.saturating_sub(sys::clock_ns(libc::CLOCK_MONOTONIC));
            is_open &= left > 0;
            // One that has begun to answer will do so in a moment.
            if !is_open
                && THREAD
                    .compare_exchange(thread, 0, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            {
                return Answer::Missing;
            }
            sys::futex_wait(&ANSWER, NONE, left.max(1_000_000));
        }
    }
}

impl Drop for Offers {
    fn drop(&mut self) {
        sys::discard_signal(self.signal);
    }
}

extern "C" fn on_offer(_signal: libc::c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    let errno = sys::errno();
    let is_for_us = THREAD
        .compare_exchange(sys::thread_id(), 0, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok();
    // SAFETY: the kernel's context of this handler, whose frame is this function's own until it returns.
    if is_for_us && let Some(context) = unsafe { context.cast::<libc::ucontext_t>().as_mut() } {
        let stack = &mut context.uc_stack;
        let has_none = stack.ss_size == 0;
        if has_none {
            *stack = libc::stack_t {
                ss_sp: BOTTOM.load(Ordering::Relaxed) as *mut c_void,
                ss_flags: 0,
                ss_size: SIZE,
            };
        }
        ANSWER.store(if has_none { TAKEN } else { DECLINED }, Ordering::Release);
        sys::futex_wake(&ANSWER);
    }
    sys::set_errno(errno);
}
