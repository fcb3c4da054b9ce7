//! The black box: breadcrumbs, the step and the facts of a crash in a mapped file, which survives any death.
//!
//! A store into the mapping is all that it takes: no lock, no system call but the clock's, safe from every thread and
//! from a signal handler. A forked child has no box: the pointer to it lies in memory that fork(2) and clone(2) wipe.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};

use firstfault_format::black_box::{
    MAGIC, NONE, SIZE, Text, VERSION, WORDS, begun, checksum, crash, header, index_of, known, ring,
    state, whole,
};

use crate::context::Facts;
use crate::helper::{self, Work};
use crate::json::Writer;
use crate::sys::{self, Errno};

/// How many of the latest breadcrumbs a record holds.
pub const IN_RECORD: u64 = 32;

type Words = [AtomicU64; WORDS];

/// Memory that a forked child finds zeroed: the box of this process, null where it has none.
pub type Guard = AtomicPtr<Words>;

static GUARD: AtomicPtr<Guard> = AtomicPtr::new(core::ptr::null_mut());

/// The box's own path and that of the file which points at it, for the end of the process.
static PATHS: [AtomicPtr<core::ffi::c_char>; 2] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; 2];

/// Whether [`at_exit`] is registered; forked children inherit that.
static WATCHES_EXIT: AtomicBool = AtomicBool::new(false);

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

/// Makes a box: a new file with all its blocks, mapped, its header written. Normal context.
///
/// `pointer` is the path of a file that names this one, to be removed with it.
///
/// # Errors
/// `EEXIST` where the name is taken, `ENOSPC` where there is no room for all of it; nothing is left behind then.
pub fn create(
    path: &'static CStr,
    pointer: Option<&'static CStr>,
    header: &Header<'_>,
) -> Result<(), Errno> {
    let guard = guard()?;
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR | libc::O_NOFOLLOW;
    let descriptor = sys::open(path, flags, 0o600)?;
    let mapped = map(descriptor);
    sys::close(descriptor);
    let words = match mapped {
        Ok(words) => words,
        Err(errno) => {
            let _ = sys::unlink(path);
            return Err(errno);
        }
    };
    header.write(words);
    let pointer = pointer.map_or(core::ptr::null(), CStr::as_ptr);
    for (slot, path) in PATHS.iter().zip([path.as_ptr(), pointer]) {
        slot.store(path.cast_mut(), Ordering::Relaxed);
    }
    guard.store((&raw const *words).cast_mut(), Ordering::Release);
    publish(guard);
    if !WATCHES_EXIT.swap(true, Ordering::Relaxed) {
        // SAFETY: a function that lives for ever and takes nothing.
        unsafe { libc::atexit(at_exit) };
    }
    Ok(())
}

/// Returns the guard of this process, in a page that fork(2) wipes.
fn guard() -> Result<&'static Guard, Errno> {
    // SAFETY: as in `words`. In a forked child it is there, and holds null.
    if let Some(guard) = unsafe { GUARD.load(Ordering::Acquire).as_ref() } {
        return Ok(guard);
    }
    let length = core::mem::size_of::<Guard>();
    // SAFETY: a new private mapping touches nothing that exists.
    let start = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(sys::errno());
    }
    // SAFETY: the mapping just made. Before Linux 4.14 there is no such advice, and then no box: a child's breadcrumbs
    // would go into its parent's.
    if unsafe { libc::madvise(start, length, libc::MADV_WIPEONFORK) } != 0 {
        let errno = sys::errno();
        // SAFETY: as above; nothing points into it.
        unsafe { libc::munmap(start, length) };
        return Err(errno);
    }
    // SAFETY: zeroed, aligned to a page, never unmapped: a null pointer for ever to live in.
    Ok(unsafe { &*start.cast::<Guard>() })
}

