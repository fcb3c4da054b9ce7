//! What the kernel calls: what is captured, who is called next, and how the process dies.
//!
//! The order is always the same: capture, let the parked threads go, call what was installed before us, and if nothing
//! is left, die by the same signal as without us. Only a previous handler that we do not know is different: it may
//! recover, so it gets no more than the minimal record before it, and the record is taken back when it returns.

use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicUsize, Ordering};

use firstfault_format::signals;

use crate::context::{self, Facts};
use crate::delivery::{Delivery, is_fault};
use crate::install::{self, Configuration};
use crate::owner::{self, Claim};
use crate::stages::{self, Depth};
use crate::{abort, alternate_stack, black_box, helper, park, sys, termination};

/// What the owner is doing.
static PHASE: AtomicU8 = AtomicU8::new(CAPTURING);
/// The first delivery of the owner: where its return would lead.
static OUTER_CONTEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static OUTER_INFO: AtomicPtr<libc::siginfo_t> = AtomicPtr::new(core::ptr::null_mut());
static OUTER_SIGNAL: AtomicI32 = AtomicI32::new(0);
static OUTER_ERRNO: AtomicI32 = AtomicI32::new(0);

/// Where the owner's first frame is: what it calls runs on the stack below.
static OUTER_FRAME: AtomicUsize = AtomicUsize::new(0);

const CAPTURING: u8 = 0;
const CHAINING: u8 = 1;

/// Returns our action for a crash signal.
pub(crate) fn action() -> libc::sigaction {
    let mut action = sys::default_action();
    action.sa_sigaction = on_signal as *const () as usize;
    // The signal itself is unblocked where there is room to be interrupted by it.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    action
}

/// Returns whether an action is ours.
pub(crate) fn is_ours(action: &libc::sigaction) -> bool {
    action.sa_sigaction == on_signal as *const () as usize
}

/// The handler of every crash signal. It needs next to no stack of its own, for there may be next to none.
pub extern "C" fn on_signal(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    if alternate_stack::has_room() {
        handle(signal, info, context);
    } else {
        squeezed(signal, info, context);
    }
}

#[inline(never)]
fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    let errno = sys::errno();
    helper::take_fault();
    let (Some(captured), Some(configuration)) =
        (install::captured_signal(signal), install::configuration())
    else {
        return;
    };
    let is_complete = is_complete(signal);
    let delivery = Delivery {
        signal,
        info: if is_complete {
            info
        } else {
            core::ptr::null_mut()
        },
        context: if is_complete {
            context
        } else {
            core::ptr::null_mut()
        },
        errno,
        captured,
    };
    if install::is_captured(signal) {
        // A fault inside a stage must come back here, not end the process.
        let mut own = sys::empty_set();
        sys::add_to_set(&mut own, signal);
        sys::set_mask(libc::SIG_UNBLOCK, &own);
    }
    // SAFETY: the context is the running handler's.
    if !unsafe { park::take_fault(delivery.context) } {
        receive(&delivery, configuration);
    }
    sys::set_errno(errno);
}

/// Somebody may have put our function back without SA_SIGINFO: then there is no information, only garbage.
fn is_complete(signal: i32) -> bool {
    sys::action(signal)
        .is_ok_and(|action| !is_ours(&action) || action.sa_flags & libc::SA_SIGINFO != 0)
}

/// What is done on an alternate stack that no capture fits on: what would have been done without us.
///
/// The signal is still blocked, so that a fault for want of stack is the kernel's to answer: it ends the process. Were it
/// delivered, it would begin at the top of the same stack again, and again.
#[inline(never)]
fn squeezed(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    let previous = install::actions_below(signal)
        .filter(|captured| !captured.ends_by_default())
        .filter(|_| is_complete(signal));
    let Some(captured) = previous else {
        return sys::strike_again(signal, info);
    };
    let errno = sys::errno();
    // SAFETY: the context is the running handler's.
    if !unsafe { park::take_fault(context) } {
        let delivery = Delivery {
            signal,
            info,
            context,
            errno,
            captured,
        };
        delivery.as_if_absent();
    }
    sys::set_errno(errno);
}

/// The handler of the watchdog's signal: a stage has used up its time.
pub(crate) extern "C" fn on_watchdog(
    _signal: libc::c_int,
    _info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    let errno = sys::errno();
    if let Some(configuration) = install::configuration()
        && owner::is_own()
        && PHASE.load(Ordering::Relaxed) == CAPTURING
    {
        #[cfg(feature = "inject")]
        crate::inject::in_watchdog();
        resume(true, context, configuration);
    }
    sys::set_errno(errno);
}

