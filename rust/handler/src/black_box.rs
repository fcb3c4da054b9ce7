//! The black box: breadcrumbs, the step and the facts of a crash in a mapped file, which survives any death.
//!
//! A store into the mapping is all that it takes: no lock, no system call but the clock's, safe from every thread and
//! from a signal handler. A forked child has no box: the pointer to it lies in memory that fork(2) and clone(2) wipe.

mod file;
mod ring;

use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use firstfault_format::black_box::{
    MAGIC, NONE, SIZE, Text, VERSION, WORDS, crash, header, known, state,
};

pub(crate) use file::remove_at_death;
pub use file::{create, remove};
pub use ring::{IN_RECORD, breadcrumb};

use crate::context::Facts;
use crate::json::Writer;
use crate::sys;

type Words = [AtomicU64; WORDS];

/// Memory that a forked child finds zeroed: the box of this process, null where it has none.
pub type Guard = AtomicPtr<Words>;

static GUARD: AtomicPtr<Guard> = AtomicPtr::new(core::ptr::null_mut());

/// Makes the box that the guard points to the one of this process.
pub fn publish(guard: &'static Guard) {
    GUARD.store((&raw const *guard).cast_mut(), Ordering::Release);
}

fn words() -> Option<&'static Words> {
    // SAFETY: only `publish` stores here, a guard that lives for ever.
    let guard = unsafe { GUARD.load(Ordering::Acquire).as_ref() }?;
    // SAFETY: null, or a mapping that is never removed.
    unsafe { guard.load(Ordering::Acquire).as_ref() }
}

/// Returns whether this process has a box.
pub fn is_open() -> bool {
    words().is_some()
}

/// What the header says of a process; `None` is unknown.
#[derive(Debug, Clone, Default)]
pub struct Header<'a> {
    /// The process ID.
    pub pid: i32,
    /// The inode of its PID namespace.
    pub pid_namespace: Option<u64>,
    /// When it started, clock ticks since boot.
    pub start_ticks: Option<u64>,
    /// When it started, nanoseconds since the Unix epoch.
    pub start_time_ns: u64,
    /// Global rank.
    pub rank: Option<u32>,
    /// Rank on its node.
    pub local_rank: Option<u32>,
    /// Number of ranks.
    pub world_size: Option<u32>,
    /// Rank of the node.
    pub group_rank: Option<u32>,
    /// How often the worker group was restarted before.
    pub attempt: Option<u32>,
    /// The boot that the ticks count from.
    pub boot_id: &'a str,
    /// The machine's name.
    pub host: &'a str,
    /// The launcher's name of the run.
    pub run_id: &'a str,
    /// torchrun's `--role`.
    pub role: &'a str,
    /// In a file that only points at the box: where that is.
    pub elsewhere: &'a [u8],
}

impl Header<'_> {
    /// Writes the header into words that are all 0: those of a mapped box, or of a page to be written.
    pub fn write(&self, words: &[AtomicU64]) {
        let now = sys::clock_ns(libc::CLOCK_REALTIME);
        let number = |value: Option<u32>| value.map_or(NONE, u64::from);
        for (at, value) in [
            (header::VERSION, VERSION),
            (header::SIZE, SIZE as u64),
            (header::PID, self.pid as i64 as u64),
            (header::PID_NAMESPACE, self.pid_namespace.unwrap_or(NONE)),
            (header::START_TICKS, self.start_ticks.unwrap_or(NONE)),
            (header::START_TIME_NS, self.start_time_ns),
            (header::INSTALL_NS, now),
            (header::STATE, state::RUNNING),
            (header::LAST_NS, now),
            (header::RANK, number(self.rank)),
            (header::LOCAL_RANK, number(self.local_rank)),
            (header::WORLD_SIZE, number(self.world_size)),
            (header::GROUP_RANK, number(self.group_rank)),
            (header::ATTEMPT, number(self.attempt)),
        ] {
            set(words, at, value);
        }
        set_text(words, header::BOOT_ID, self.boot_id.as_bytes());
        set_text(words, header::HOST, self.host.as_bytes());
        set_text(words, header::RUN_ID, self.run_id.as_bytes());
        set_text(words, header::ROLE, self.role.as_bytes());
        set_text(words, header::ELSEWHERE, self.elsewhere);
        if let Some(word) = words.get(header::MAGIC) {
            word.store(MAGIC.to_le(), Ordering::Release);
        }
    }
}

fn set(words: &[AtomicU64], at: usize, value: u64) {
    if let Some(word) = words.get(at) {
        word.store(value.to_le(), Ordering::Relaxed);
    }
}