/// Reserves the blocks, so that no store can find the disk full, and maps them.
fn map(descriptor: i32) -> Result<&'static Words, Errno> {
    loop {
        // SAFETY: takes numbers alone.
        match unsafe { libc::posix_fallocate(descriptor, 0, SIZE as libc::off_t) } {
            0 => break,
            libc::EINTR => {}
            errno => return Err(errno),
        }
    }
    // SAFETY: a new mapping touches nothing that exists.
    let start = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            SIZE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_POPULATE,
            descriptor,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(sys::errno());
    }
    // SAFETY: as long as `Words`, aligned to a page, never unmapped; other processes only read it.
    Ok(unsafe { &*start.cast::<Words>() })
}

/// Notes that something happened. Costs nothing where there is no box.
///
/// Of the name 48 bytes are kept, of name and value 96; what was cut is counted. A slot that is being written by
/// another thread, which the ring has overtaken, is left to it.
pub fn breadcrumb(name: &str, value: Option<&str>) {
    let Some(words) = words() else { return };
    let now = sys::clock_ns(libc::CLOCK_REALTIME);
    set(words, header::LAST_NS, now);
    let Some(next) = words.get(header::NEXT) else {
        return;
    };
    // Words are little-endian in the file, and so is every machine that this runs on.
    let index = next.fetch_add(1, Ordering::Relaxed);
    let Some(slot) = slot(words, index) else {
        return;
    };
    if !claim(slot, index) {
        if let Some(lost) = words.get(header::LOST) {
            lost.fetch_add(1, Ordering::Relaxed);
        }
        return;
    }
    // What is written into the slot is not seen before its sequence is odd.
    fence(Ordering::Release);
    let content = content(now, name, value);
    let sum = checksum([whole(index)].into_iter().chain(content));
    for (word, value) in slot.iter().skip(ring::TIME_NS).zip(content) {
        word.store(value, Ordering::Relaxed);
    }
    set(slot, ring::CHECKSUM, sum);
    if let Some(sequence) = slot.get(ring::SEQUENCE) {
        sequence.store(whole(index), Ordering::Release);
    }
}

fn slot(words: &Words, index: u64) -> Option<&[AtomicU64]> {
    let number = index.checked_rem(ring::SLOTS as u64)? as usize;
    let first = number
        .wrapping_mul(ring::SLOT_WORDS)
        .wrapping_add(ring::FIRST);
    words.get(first..first.wrapping_add(ring::SLOT_WORDS))
}

