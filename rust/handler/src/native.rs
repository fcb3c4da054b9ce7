//! Native stacks: where a walk starts, where its frames are kept, and the walk by frame pointers that always works.
//!
//! Who reads unwind tables (`firstfault-unwind`) is a guarded foreign stage. What it has found before a fault stays.
//! A frame is kept when it lies in memory that may be executed, so a walk through a broken stack ends early and does
//! not invent callers.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::alternate_stack::has_room_for;
use crate::park;
use crate::sys::{self, MemoryPage};
use crate::{foreign, handlers, modules};

/// How many frames of the crashed thread are kept.
pub const CRASHED_FRAMES_MAX: usize = 256;
/// How many frames of any other thread are kept.
pub const OTHER_FRAMES_MAX: usize = 64;
/// How many frames of all threads together are kept: about a megabyte of the error file.
const FRAMES_MAX: usize = 16_384;
/// What the walk by unwind tables may need of a stack, with room to spare.
///
/// Measured: 36 KiB without optimization, of which a signal's frame has up to 11.
const STACK_NEEDED: usize = 48 * 1024;
/// Marks an address that a call will return to; no address of a process has this bit.
const IS_RETURN: u64 = 1 << 63;

/// The registers that a walk starts from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Registers {
    /// The instruction.
    pub program_counter: u64,
    /// The stack's end.
    pub stack_pointer: u64,
    /// The frame pointer, where the code keeps one.
    pub frame_pointer: u64,
    /// The link register of AArch64: where the innermost function returns to. 0 elsewhere.
    pub link: u64,
}

impl Registers {
    /// Returns the registers in a context that the kernel passed to a handler with `SA_SIGINFO`; `None` for null.
    #[cfg(target_arch = "x86_64")]
    pub fn of_context(context: *const c_void) -> Option<Self> {
        // SAFETY: a context that the kernel passed to a handler with SA_SIGINFO is a ucontext_t.
        let context = unsafe { context.cast::<libc::ucontext_t>().as_ref() }?;
        let register = |index: libc::c_int| {
            let value = context.uc_mcontext.gregs.get(index as usize).copied();
            value.unwrap_or(0) as u64
        };
        Some(Self {
            program_counter: register(libc::REG_RIP),
            stack_pointer: register(libc::REG_RSP),
            frame_pointer: register(libc::REG_RBP),
            link: 0,
        })
    }

    /// Returns the registers in a context that the kernel passed to a handler with `SA_SIGINFO`; `None` for null.
    #[cfg(target_arch = "aarch64")]
    pub fn of_context(context: *const c_void) -> Option<Self> {
        // SAFETY: as for x86-64.
        let context = unsafe { context.cast::<libc::ucontext_t>().as_ref() }?;
        let registers = &context.uc_mcontext;
        Some(Self {
            program_counter: registers.pc,
            stack_pointer: registers.sp,
            frame_pointer: registers.regs[29],
            link: registers.regs[30],
        })
    }

    /// Returns the registers as the caller of a function without instructions would have them: one that was called at
    /// an address where no code is. `None` where nothing looks like a call.
    pub fn after_return(&self, memory: &mut MemoryPage) -> Option<Self> {
        let (program_counter, stack_pointer) = if cfg!(target_arch = "x86_64") {
            (
                memory.word(self.stack_pointer)?,
                self.stack_pointer.checked_add(8)?,
            )
        } else {
            (self.link, self.stack_pointer)
        };
        modules::is_executable(program_counter.wrapping_sub(1)).then_some(Self {
            program_counter,
            stack_pointer,
            ..*self
        })
    }
}

/// One frame that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// The instruction, or the address that a call returns to.
    pub address: u64,
    /// An address inside the instruction: of a call, the last byte. The call may be the last thing in its function.
    pub lookup: u64,
}

/// Where the frames of one thread lie in the arena.
struct Range {
    from: AtomicUsize,
    count: AtomicUsize,
    is_cut: AtomicBool,
}

impl Range {
    const fn new() -> Self {
        Self {
            from: AtomicUsize::new(0),
            count: AtomicUsize::new(0),
            is_cut: AtomicBool::new(false),
        }
    }

    fn start(&self) {
        self.from
            .store(USED.load(Ordering::Relaxed), Ordering::Relaxed);
        self.count.store(0, Ordering::Relaxed);
        self.is_cut.store(false, Ordering::Relaxed);
    }
}

static ARENA: [AtomicU64; FRAMES_MAX] = [const { AtomicU64::new(0) }; FRAMES_MAX];
static USED: AtomicUsize = AtomicUsize::new(0);
static CRASHED: Range = Range::new();
/// By the slot of the thread.
static OTHERS: [Range; park::THREADS_MAX] = [const { Range::new() }; park::THREADS_MAX];

/// What only the owner of the handler touches.
struct Room(UnsafeCell<MemoryPage>);

// SAFETY: one thread at a time owns the handler (`owner::OWNER`), and only it walks stacks. A nested entry on that
// thread abandons the frames whose references into the room it overlaps; they are never used again.
unsafe impl Sync for Room {}

static ROOM: Room = Room(UnsafeCell::new(MemoryPage::new()));

/// The stack that a walk fills, innermost frame first.
#[derive(Debug)]
pub struct Stack {
    range: &'static Range,
    most: usize,
}

