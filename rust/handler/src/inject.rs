//! Failures on purpose, at any stage of the handler and any of its calls on files: for the tests' build alone.
//!
//! A plan is `<stage>:<kind>`, or `<stage>:<kind>:<n>` for the n-th call on files in that stage; plans are separated by
//! commas, and the stage `all` is every stage. The kinds: `fault` reads where no memory is, `hang` never comes back,
//! `watchdog` hangs and faults in the watchdog that ends it, and of the calls `short` writes half of what it was given,
//! `enospc` finds the disk full and `eintr` is interrupted every other time. A file gets a byte for each time that one
//! of these happens: a plan that never comes to pass would prove nothing.

use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicUsize, Ordering};

use crate::sys::{self, Errno};

#[cfg(not(debug_assertions))]
compile_error!(
    "the feature `inject` breaks the handler on purpose: it is for the tests' own build"
);

const NOTHING: u8 = 0;
const FAULT: u8 = 1;
const HANG: u8 = 2;
const WATCHDOG: u8 = 3;
const SHORT: u8 = 4;
const ENOSPC: u8 = 5;
const EINTR: u8 = 6;

static PLANS: AtomicPtr<&'static str> = AtomicPtr::new(core::ptr::null_mut());
/// What happens in the running stage, at which of its calls on files (0 is its start), and how many there were.
static KIND: AtomicU8 = AtomicU8::new(NOTHING);
static AT: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);

static HAPPENED: AtomicI32 = AtomicI32::new(-1);

/// Sets what shall happen, and the descriptor that gets a byte for each time that it does; -1 is none.
pub fn plan(plans: &'static &'static str, happened: i32) {
    HAPPENED.store(happened, Ordering::Relaxed);
    PLANS.store((&raw const *plans).cast_mut(), Ordering::Release);
}

/// Begins a stage.
pub fn enter(stage: &str) {
    // SAFETY: only `plan` stores here, values that live for ever.
    let plans = unsafe { PLANS.load(Ordering::Acquire).as_ref() }.copied();
    let mut kind = NOTHING;
    let mut at = 0;
    for plan in plans.unwrap_or_default().split(',') {
        let mut parts = plan.split(':');
        if parts
            .next()
            .is_some_and(|name| name == stage || name == "all")
        {
            kind = match parts.next() {
                Some("fault") => FAULT,
                Some("hang") => HANG,
                Some("watchdog") => WATCHDOG,
                Some("short") => SHORT,
                Some("enospc") => ENOSPC,
                Some("eintr") => EINTR,
                _ => NOTHING,
            };
            at = parts.next().and_then(|text| text.parse().ok()).unwrap_or(0);
        }
    }
    CALLS.store(0, Ordering::Relaxed);
    AT.store(at, Ordering::Relaxed);
    KIND.store(kind, Ordering::Relaxed);
    if at == 0 {
        strike();
    }
}

/// Ends the stage: what follows is not meant.
pub fn leave() {
    KIND.store(NOTHING, Ordering::Relaxed);
}

/// In the watchdog's own handler.
pub(crate) fn in_watchdog() {
    if KIND.load(Ordering::Relaxed) == WATCHDOG {
        fault();
    }
}

/// Before a call on files; the errno that it ends with instead. `takes_room` is whether a full disk refuses it.
pub(crate) fn before_call(takes_room: bool) -> Result<(), Errno> {
    let calls = CALLS.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    match KIND.load(Ordering::Relaxed) {
        FAULT | HANG | WATCHDOG if calls == AT.load(Ordering::Relaxed) => strike(),
        ENOSPC if takes_room => {
            tell();
            return Err(libc::ENOSPC);
        }
        EINTR if calls % 2 == 1 => {
            tell();
            return Err(libc::EINTR);
        }
        _ => {}
    }
    Ok(())
}

/// How much of so many bytes a write takes.
pub(crate) fn taken(length: usize) -> usize {
    if KIND.load(Ordering::Relaxed) == SHORT && length > 1 {
        tell();
        length.div_ceil(2)
    } else {
        length
    }
}

fn tell() {
    sys::write_a_byte(HAPPENED.load(Ordering::Relaxed));
}

fn strike() {
    let kind = KIND.load(Ordering::Relaxed);
    if !matches!(kind, FAULT | HANG | WATCHDOG) {
        return;
    }
    tell();
    if kind == FAULT {
        return fault();
    }
    loop {
        core::hint::spin_loop();
    }
}

fn fault() {
    // SAFETY: none: it is the fault that was asked for.
    unsafe { core::ptr::without_provenance::<u8>(0x20).read_volatile() };
}