/// Ends the running stage as a fault in it would, for a panic, whose message and unwinding a dying process can do
/// without. Returns where the calling thread runs no stage.
pub fn give_up_stage() {
    if !owner::is_own() || PHASE.load(Ordering::Relaxed) != CAPTURING {
        return;
    }
    if let Some(signal) = install::signal_of_ours() {
        let _ = sys::signal_thread(sys::thread_id(), signal);
    }
}

fn receive(delivery: &Delivery<'_>, configuration: &'static Configuration) {
    let is_request = signals::is_request(delivery.signal);
    if is_request {
        if !termination::is_taken() {
            return delivery.as_if_absent();
        }
        termination::note(delivery.signal);
    }
    let mut is_noted = false;
    loop {
        if recovers_as_before(delivery) {
            return;
        }
        match owner::claim() {
            Claim::Taken => return first(delivery, configuration),
            Claim::Own => {
                let now = context::stack_pointer(delivery.context);
                if !has_jumped_out(now) {
                    if is_request {
                        return delivery.as_if_absent();
                    }
                    return nested(delivery, configuration);
                }
                take_back(configuration);
            }
            Claim::Inherited(owner) => {
                stages::reset();
                install::forget_deliveries();
                owner::forget(owner);
            }
            Claim::Another => {
                if !is_noted && !is_request {
                    stages::note_other_crash(sys::thread_id(), delivery.signal);
                    is_noted = true;
                }
                if is_request {
                    black_box::note_request(delivery.signal);
                }
                if !owner::has_ended() {
                    // Its chain takes its time: this thread's own signal ends the process meanwhile.
                    return if is_request {
                        delivery.as_if_absent()
                    } else {
                        delivery.die()
                    };
                }
            }
        }
    }
}

/// A handler that recovered once is called first, as if we were not here.
fn recovers_as_before(delivery: &Delivery<'_>) -> bool {
    if !delivery.captured.recovers.load(Ordering::Relaxed) {
        return false;
    }
    let Some(previous) = delivery.captured.current() else {
        return false;
    };
    delivery.call(&previous.action);
    let has_given_up = delivery.gave_up(is_fault(delivery.info));
    if has_given_up {
        delivery.captured.exhaust();
    }
    !has_given_up
}

/// Whether a handler that returned has put back and raised what was there before it, and that let the process go on.
///
/// So does faulthandler's, above a signal that is ignored or handled in Python.
fn lives_on(delivery: &Delivery<'_>) -> bool {
    let has_run = sys::action(delivery.signal).is_ok_and(|action| !is_ours(&action));
    has_run && !delivery.gave_up(outer_is_fault())
}

/// Whether the owner's delivery began by a fault, whatever handlers have raised since.
fn outer_is_fault() -> bool {
    is_fault(OUTER_INFO.load(Ordering::Relaxed))
}

/// Whether the handler that was called next has left by siglongjmp(3): the thread is on its stack no more.
fn has_jumped_out(stack_pointer: Option<usize>) -> bool {
    let frame = OUTER_FRAME.load(Ordering::Relaxed);
    let below = frame.saturating_sub(alternate_stack::SIZE)..frame;
    PHASE.load(Ordering::Acquire) == CHAINING
        && stack_pointer.is_some_and(|pointer| !below.contains(&pointer))
}

/// Takes back the record of the owner's delivery, whose handler has recovered without returning.
fn take_back(configuration: &Configuration) {
    if let Some(captured) = install::captured_signal(OUTER_SIGNAL.load(Ordering::Relaxed)) {
        captured.recovers.store(true, Ordering::Relaxed);
        captured.used.store(0, Ordering::Relaxed);
    }
    stages::withdraw(configuration);
    owner::give_up();
}

/// Notices, in normal code, that a handler has left by siglongjmp(3): then there was no failure.
pub fn notice_survival() {
    let here = 0_u8;
    let stack_pointer = (&raw const here).addr();
    if owner::is_own()
        && has_jumped_out(Some(stack_pointer))
        && let Some(configuration) = install::configuration()
    {
        take_back(configuration);
    }
}

fn first(delivery: &Delivery<'_>, configuration: &'static Configuration) {
    let frame = 0_u8;
    OUTER_FRAME.store((&raw const frame).addr(), Ordering::Relaxed);
    OUTER_CONTEXT.store(delivery.context, Ordering::Relaxed);
    OUTER_INFO.store(delivery.info, Ordering::Relaxed);
    OUTER_SIGNAL.store(delivery.signal, Ordering::Relaxed);
    OUTER_ERRNO.store(delivery.errno, Ordering::Relaxed);
    PHASE.store(CAPTURING, Ordering::Release);
    block_all_but_crashes(configuration);
    // SAFETY: the kernel's information, or null.
    let info = unsafe { delivery.info.as_ref() };
    let mut facts = Facts::new(delivery.signal, info, delivery.context);
    facts.is_final = !lives_on_by_itself(delivery);
    stages::begin(facts);
    deliver(delivery, configuration);
}