fn get(words: &[AtomicU64], at: usize) -> u64 {
    words
        .get(at)
        .map_or(0, |word| u64::from_le(word.load(Ordering::Relaxed)))
}

/// Writes what fits, and NULs behind it.
fn set_text(words: &[AtomicU64], place: Text, text: &[u8]) {
    let mut chunks = text.chunks(8);
    for at in place.first..place.first.saturating_add(place.words) {
        set(words, at, word_of(chunks.next().unwrap_or_default()));
    }
}

fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    for (slot, byte) in word.iter_mut().zip(bytes) {
        *slot = *byte;
    }
    u64::from_le_bytes(word)
}

/// Notes the training step, which every later record says. It is no breadcrumb: it would leave room for no other.
pub fn step(number: i64) {
    let Some(words) = words() else { return };
    let now = sys::clock_ns(libc::CLOCK_REALTIME);
    set(words, header::STEP, number as u64);
    set(words, header::STEP_NS, now);
    set(words, header::LAST_NS, now);
}

/// Notes a signal: as a crash, or as the wish of another that this process ends.
///
/// Returns false for a child that shares the memory of its parent, as after vfork(2): it finds the box of that.
pub(crate) fn note(facts: &Facts) -> bool {
    let owner = words().map(|words| get(words, header::PID));
    if owner.is_some_and(|owner| owner != facts.process as i64 as u64) {
        return false;
    }
    match facts.signal {
        libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT | libc::SIGINT => note_request(facts.signal),
        _ => note_crash(facts),
    }
    true
}

/// Notes the facts of a crash; the state comes last, so that it never tells of facts that are not there.
fn note_crash(facts: &Facts) {
    let Some(words) = words() else { return };
    let mut bits = 0;
    let mut optional = |bit: u64, at: usize, value: Option<u64>| {
        if let Some(value) = value {
            bits |= bit;
            set(words, at, value);
        }
    };
    optional(
        known::CODE,
        crash::CODE,
        facts.code.map(|code| code as i64 as u64),
    );
    optional(known::ADDRESS, crash::ADDRESS, facts.address);
    optional(
        known::PROGRAM_COUNTER,
        crash::PROGRAM_COUNTER,
        facts.program_counter,
    );
    let sender = facts.sender;
    optional(
        known::SENDER,
        crash::SENDER_PID,
        sender.map(|(pid, _)| pid as i64 as u64),
    );
    optional(
        known::SENDER,
        crash::SENDER_UID,
        sender.map(|(_, uid)| u64::from(uid)),
    );
    set(words, crash::KNOWN, bits);
    set(words, crash::TIME_NS, facts.clock.time_ns);
    set(words, crash::MONOTONIC_NS, facts.clock.monotonic_ns);
    set(words, crash::TID, facts.thread as i64 as u64);
    set_text(words, crash::THREAD_NAME, &facts.thread_name);
    set(words, crash::SIGNAL, facts.signal as u64);
    set(words, header::LAST_NS, facts.clock.time_ns);
    enter(words, state::CRASHED);
}

/// Takes a crash back that was none.
pub(crate) fn withdraw() {
    if let Some(words) = words()
        && get(words, header::STATE) == state::CRASHED
    {
        enter(words, state::RUNNING);
    }
}

/// Notes that a signal asked this process to end: whatever ends it now, it is the launcher's doing.
pub fn note_request(signal: i32) {
    if let Some(words) = words() {
        let now = sys::clock_ns(libc::CLOCK_REALTIME);
        set(words, header::REQUEST_NS, now);
        set(words, header::LAST_NS, now);
        set(words, header::REQUEST_SIGNAL, signal as u64);
    }
}

/// Notes that the main function runs (again).
pub fn running() {
    change(state::EXITING, state::RUNNING);
}

/// Notes that the main function has returned, or that its failure is recorded.
pub fn exiting() {
    change(state::RUNNING, state::EXITING);
}

/// A crash stays the last word.
fn change(from: u64, to: u64) {
    let Some(words) = words() else { return };
    if let Some(state) = words.get(header::STATE) {
        let _ = state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        set(words, header::LAST_NS, sys::clock_ns(libc::CLOCK_REALTIME));
    }
}

fn enter(words: &Words, state: u64) {
    if let Some(word) = words.get(header::STATE) {
        word.store(state.to_le(), Ordering::Release);
    }
}

/// Writes the members `step` and `breadcrumbs` of a record, as far as there are any.
pub fn write_members(writer: &mut Writer<'_>) {
    let Some(words) = words() else { return };
    if get(words, header::STEP_NS) != 0 {
        writer.key("step");
        writer.number(get(words, header::STEP) as i64);
    }
    ring::write(words, writer);
}
