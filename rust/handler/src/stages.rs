//! The stage machine: what a crash leaves, step by step, each step at its own risk.
//!
//! A valid file is committed before anything risky runs, and replaced by a richer one after. A fault inside a stage, or
//! the watchdog when a stage takes too long, enters the handler again on the same thread: the stage is marked, and the
//! nested handler goes on with the next one. The interrupted frames are abandoned, never returned to.

use core::cell::UnsafeCell;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

use crate::commit::Strength;
use crate::context::Facts;
use crate::crash_record::{self, Findings};
use crate::error_file::StageReport;
use crate::install::Configuration;
use crate::modules::{self, Module};
use crate::sys;
use crate::{abort, black_box, foreign, native, park, python_state, symbols, watchdog};

/// What is done, in this order. The facts themselves come before all stages: they cannot fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The facts go into the black box: stores alone.
    BlackBox,
    /// The file with the facts alone is committed.
    Minimal,
    /// The C++ exception in flight is asked for its text.
    CppException,
    /// The crashed thread's instruction is looked up in the memory map.
    Module,
    /// CPython dumps the crashed thread's Python stack.
    OwnPythonStack,
    /// The unwinder walks the crashed thread's native stack.
    OwnNativeStack,
    /// The other threads are stopped.
    Park,
    /// The unwinder walks their native stacks.
    OtherNativeStacks,
    /// They dump their Python stacks, one after the other.
    OtherPythonStacks,
    /// The modules' symbol tables are asked for the functions of the frames.
    Symbols,
    /// The file with everything replaces the minimal one.
    Enriched,
    /// Where the record is, if not where it was wanted, is said on stderr.
    Notice,
}

/// The stages, their names in the error file and how long each may take, nanoseconds.
const STAGES: [(Stage, &str, u64); 12] = [
    (Stage::BlackBox, "black_box", 100_000_000),
    (Stage::Minimal, "minimal", 500_000_000),
    (Stage::CppException, "cpp_exception", 100_000_000),
    (Stage::Module, "module", 100_000_000),
    (Stage::OwnPythonStack, "own_python_stack", 300_000_000),
    (Stage::OwnNativeStack, "own_native_stack", 300_000_000),
    (Stage::Park, "park", 500_000_000),
    (Stage::OtherNativeStacks, "other_native_stacks", 500_000_000),
    (
        Stage::OtherPythonStacks,
        "other_python_stacks",
        1_000_000_000,
    ),
    (Stage::Symbols, "symbols", 200_000_000),
    (Stage::Enriched, "enriched", 1_000_000_000),
    (Stage::Notice, "notice", 200_000_000),
];

/// How far a capture goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// The minimal file only: the previous handler may recover, so nothing of the process is disturbed.
    Minimal,
    /// What can be had without disturbing a process that goes on: the receiving thread's own stack. Nothing is cut
    /// short, for CPython's dumper would never serve again.
    Snapshot,
    /// The same with the other threads, which are stopped for it.
    Parked,
    /// Everything: the process is dying.
    Full,
}

const OK: u8 = 1;
const FAULT: u8 = 2;
const TIMEOUT: u8 = 3;
const FAILED: u8 = 4;

static NEXT: AtomicUsize = AtomicUsize::new(0);
static STATUS: [AtomicU8; STAGES.len()] = [const { AtomicU8::new(0) }; STAGES.len()];
static MICROSECONDS: [AtomicU32; STAGES.len()] = [const { AtomicU32::new(0) }; STAGES.len()];
static STARTED_NS: AtomicU64 = AtomicU64::new(0);
/// Where the crashed thread's text ends in the dump.
static OWN_STACK_END: AtomicUsize = AtomicUsize::new(0);

/// Whether no handler can let the process live on any more.
static SURELY_ENDS: AtomicBool = AtomicBool::new(false);

/// Other threads that crashed while this one was at work.
static OTHERS: [(AtomicI32, AtomicI32); 16] =
    [const { (AtomicI32::new(0), AtomicI32::new(0)) }; 16];
static OTHERS_USED: AtomicUsize = AtomicUsize::new(0);

/// What only the owner of the handler touches.
struct Room {
    facts: UnsafeCell<Option<Facts>>,
    module: UnsafeCell<Option<Module>>,
}

// SAFETY: one thread at a time owns the handler (`owner::OWNER`), and only it runs stages. A nested entry on that
// thread abandons the frames whose references into the room it overlaps; they are never used again.
unsafe impl Sync for Room {}

static ROOM: Room = Room {
    facts: UnsafeCell::new(None),
    module: UnsafeCell::new(None),
};

/// Starts a capture with these facts; a capture that has begun keeps its first ones.
pub(crate) fn begin(facts: Facts) {
    if NEXT.load(Ordering::Relaxed) == 0 {
        abort::collect(&facts);
        // SAFETY: see `Room`.
        unsafe { *ROOM.facts.get() = Some(facts) };
    }
}

