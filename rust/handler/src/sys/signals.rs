//! Signals: actions, masks, sending, and a timer that sends one.

use core::mem::MaybeUninit;

use super::{Errno, check, errno, process_id, raw, thread_id};

/// Sends a signal to one thread of this process.
pub fn signal_thread(thread: i32, signal: libc::c_int) -> Result<(), Errno> {
    // SAFETY: takes numbers alone.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, process_id(), thread, signal) };
    if result < 0 { Err(errno()) } else { Ok(()) }
}

/// Returns the calling thread's alternate signal stack. By a bare system call: there may be next to no stack.
pub fn alternate_stack() -> libc::stack_t {
    let mut present = MaybeUninit::<libc::stack_t>::zeroed();
    let room = present.as_mut_ptr().addr();
    // SAFETY: a null new stack only asks; the room is for one stack_t. Zeroed, then filled.
    unsafe {
        let _ = raw::call(libc::SYS_sigaltstack, [0, room, 0, 0, 0]);
        present.assume_init()
    }
}

/// Lets a signal that is blocked here strike the calling thread by its default action, with the same information, as
/// soon as it is unblocked. By bare system calls: there may be next to no stack.
///
/// Source: rt_tgsigqueueinfo(2); a process may send itself any information, a kernel's `si_code` too.
pub fn strike_again(signal: libc::c_int, info: *const libc::siginfo_t) {
    // The kernel's own form of an action, shorter than libc's: all zeros is the default.
    static DEFAULT: [usize; 4] = [0; 4];
    let default = (&raw const DEFAULT).addr();
    let number = signal as usize;
    let (process, thread) = (process_id() as usize, thread_id() as usize);
    // SAFETY: the kernel reads the action, and fails where the information cannot be read.
    unsafe {
        let _ = raw::call(libc::SYS_rt_sigaction, [number, default, 0, 8, 0]);
        let arguments = [process, thread, number, info.addr(), 0];
        if raw::call(libc::SYS_rt_tgsigqueueinfo, arguments).is_err() {
            let _ = raw::call(libc::SYS_tgkill, [process, thread, number, 0, 0]);
        }
    }
}

/// Returns the action of a signal.
pub fn action(signal: libc::c_int) -> Result<libc::sigaction, Errno> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null new action only asks; the room is for one sigaction.
    check(unsafe { libc::sigaction(signal, core::ptr::null(), action.as_mut_ptr()) })?;
    // SAFETY: zeroed, then filled.
    Ok(unsafe { action.assume_init() })
}

/// Sets the action of a signal.
pub fn set_action(signal: libc::c_int, action: &libc::sigaction) -> Result<(), Errno> {
    // SAFETY: the caller's sigaction lives through the call; what it points to is what it promises.
    check(unsafe { libc::sigaction(signal, &raw const *action, core::ptr::null_mut()) }).map(drop)
}

/// Sets the default action of a signal and discards what is pending of it: the default would end the process by that.
pub fn discard_signal(signal: libc::c_int) {
    let mut action = default_action();
    action.sa_sigaction = libc::SIG_IGN;
    let _ = set_action(signal, &action);
    let _ = set_action(signal, &default_action());
}

/// Returns the default action.
pub fn default_action() -> libc::sigaction {
    // SAFETY: all zeros is SIG_DFL with no flags and an empty mask.
    unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() }
}

/// Returns an empty set of signals.
pub fn empty_set() -> libc::sigset_t {
    // SAFETY: all zeros is the empty set of every libc on Linux.
    unsafe { MaybeUninit::<libc::sigset_t>::zeroed().assume_init() }
}

/// Adds a signal to a set.
pub fn add_to_set(set: &mut libc::sigset_t, signal: libc::c_int) {
    // SAFETY: the set is live; a wrong number is refused.
    unsafe { libc::sigaddset(&raw mut *set, signal) };
}