/// The same thread again: a stage has faulted, or the handler that was called next has raised.
fn nested(delivery: &Delivery<'_>, configuration: &'static Configuration) {
    if PHASE.load(Ordering::Acquire) == CAPTURING {
        resume(false, delivery.context, configuration);
    } else {
        deliver(delivery, configuration);
    }
}

/// Goes on with the stage after the one that was interrupted, in place of the frames below this one.
fn resume(by_watchdog: bool, own_context: *mut c_void, configuration: &'static Configuration) {
    stages::interrupt(by_watchdog);
    let signal = OUTER_SIGNAL.load(Ordering::Relaxed);
    let Some(captured) = install::captured_signal(signal) else {
        return;
    };
    // SAFETY: both contexts are this thread's, and the outer frame is below this one.
    unsafe { context::return_to(OUTER_CONTEXT.load(Ordering::Relaxed), own_context) };
    let delivery = Delivery {
        signal,
        info: OUTER_INFO.load(Ordering::Relaxed),
        context: own_context,
        errno: OUTER_ERRNO.load(Ordering::Relaxed),
        captured,
    };
    deliver(&delivery, configuration);
}

/// Whether a handler of the program's own answers a request to end.
fn lives_on_by_itself(delivery: &Delivery<'_>) -> bool {
    let previous = delivery.captured.current();
    signals::is_request(delivery.signal)
        && previous.is_some_and(|previous| previous.action.sa_sigaction != libc::SIG_DFL)
}

/// Leaves a snapshot, then does what would have been done without us.
fn deliver_request(delivery: &Delivery<'_>, configuration: &'static Configuration) {
    let lives_on = lives_on_by_itself(delivery);
    match termination::depth(!lives_on) {
        Some(depth) => capture(depth, configuration),
        None => black_box::note_request(delivery.signal),
    }
    if lives_on {
        // Before the handler, which may do what it likes: exit, crash, or jump out.
        stages::reset();
        end_delivery(delivery, configuration, false);
    } else if stages::is_recorded() && !sys::is_init() {
        black_box::remove_at_death();
    }
    delivery.as_if_absent();
}

/// Captures as much as the next action allows, then hands the signal on.
fn deliver(delivery: &Delivery<'_>, configuration: &'static Configuration) {
    if signals::is_request(delivery.signal) {
        return deliver_request(delivery, configuration);
    }
    loop {
        let previous = delivery
            .captured
            .current()
            .filter(|previous| previous.action.sa_sigaction != libc::SIG_DFL);
        let Some(previous) = previous else {
            stages::note_end(true);
            capture(Depth::Full, configuration);
            return delivery.die();
        };
        if previous.is_known {
            stages::note_end(outer_is_fault() || delivery.captured.surely_ends());
            capture(Depth::Full, configuration);
            delivery.captured.used.fetch_add(1, Ordering::Relaxed);
            delivery.call(&previous.action);
            if !owner::is_own() {
                // It raised the signal once more, and what ours called then let the process live.
                return;
            }
            if lives_on(delivery) {
                return end_delivery(delivery, configuration, !outer_is_fault());
            }
            // It was switched off and did nothing: the one below is next.
            continue;
        }
        capture(Depth::Minimal, configuration);
        delivery.call(&previous.action);
        if delivery.gave_up(outer_is_fault()) {
            delivery.captured.exhaust();
            continue;
        }
        delivery.captured.recovers.store(true, Ordering::Relaxed);
        return end_delivery(delivery, configuration, true);
    }
}

/// Ends a delivery after which the process goes on; takes the record back where there was no failure.
fn end_delivery(delivery: &Delivery<'_>, configuration: &Configuration, withdraw: bool) {
    if withdraw {
        stages::withdraw(configuration);
        if delivery.signal == libc::SIGABRT && sys::is_init() {
            abort::note_survival(sys::thread_id());
        }
    }
    delivery.captured.drop_used();
    owner::give_up();
}

fn capture(depth: Depth, configuration: &'static Configuration) {
    if !stages::is_done(depth) {
        PHASE.store(CAPTURING, Ordering::Release);
        stages::run(configuration, depth);
    }
    if depth != Depth::Minimal {
        park::release();
    }
    PHASE.store(CHAINING, Ordering::Release);
}

/// Nothing but a fault of ours or the watchdog may interrupt a capture.
fn block_all_but_crashes(configuration: &Configuration) {
    let watchdog = configuration.watchdog_signal;
    let mask = sys::all_signals_but(|signal| signal == watchdog || install::is_captured(signal));
    sys::set_mask(libc::SIG_SETMASK, &mask);
}