/// Takes a slot for this breadcrumb, unless somebody is in it or it holds a later one.
fn claim(slot: &[AtomicU64], index: u64) -> bool {
    slot.get(ring::SEQUENCE).is_some_and(|sequence| {
        let found = sequence.load(Ordering::Relaxed);
        found % 2 == 0
            && found < whole(index)
            && sequence
                .compare_exchange(found, begun(index), Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    })
}

/// The words of a slot behind its checksum.
const CONTENT: usize = ring::SLOT_WORDS - ring::TIME_NS;

fn content(now: u64, name: &str, value: Option<&str>) -> [u64; CONTENT] {
    let kept = begin(name, ring::NAME_BYTES);
    let given = value.unwrap_or_default();
    let tail = begin(given, ring::TEXT_BYTES.saturating_sub(kept.len()));
    let cut = name
        .len()
        .saturating_add(given.len())
        .saturating_sub(kept.len())
        .saturating_sub(tail.len());
    let lengths = kept.len() as u64
        | (tail.len() as u64) << 8
        | u64::from(value.is_some()) << 16
        | (cut.min(u32::MAX as usize) as u64) << 32;
    let mut text = [0_u8; ring::TEXT_BYTES];
    if let Some(room) = text.get_mut(..kept.len()) {
        room.copy_from_slice(kept.as_bytes());
    }
    if let Some(room) = text.get_mut(kept.len()..kept.len().saturating_add(tail.len())) {
        room.copy_from_slice(tail.as_bytes());
    }
    let mut content = [0; CONTENT];
    let chunks = text.chunks_exact(8).map(word_of);
    for (word, value) in content
        .iter_mut()
        .zip([now, lengths].into_iter().chain(chunks))
    {
        *word = value;
    }
    content
}

/// Returns the beginning of a text, at most so many bytes, no character cut.
fn begin(text: &str, most: usize) -> &str {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    text.get(..end).unwrap_or_default()
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
pub(crate) fn note(facts: &Facts) {
    match facts.signal {
        libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT | libc::SIGINT => note_request(facts.signal),
        _ => note_crash(facts),
    }
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

/// Removes the box of a process whose interpreter has ended: there is nothing to tell. For atexit(3).
///
/// Where native code called exit(3) under a running main function the box stays, and says so.
extern "C" fn at_exit() {
    let Some(words) = words() else { return };
    match get(words, header::STATE) {
        state::EXITING => enter(words, state::FINISHED),
        state::RUNNING => return breadcrumb("exit", Some("called by native code")),
        _ => return,
    }
    remove();
}

/// Removes the box, and the page that points at it: something else tells all that it could. Async-signal-safe.
pub fn remove() {
    if words().is_none() {
        // A forked child's parent has its own use for it.
        return;
    }
    for path in &PATHS {
        let path = path.load(Ordering::Relaxed);
        if !path.is_null() {
            // SAFETY: only `create` stores here, paths that live for ever.
            let _ = sys::unlink(unsafe { CStr::from_ptr(path) });
        }
    }
}

/// Removes the box of a process that dies by a request to end, whose snapshot has all that the box could tell.
///
/// The page that points at it is on a file system that may not answer.
pub(crate) fn remove_at_death() {
    let [_, pointer] = &PATHS;
    if pointer.load(Ordering::Relaxed).is_null() {
        return remove();
    }
    let work = Work {
        run: || {
            remove();
            true
        },
        undo: || {},
    };
    let _ = helper::TELLER.run(work, POINTER_NS);
}

/// How long the removal of that page may take.
const POINTER_NS: u64 = 50_000_000;

/// Writes the members `step` and `breadcrumbs` of a record, as far as there are any.
pub fn write_members(writer: &mut Writer<'_>) {
    let Some(words) = words() else { return };
    if get(words, header::STEP_NS) != 0 {
        writer.key("step");
        writer.number(get(words, header::STEP) as i64);
    }
    let end = get(words, header::NEXT);
    let mut is_first = true;
    for index in end.saturating_sub(IN_RECORD)..end {
        let Some(found) = Breadcrumb::read(words, index) else {
            continue;
        };
        if is_first {
            writer.key("breadcrumbs");
            writer.open(b'[');
            is_first = false;
        }
        found.write(writer);
    }
    if !is_first {
        writer.close(b']');
    }
}

/// A breadcrumb that was read back whole.
struct Breadcrumb {
    time_ns: u64,
    lengths: u64,
    text: [u8; ring::TEXT_BYTES],
}

impl Breadcrumb {
    fn read(words: &Words, index: u64) -> Option<Self> {
        let slot = slot(words, index)?;
        let sequence = slot.get(ring::SEQUENCE)?.load(Ordering::Acquire);
        if index_of(sequence) != Some(index) {
            return None;
        }
        let mut content = [0; CONTENT];
        for (copy, at) in content.iter_mut().zip(ring::TIME_NS..) {
            *copy = get(slot, at);
        }
        let sum = checksum([sequence].into_iter().chain(content));
        // Another thread may have overtaken us meanwhile; then the sum is not that of these words.
        if sum != get(slot, ring::CHECKSUM) {
            return None;
        }
        let mut text = [0; ring::TEXT_BYTES];
        let bytes = content.iter().skip(2).flat_map(|word| word.to_le_bytes());
        for (copy, byte) in text.iter_mut().zip(bytes) {
            *copy = byte;
        }
        let [time_ns, lengths, ..] = content;
        Some(Self {
            time_ns,
            lengths,
            text,
        })
    }

    fn write(&self, writer: &mut Writer<'_>) {
        let name = (self.lengths & 0xff) as usize;
        let value = ((self.lengths >> 8) & 0xff) as usize;
        writer.open(b'{');
        writer.key("time_ns");
        writer.number(self.time_ns as i64);
        writer.key("name");
        writer.string(self.text.get(..name).unwrap_or_default());
        if (self.lengths >> 16) & 1 == 1 {
            let rest = self.text.get(name..name.saturating_add(value));
            writer.key("value");
            writer.string(rest.unwrap_or_default());
        }
        writer.close(b'}');
    }
}
