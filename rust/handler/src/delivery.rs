//! One delivery of a signal, and how it is handed on: to what was there before us, or to the death of the process.

use core::ffi::c_void;

use firstfault_format::signals;

use crate::install::Captured;
use crate::sys;

/// One delivery of a signal.
pub(crate) struct Delivery<'a> {
    pub(crate) signal: i32,
    /// The kernel's information; null where it was lost.
    pub(crate) info: *mut libc::siginfo_t,
    /// What was interrupted; null where that was lost.
    pub(crate) context: *mut c_void,
    /// The thread's errno before.
    pub(crate) errno: sys::Errno,
    /// What was installed before us.
    pub(crate) captured: &'a Captured,
}

impl Delivery<'_> {
    /// Does what would have been done without us.
    pub(crate) fn as_if_absent(&self) {
        match self.captured.current() {
            Some(previous) if previous.action.sa_sigaction != libc::SIG_DFL => {
                self.call(&previous.action);
            }
            _ => self.die(),
        }
    }

    /// Whether a handler that returned has put back the default, and the process ends by it: the fault strikes again, or
    /// the handler has raised the signal, which waits for its mask to end.
    pub(crate) fn gave_up(&self, strikes_again: bool) -> bool {
        (strikes_again || sys::is_pending(self.signal))
            && sys::action(self.signal).is_ok_and(|action| action.sa_sigaction == libc::SIG_DFL)
    }

    /// Calls an action as the kernel would have: with its signal mask, its arguments and the thread's errno.
    pub(crate) fn call(&self, action: &libc::sigaction) {
        let mut mask = action.sa_mask;
        if action.sa_flags & libc::SA_NODEFER == 0 {
            sys::add_to_set(&mut mask, self.signal);
        }
        // SAFETY: a context that the kernel passed to a handler is a ucontext_t; its mask is the thread's before.
        if let Some(interrupted) = unsafe { self.context.cast::<libc::ucontext_t>().as_ref() } {
            sys::set_mask(
                libc::SIG_SETMASK,
                &sys::union(&interrupted.uc_sigmask, &mask),
            );
        } else {
            sys::set_mask(libc::SIG_BLOCK, &mask);
        }
        let address = action.sa_sigaction;
        if address == libc::SIG_DFL || address == libc::SIG_IGN {
            return;
        }
        sys::set_errno(self.errno);
        if action.sa_flags & libc::SA_SIGINFO != 0 {
            // SAFETY: with SA_SIGINFO whoever installed the action promised a function of this type.
            let function = unsafe {
                core::mem::transmute::<
                    usize,
                    extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut c_void),
                >(address)
            };
            function(self.signal, self.info, self.context);
        } else {
            // SAFETY: without it, one of this type.
            let function =
                unsafe { core::mem::transmute::<usize, extern "C" fn(libc::c_int)>(address) };
            function(self.signal);
        }
    }

    /// Makes the return from the handler the death of the process, as it would have been without us.
    ///
    /// The signal is queued again with the kernel's own information while it is blocked; returning unblocks it, and it
    /// strikes before another instruction of the thread runs. So exit status, core dump, `si_code` and `si_addr` are those
    /// of the original. raise(3) would change all but the first.
    pub(crate) fn die(&self) {
        let mut mask = sys::empty_set();
        sys::add_to_set(&mut mask, self.signal);
        sys::set_mask(libc::SIG_BLOCK, &mask);
        sys::strike_again(self.signal, self.info);
    }
}

/// Whether the kernel raised the signal for what the thread did, and will again when it goes on.
pub(crate) fn is_fault(info: *const libc::siginfo_t) -> bool {
    // SAFETY: the kernel's information, or null.
    unsafe { info.as_ref() }
        .is_some_and(|info| signals::is_fault(info.si_signo) && info.si_code > 0)
}