/// Returns the full set of signals but for those that the filter keeps out.
pub fn all_signals_but(kept_out: impl Fn(libc::c_int) -> bool) -> libc::sigset_t {
    let mut set = empty_set();
    for signal in 1..=64 {
        if !kept_out(signal) {
            add_to_set(&mut set, signal);
        }
    }
    set
}

/// Returns whether a signal waits for this thread, or any of the process, to unblock it.
pub fn is_pending(signal: libc::c_int) -> bool {
    let mut pending = empty_set();
    // SAFETY: the room is for one set; a wrong number is no member.
    unsafe {
        libc::sigpending(&raw mut pending) == 0
            && libc::sigismember(&raw const pending, signal) == 1
    }
}

/// Sets the signal mask of the calling thread.
pub fn set_mask(how: libc::c_int, set: &libc::sigset_t) {
    // SAFETY: the set lives through the call. sigprocmask is per thread in glibc and musl alike.
    unsafe { libc::sigprocmask(how, &raw const *set, core::ptr::null_mut()) };
}

/// Blocks more signals; returns the mask from before.
pub fn block(set: &libc::sigset_t) -> libc::sigset_t {
    let mut before = empty_set();
    // SAFETY: both sets live through the call.
    unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const *set, &raw mut before) };
    before
}

/// A timer that sends a signal to one thread.
#[derive(Debug)]
pub struct ThreadTimer(libc::timer_t);

impl ThreadTimer {
    /// Returns a timer for the calling thread.
    ///
    /// Source: timer_create(2) with `SIGEV_THREAD_ID`, by bare system call: glibc's own wrapper allocates.
    pub fn new(signal: libc::c_int) -> Result<Self, Errno> {
        // SAFETY: all zeros is a valid sigevent.
        let mut event = unsafe { MaybeUninit::<libc::sigevent>::zeroed().assume_init() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_notify_thread_id = thread_id();
        let mut timer: libc::c_int = 0;
        // SAFETY: both pointers are to live values; the kernel's timer_t is an int.
        let result = unsafe {
            libc::syscall(
                libc::SYS_timer_create,
                libc::CLOCK_MONOTONIC,
                &raw mut event,
                &raw mut timer,
            )
        };
        if result < 0 {
            return Err(errno());
        }
        Ok(Self(timer as usize as libc::timer_t))
    }

    /// Returns the timer with this ID.
    pub fn from_id(id: i32) -> Self {
        Self(id as usize as libc::timer_t)
    }

    /// Returns the kernel's ID of the timer.
    pub fn id(&self) -> i32 {
        self.0 as usize as i32
    }

    /// Sends the signal after so many nanoseconds; 0 never.
    pub fn arm(&self, after_ns: u64) {
        let mut setting = libc::itimerspec {
            it_interval: libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: libc::timespec {
                tv_sec: (after_ns / 1_000_000_000) as libc::time_t,
                tv_nsec: (after_ns % 1_000_000_000) as libc::c_long,
            },
        };
        // SAFETY: the setting lives through the call.
        unsafe {
            libc::syscall(
                libc::SYS_timer_settime,
                self.0 as usize as libc::c_int,
                0,
                &raw mut setting,
                core::ptr::null_mut::<libc::itimerspec>(),
            )
        };
    }

    /// Removes the timer.
    pub fn delete(&self) {
        // SAFETY: takes a number alone.
        unsafe { libc::syscall(libc::SYS_timer_delete, self.0 as usize as libc::c_int) };
    }
}

/// Returns the signals that are in either of two sets, one of which may be from a context that the kernel made: its mask
/// has 64 bits, and what lies behind in libc's larger type is not its own.
pub fn union(a: &libc::sigset_t, b: &libc::sigset_t) -> libc::sigset_t {
    let mut both = empty_set();
    // SAFETY: all are live, at least eight bytes long, and aligned as a C long is.
    unsafe {
        *(&raw mut both).cast::<u64>() =
            *(&raw const *a).cast::<u64>() | *(&raw const *b).cast::<u64>();
    }
    both
}