/// Notes whether the process can live on after this capture.
pub(crate) fn note_end(is_sure: bool) {
    SURELY_ENDS.store(is_sure, Ordering::Relaxed);
}

/// Takes back what was written of a failure that was none, and forgets the capture.
pub(crate) fn withdraw(configuration: &Configuration) {
    // SAFETY: see `Room`.
    if let Some(facts) = unsafe { &*ROOM.facts.get() } {
        crash_record::withdraw(facts, configuration);
    }
    black_box::withdraw();
    reset();
}

/// Forgets a capture.
pub(crate) fn reset() {
    NEXT.store(0, Ordering::Relaxed);
    OWN_STACK_END.store(0, Ordering::Relaxed);
    note_end(false);
    foreign::forget_python_dump();
    abort::forget();
    python_state::forget();
    native::forget();
    modules::forget();
    symbols::forget();
    OTHERS_USED.store(0, Ordering::Relaxed);
    for (thread, _) in &OTHERS {
        thread.store(0, Ordering::Relaxed);
    }
    for (status, microseconds) in STATUS.iter().zip(&MICROSECONDS) {
        status.store(0, Ordering::Relaxed);
        microseconds.store(0, Ordering::Relaxed);
    }
}

/// Returns whether every stage of this depth is over.
pub(crate) fn is_done(depth: Depth) -> bool {
    NEXT.load(Ordering::Relaxed) >= end(depth)
}

/// Returns whether the record is at every place where it was wanted.
pub(crate) fn is_recorded() -> bool {
    let is_ok = |(stage, status): (&(Stage, &str, u64), &AtomicU8)| {
        matches!(stage.0, Stage::Minimal | Stage::Enriched) && status.load(Ordering::Relaxed) == OK
    };
    STAGES.iter().zip(&STATUS).any(is_ok)
}

/// Notes another thread's crash, for the file of the first.
pub(crate) fn note_other_crash(thread: i32, signal: i32) {
    let used = OTHERS_USED.fetch_add(1, Ordering::Relaxed);
    if let Some(other) = OTHERS.get(used) {
        other.1.store(signal, Ordering::Relaxed);
        // It is whole now.
        other.0.store(thread, Ordering::Release);
    }
}

/// Runs the stages up to this depth, from wherever the machine stands.
pub(crate) fn run(configuration: &Configuration, depth: Depth) {
    if !matches!(depth, Depth::Snapshot | Depth::Parked) {
        watchdog::start(configuration);
    }
    while NEXT.load(Ordering::Relaxed) < end(depth) {
        let index = NEXT.load(Ordering::Relaxed);
        let Some((stage, _, budget_ns)) = STAGES.get(index) else {
            break;
        };
        STARTED_NS.store(sys::clock_ns(libc::CLOCK_MONOTONIC), Ordering::Relaxed);
        watchdog::arm(*budget_ns);
        #[cfg(feature = "inject")]
        crate::inject::enter(STAGES.get(index).map_or("", |stage| stage.1));
        let is_apart = depth == Depth::Snapshot && *stage == Stage::OtherPythonStacks;
        let status = if !is_apart && execute(*stage, configuration, depth) {
            OK
        } else {
            FAILED
        };
        finish(index, status);
    }
    watchdog::stop();
}

/// Gives the running stage more time: a wait with an end of its own.
pub(crate) fn extend(by_ns: u64) {
    let budget_ns = STAGES
        .get(NEXT.load(Ordering::Relaxed))
        .map(|stage| stage.2);
    if let Some(budget_ns) = budget_ns {
        watchdog::arm(budget_ns.saturating_add(by_ns));
    }
}

/// Marks the running stage as one that did not come to its end; the caller goes on with [`run`].
pub(crate) fn interrupt(by_watchdog: bool) {
    let index = NEXT.load(Ordering::Relaxed);
    if STAGES
        .get(index)
        .is_some_and(|stage| stage.0 == Stage::OwnPythonStack)
        && let Some(descriptor) = foreign::prepare_python_dump(true)
    {
        note_own_stack_end(descriptor);
    }
    finish(index, if by_watchdog { TIMEOUT } else { FAULT });
}

fn finish(index: usize, status: u8) {
    #[cfg(feature = "inject")]
    crate::inject::leave();
    watchdog::arm(0);
    let took =
        sys::clock_ns(libc::CLOCK_MONOTONIC).saturating_sub(STARTED_NS.load(Ordering::Relaxed));
    if let (Some(slot), Some(time)) = (STATUS.get(index), MICROSECONDS.get(index)) {
        slot.store(status, Ordering::Relaxed);
        time.store(
            (took / 1000).min(u64::from(u32::MAX)) as u32,
            Ordering::Relaxed,
        );
    }
    NEXT.store(index.saturating_add(1), Ordering::Relaxed);
}

fn end(depth: Depth) -> usize {
    match depth {
        Depth::Minimal => 2,
        Depth::Snapshot | Depth::Parked | Depth::Full => STAGES.len(),
    }
}