impl core::fmt::Debug for Range {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str("Range")
    }
}

impl Stack {
    /// Adds the instruction that a thread was at; returns whether there is room for more.
    pub fn push_instruction(&mut self, address: u64) -> bool {
        modules::note_use(address);
        self.push(address)
    }

    /// Adds the address that a call returns to; returns whether the walk should go on: there is room, and the address
    /// was one of code.
    pub fn push_return(&mut self, address: u64) -> bool {
        modules::note_use(address.wrapping_sub(1)) && self.push(address | IS_RETURN)
    }

    fn push(&mut self, word: u64) -> bool {
        let count = self.range.count.load(Ordering::Relaxed);
        let used = USED.load(Ordering::Relaxed);
        let Some(slot) = ARENA.get(used).filter(|_| count < self.most) else {
            self.range.is_cut.store(true, Ordering::Relaxed);
            return false;
        };
        slot.store(word, Ordering::Relaxed);
        USED.store(used.saturating_add(1), Ordering::Relaxed);
        self.range
            .count
            .store(count.saturating_add(1), Ordering::Relaxed);
        true
    }
}

/// Walks the crashed thread's stack. Returns whether more than its instruction was found.
pub fn walk_crashed(registers: Option<&Registers>) -> bool {
    let Some(registers) = registers else {
        return false;
    };
    // The stage that does it first may have faulted.
    modules::read_once();
    walk(
        &CRASHED,
        CRASHED_FRAMES_MAX,
        registers,
        has_room_for(STACK_NEEDED),
    );
    modules::read_build_ids();
    sys::close_memory();
    CRASHED.count.load(Ordering::Relaxed) > 1
}

/// Walks the stacks of the parked threads. Returns whether all have one.
pub(crate) fn walk_others(crashed: Option<&Registers>) -> bool {
    modules::read_once();
    if let (Some(registers), 0..2) = (crashed, CRASHED.count.load(Ordering::Relaxed)) {
        // The walk by tables came to nothing, or to a fault: this one cannot fault.
        walk(&CRASHED, CRASHED_FRAMES_MAX, registers, false);
    }
    let has_stack = has_room_for(STACK_NEEDED);
    let mut all = true;
    for (slot, range) in park::slots().iter().zip(&OTHERS) {
        range.start();
        match slot.registers() {
            Some(registers) => walk(range, OTHER_FRAMES_MAX, &registers, has_stack),
            None => all = false,
        }
    }
    handlers::note_modules();
    modules::read_build_ids();
    sys::close_memory();
    all
}

fn walk(range: &'static Range, most: usize, registers: &Registers, by_tables: bool) {
    range.start();
    let mut stack = Stack { range, most };
    // SAFETY: see `Room`.
    let memory = unsafe { &mut *ROOM.0.get() };
    memory.forget();
    if by_tables && foreign::unwind(registers, &mut stack, memory) {
        return;
    }
    by_frame_pointers(registers, &mut stack, memory);
}

/// Follows the chain of frame pointers; without one, the instruction and perhaps its caller are all there is.
pub fn by_frame_pointers(registers: &Registers, stack: &mut Stack, memory: &mut MemoryPage) {
    if !stack.push_instruction(registers.program_counter) {
        return;
    }
    let mut lowest = registers.stack_pointer;
    if !modules::is_executable(registers.program_counter)
        && let Some(caller) = registers.after_return(memory)
    {
        lowest = caller.stack_pointer;
        if !stack.push_return(caller.program_counter) {
            return;
        }
    }
    let mut frame = registers.frame_pointer;
    while frame >= lowest && frame.is_multiple_of(8) {
        let (Some(next), Some(address)) = (
            memory.word(frame),
            frame.checked_add(8).and_then(|at| memory.word(at)),
        ) else {
            break;
        };
        if !stack.push_return(address) {
            break;
        }
        lowest = frame.saturating_add(16);
        frame = next;
    }
}

/// Forgets all stacks: the failure was none.
pub fn forget() {
    USED.store(0, Ordering::Relaxed);
    for range in OTHERS.iter().chain([&CRASHED]) {
        range.start();
    }
}

/// Returns the crashed thread's frames, innermost first.
pub fn crashed_frames() -> impl Iterator<Item = Frame> {
    frames(&CRASHED)
}

/// Returns the frames of the thread in a parking slot, innermost first.
pub fn frames_of_slot(index: usize) -> impl Iterator<Item = Frame> {
    OTHERS.get(index).map(frames).into_iter().flatten()
}

/// Returns how many stacks have more frames than are kept.
pub fn stacks_cut() -> usize {
    let is_cut = |range: &&Range| range.is_cut.load(Ordering::Relaxed);
    OTHERS
        .iter()
        .chain([&CRASHED])
        .filter(is_cut)
        .fold(0_usize, |sum, _| sum.saturating_add(1))
}

fn frames(range: &'static Range) -> impl Iterator<Item = Frame> {
    let from = range.from.load(Ordering::Relaxed);
    let words = ARENA.get(from..).unwrap_or_default().iter();
    words.take(range.count.load(Ordering::Relaxed)).map(|word| {
        let word = word.load(Ordering::Relaxed);
        let address = word & !IS_RETURN;
        Frame {
            address,
            lookup: address.wrapping_sub(u64::from(word & IS_RETURN != 0)),
        }
    })
}
