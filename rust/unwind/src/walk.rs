//! The walk itself: runs in the signal handler, after the first commit.

use core::cell::UnsafeCell;

use firstfault_handler::native::{Registers, Stack};
use firstfault_handler::sys::MemoryPage;
use firstfault_handler::{foreign, modules};

use crate::row::{self, Context, Told};
use crate::rule::{Kept, Rule};
use crate::signal_frame;
use crate::tables::Tables;

/// Lets the handler walk native stacks by unwind tables.
pub fn install() {
    foreign::set_unwinder(walk);
}

/// What only the owner of the handler touches.
struct Room(UnsafeCell<Kept>);

// SAFETY: one thread at a time owns the handler, and only it walks. A nested entry on that thread abandons the frames
// whose references into the room it overlaps; they are never used again.
unsafe impl Sync for Room {}

static ROOM: Room = Room(UnsafeCell::new(Kept::new()));

/// A function on a stack that was called, or interrupted.
struct Frame {
    registers: Registers,
    /// Whether its program counter is where a call returns to, else an instruction.
    is_after_call: bool,
}

impl Frame {
    fn at(registers: Registers) -> Self {
        Self {
            registers,
            is_after_call: false,
        }
    }

    fn after_call(registers: Registers) -> Self {
        Self {
            registers,
            is_after_call: true,
        }
    }

    /// Returns an address inside the instruction. The call may be the last thing in its function.
    fn lookup(&self) -> u64 {
        let back = u64::from(self.is_after_call);
        self.registers.program_counter.wrapping_sub(back)
    }
}

/// Walks a stack by the modules' unwind tables, by frame pointers where a module has none.
pub fn walk(start: &Registers, stack: &mut Stack, memory: &mut MemoryPage) {
    if !stack.push_instruction(start.program_counter) {
        return;
    }
    let mut frame = Frame::at(*start);
    if !modules::is_executable(start.program_counter) {
        // A call to where no code is: the caller is what the call itself left behind.
        let Some(caller) = start.after_return(memory) else {
            return;
        };
        if !stack.push_return(caller.program_counter) {
            return;
        }
        frame = Frame::after_call(caller);
    }
    // SAFETY: see `Room`.
    let kept = unsafe { &mut *ROOM.0.get() };
    kept.renew();
    while let Some(caller) = caller(&frame, kept, memory) {
        let address = caller.registers.program_counter;
        let goes_on = if caller.is_after_call {
            // Every caller's frame is above its callee's; AArch64's innermost function may have none at all.
            let is_above = caller.registers.stack_pointer > frame.registers.stack_pointer;
            (is_above || !frame.is_after_call) && stack.push_return(address)
        } else {
            stack.push_instruction(address)
        };
        if !goes_on {
            return;
        }
        frame = caller;
    }
}

/// Returns the frame that the stack goes on with, `None` at its end.
fn caller(frame: &Frame, kept: &mut Kept, memory: &mut MemoryPage) -> Option<Frame> {
    let lookup = frame.lookup();
    let registers = &frame.registers;
    let by = |rule: Rule, memory: &mut MemoryPage| {
        let caller = rule.apply(registers, memory)?;
        Some(Frame::after_call(caller))
    };
    if let Some(rule) = kept.find(lookup) {
        return by(rule, memory);
    }
    let Some(tables) = modules::module_of(lookup).and_then(|module| Tables::of(module.base)) else {
        return by(Rule::FRAME_POINTER, memory);
    };
    let entry = tables.entry(lookup);
    if entry
        .as_ref()
        .is_none_or(|entry| entry.is_signal_trampoline())
        && signal_frame::is_return(registers.program_counter, memory)
    {
        // A handler of somebody's: below its frame is what the signal interrupted.
        return signal_frame::interrupted(registers.stack_pointer, memory).map(Frame::at);
    }
    let Some(entry) = entry else {
        // Code that was written by hand; what was interrupted in it has most likely not touched the stack.
        let rule = if frame.is_after_call {
            Rule::FRAME_POINTER
        } else {
            Rule::UNTOUCHED
        };
        return by(rule, memory);
    };
    let mut context = Context::new_in();
    let row = entry
        .unwind_info_for_address(&tables.frames, &tables.bases, &mut context, lookup)
        .ok();
    let told =
        row.and_then(|row| row::told(row, &tables, entry.cie().encoding(), registers, memory));
    match told {
        Some(Told::Rule(rule)) => {
            kept.keep(lookup, rule);
            by(rule, memory)
        }
        Some(Told::Caller(caller)) => Some(Frame::after_call(caller)),
        None => by(Rule::FRAME_POINTER, memory),
    }
}