fn execute(stage: Stage, configuration: &Configuration, depth: Depth) -> bool {
    // SAFETY: see `Room`.
    let facts = unsafe { &*ROOM.facts.get() };
    let Some(facts) = facts else {
        return false;
    };
    match stage {
        Stage::BlackBox => black_box::note(facts),
        Stage::Minimal => write(facts, configuration, Strength::Crash),
        Stage::CppException => {
            abort::find_exception(facts);
            true
        }
        Stage::Module => {
            let _ = modules::read_once();
            let module = facts.program_counter.and_then(modules::module_of);
            // SAFETY: see `Room`.
            unsafe { *ROOM.module.get() = module };
            module.is_some()
        }
        Stage::OwnPythonStack => dump_own_stack(facts.is_final),
        Stage::OwnNativeStack => native::walk_crashed(facts.registers.as_ref()),
        Stage::Park if depth == Depth::Snapshot => {
            park::count_only();
            python_state::look(core::iter::empty());
            false
        }
        Stage::Park => {
            park::park(configuration.park_signal, crate::install::is_captured);
            python_state::look(park::slots().iter().map(park::Slot::python));
            park::slots().iter().all(park::Slot::is_still)
        }
        Stage::OtherNativeStacks => native::walk_others(facts.registers.as_ref()),
        Stage::OtherPythonStacks => {
            let may_cut = depth == Depth::Full;
            foreign::prepare_python_dump(facts.is_final)
                .is_some_and(|descriptor| park::dump_python_stacks(descriptor, may_cut))
        }
        Stage::Symbols => symbols::read(),
        Stage::Enriched => write(facts, configuration, last_strength(configuration)),
        Stage::Notice => crash_record::tell(facts, configuration),
    }
}

fn write(facts: &Facts, configuration: &Configuration, strength: Strength) -> bool {
    let mut stages = [StageReport {
        name: "",
        status: "",
        microseconds: 0,
    }; STAGES.len()];
    let mut others = [(0, 0); OTHERS.len()];
    let findings = Findings {
        facts,
        // SAFETY: see `Room`.
        module: unsafe { (*ROOM.module.get()).as_ref() },
        own_stack_end: OWN_STACK_END.load(Ordering::Relaxed),
        other_crashes: other_crashes(&mut others),
        other_crashes_cut: OTHERS_USED
            .load(Ordering::Relaxed)
            .saturating_sub(OTHERS.len()),
        // A box whose file was cut short faults at every touch.
        has_black_box: STATUS
            .first()
            .is_some_and(|status| status.load(Ordering::Relaxed) == OK),
        // The minimal file comes before all that may fail.
        stages: match strength {
            _ if strength.is_more() => stage_reports(&mut stages),
            _ => &[],
        },
    };
    crash_record::write(&findings, configuration, strength)
}

/// How much the whole record claims: a provisional one that it carries is dropped where nothing can bring it back.
fn last_strength(configuration: &Configuration) -> Strength {
    if SURELY_ENDS.load(Ordering::Relaxed) && configuration.carries_latest() {
        Strength::Last
    } else {
        Strength::Enriched
    }
}

fn dump_own_stack(is_dying: bool) -> bool {
    let Some(descriptor) = foreign::prepare_python_dump(is_dying) else {
        return false;
    };
    foreign::dump_python_stack();
    note_own_stack_end(descriptor) > 0
}

/// What has been dumped by now is the crashed thread's.
fn note_own_stack_end(descriptor: i32) -> usize {
    let end = sys::seek(descriptor, 0, libc::SEEK_CUR).unwrap_or(0) as usize;
    OWN_STACK_END.store(end, Ordering::Relaxed);
    end
}

fn stage_reports(room: &mut [StageReport; STAGES.len()]) -> &[StageReport] {
    let done = NEXT.load(Ordering::Relaxed).min(STAGES.len());
    for (index, report) in room.iter_mut().enumerate().take(done) {
        let status = STATUS
            .get(index)
            .map_or(0, |status| status.load(Ordering::Relaxed));
        let microseconds = MICROSECONDS
            .get(index)
            .map_or(0, |time| time.load(Ordering::Relaxed));
        *report = StageReport {
            name: STAGES.get(index).map_or("", |stage| stage.1),
            status: match status {
                OK => "ok",
                FAULT => "fault",
                TIMEOUT => "timeout",
                _ => "skipped",
            },
            microseconds: u64::from(microseconds),
        };
    }
    room.get(..done).unwrap_or_default()
}

fn other_crashes(room: &mut [(i32, i32); OTHERS.len()]) -> &[(i32, i32)] {
    let mut used = 0_usize;
    for (thread, signal) in &OTHERS {
        let thread = thread.load(Ordering::Acquire);
        // One that is being noted just now is not there yet.
        if let Some(copy) = room.get_mut(used).filter(|_| thread != 0) {
            *copy = (thread, signal.load(Ordering::Relaxed));
            used = used.saturating_add(1);
        }
    }
    room.get(..used).unwrap_or_default()
}
