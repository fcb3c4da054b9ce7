//! What ends a stage that takes too long, and a process whose stages do: timers of the thread that owns the handler.

use core::sync::atomic::{AtomicI32, Ordering};

use crate::install::Configuration;
use crate::sys::{self, ThreadTimer};

/// How long all stages may take together, nanoseconds: far more than their budgets and the waits for file servers.
///
/// A thread that waits for a page of a module's file, from a server that does not answer, hears no signal but SIGKILL,
/// and the watchdog's neither. The minimal file is there by then, and the launcher sees the process end.
const LAST_RESORT_NS: u64 = 20_000_000_000;

/// Ends a stage.
static WATCHDOG: Timer = Timer::none();
/// Ends the process.
static LAST_RESORT: Timer = Timer::none();

/// Makes both timers for the calling thread; a nested run goes on with those of the outer one.
pub(crate) fn start(configuration: &Configuration) {
    if LAST_RESORT.get().is_none()
        && let Some(timer) = LAST_RESORT.make(libc::SIGKILL)
    {
        timer.arm(LAST_RESORT_NS);
    }
    if WATCHDOG.get().is_some() {
        return;
    }
    let mut action = sys::default_action();
    action.sa_sigaction = crate::handle::on_watchdog as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    if sys::set_action(configuration.watchdog_signal, &action).is_ok() {
        let _ = WATCHDOG.make(configuration.watchdog_signal);
    }
}

/// Ends the running stage after so many nanoseconds from now; 0 is never.
pub(crate) fn arm(nanoseconds: u64) {
    if let Some(watchdog) = WATCHDOG.get() {
        watchdog.arm(nanoseconds);
    }
}

/// Removes both timers.
pub(crate) fn stop() {
    WATCHDOG.delete();
    LAST_RESORT.delete();
}

/// A timer's ID plus one; 0 is none.
struct Timer(AtomicI32);

impl Timer {
    const fn none() -> Self {
        Self(AtomicI32::new(0))
    }

    fn get(&self) -> Option<ThreadTimer> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            timer => Some(ThreadTimer::from_id(timer.wrapping_sub(1))),
        }
    }

    /// Makes it for the calling thread.
    fn make(&self, signal: i32) -> Option<ThreadTimer> {
        let timer = ThreadTimer::new(signal).ok()?;
        self.0.store(timer.id().wrapping_add(1), Ordering::Relaxed);
        Some(timer)
    }

    fn delete(&self) {
        if let Some(timer) = self.get() {
            timer.delete();
            self.0.store(0, Ordering::Relaxed);
        }
    }
}
