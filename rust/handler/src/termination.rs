//! Requests to end (SIGTERM, SIGHUP, SIGQUIT): who gets a snapshot of them, and where it goes.
//!
//! They are taken in the process that was activated, not in its children: a pool ends its workers by SIGTERM every day.
//! What was there before is done as without us: the default ends the process, a handler of the program's own is called
//! and may let it live. So a living process is disturbed as little as can be, and leaves one snapshot at most.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, Ordering};

use firstfault_format::signals;

use crate::context::Facts;
use crate::handle;
use crate::install::{self, Captured, Configuration, Places, Previous};
use crate::stages::Depth;
use crate::sys::{self, Errno};

/// How much a snapshot disturbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Snapshot {
    /// There is none; that the request came is remembered all the same.
    Off = 0,
    /// Other threads are stopped only where the process is dying.
    Own = 1,
    /// Other threads are stopped though the process may live on.
    All = 2,
}

/// The process whose requests are taken; 0 is none.
static PROCESS: AtomicI32 = AtomicI32::new(0);
static SNAPSHOT: AtomicU8 = AtomicU8::new(Snapshot::Own as u8);
static PLACES: AtomicPtr<Places> = AtomicPtr::new(core::ptr::null_mut());
/// The process that got a SIGTERM; a child forked later did not.
static RECEIVED: AtomicI32 = AtomicI32::new(0);
/// Whether a handler that lets the process live had its snapshot.
static IS_DONE: AtomicBool = AtomicBool::new(false);

/// Says where the files of requests to end go; they are the calling process's own business from now on.
pub fn configure(places: &'static Places, snapshot: Snapshot) {
    PLACES.store((&raw const *places).cast_mut(), Ordering::Release);
    SNAPSHOT.store(snapshot as u8, Ordering::Relaxed);
    PROCESS.store(sys::process_id(), Ordering::Release);
}

/// Takes requests to end.
///
/// A handler that is there is kept and called after the snapshot. One that came after ours is left above it, but for
/// Python's own, which knows nothing of what was there before it; a signal that is ignored stays so.
///
/// # Errors
/// The kernel refused an action, or too many handlers were stacked.
pub fn install() -> Result<(), Errno> {
    for (signal, captured) in requests() {
        let found = sys::action(signal)?;
        let once = found.sa_flags & libc::SA_RESETHAND != 0;
        if found.sa_sigaction == libc::SIG_IGN || handle::is_ours(&found) || once {
            continue;
        }
        let first_time = captured.is_empty();
        if first_time || found.sa_sigaction == libc::SIG_DFL || is_pythons(&found) {
            captured.push(Previous {
                action: found,
                is_known: false,
            })?;
            sys::set_action(signal, &action_over(&found))?;
        }
    }
    Ok(())
}

/// Puts back what was there before, where ours is in force: for a forked child.
pub fn restore() {
    for (signal, captured) in requests() {
        if sys::action(signal).is_ok_and(|action| handle::is_ours(&action))
            && let Some(previous) = captured.current()
        {
            let _ = sys::set_action(signal, &previous.action);
        }
    }
}

/// Returns whether this process got a SIGTERM: a failure after it is not what the job died of.
pub fn is_received() -> bool {
    RECEIVED.load(Ordering::Acquire) == sys::process_id()
}

/// Our action, which interrupts and blocks what the one below it would.
fn action_over(previous: &libc::sigaction) -> libc::sigaction {
    let mut action = handle::action();
    if previous.sa_sigaction != libc::SIG_DFL {
        action.sa_flags |= previous.sa_flags & (libc::SA_RESTART | libc::SA_NODEFER);
        action.sa_mask = previous.sa_mask;
    }
    action
}

/// Whether this is the function by which CPython notes a signal for a handler in Python.
///
/// Of the handlers in its module, faulthandler's have one of these flags. Source: Modules/faulthandler.c,
/// Python/pylifecycle.c, `PyOS_setsig`.
fn is_pythons(action: &libc::sigaction) -> bool {
    action.sa_flags & (libc::SA_NODEFER | libc::SA_RESTART) == 0
        && install::is_in_module_of(action, install::interpreter_address())
}

fn requests() -> impl Iterator<Item = (i32, &'static Captured)> {
    signals::SIGNALS
        .iter()
        .filter(|signal| signal.request)
        .filter_map(|signal| Some((signal.number, install::captured_signal(signal.number)?)))
}

/// Returns whether a request to end is the calling process's own business.
pub(crate) fn is_taken() -> bool {
    PROCESS.load(Ordering::Acquire) == sys::process_id()
}

/// Remembers a request; a process that lives on after SIGHUP or SIGQUIT was not asked to end.
pub(crate) fn note(signal: i32) {
    if signal == libc::SIGTERM {
        RECEIVED.store(sys::process_id(), Ordering::Release);
    }
}

/// Returns how deep a snapshot goes, `None` for no snapshot.
pub(crate) fn depth(is_dying: bool) -> Option<Depth> {
    let snapshot = SNAPSHOT.load(Ordering::Relaxed);
    if snapshot == Snapshot::Off as u8 {
        None
    } else if is_dying {
        Some(Depth::Full)
    } else if IS_DONE.swap(true, Ordering::Relaxed) {
        None
    } else if snapshot == Snapshot::All as u8 {
        Some(Depth::Parked)
    } else {
        Some(Depth::Snapshot)
    }
}

/// Returns where a record with these facts goes.
pub(crate) fn places(facts: &Facts, configuration: &Configuration) -> Places {
    if signals::is_request(facts.signal) || facts.is_late {
        // SAFETY: only `configure` stores here, values that live for ever.
        if let Some(places) = unsafe { PLACES.load(Ordering::Acquire).as_ref() } {
            return places;
        }
    }
    configuration.places
}
