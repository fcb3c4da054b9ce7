//! The walk itself: runs in the signal handler, after the first commit.

use firstfault_handler::modules;
use firstfault_handler::native::{self, Registers, Stack};
use firstfault_handler::sys::MemoryPage;
use framehop::{FrameAddress, UnwindRegsNative, Unwinder};

use crate::late::{self, Position};
use crate::modules::{Prepared, prepared};

/// Walks a stack by the tables of [`prepare`](crate::prepare), by frame pointers where a module has none.
pub fn walk(start: &Registers, stack: &mut Stack, memory: &mut MemoryPage) {
    match prepared() {
        Some(prepared) => walk_with(prepared, start, stack, memory),
        None => native::by_frame_pointers(start, stack, memory),
    }
}

/// Walks a stack by these tables.
pub fn walk_with(
    prepared: &Prepared,
    start: &Registers,
    stack: &mut Stack,
    memory: &mut MemoryPage,
) {
    if !stack.push_instruction(start.program_counter) {
        return;
    }
    let mut registers = to_framehop(start, prepared);
    let mut address = FrameAddress::from_instruction_pointer(start.program_counter);
    if !modules::is_executable(start.program_counter) {
        // A call to where no code is: the caller is what the call itself left behind.
        let Some(caller) = start.after_return(memory) else {
            return;
        };
        if !stack.push_return(caller.program_counter) {
            return;
        }
        registers = to_framehop(&caller, prepared);
        let Some(after) = FrameAddress::from_return_address(caller.program_counter) else {
            return;
        };
        address = after;
    }
    // SAFETY: one thread at a time owns the handler, and only it walks.
    let cache = unsafe { &mut *prepared.cache.get() };
    loop {
        if address.address() == prepared.restorer
            && let Some(interrupted) = interrupted(stack_pointer(&registers), memory)
        {
            // A handler of somebody's: below its frame is what the signal interrupted.
            if !stack.push_instruction(interrupted.program_counter) {
                return;
            }
            registers = to_framehop(&interrupted, prepared);
            address = FrameAddress::from_instruction_pointer(interrupted.program_counter);
        }
        let before = stack_pointer(&registers);
        let by_late = late_step(prepared, address, &mut registers, memory);
        let next = by_late.or_else(|| {
            let mut read = |at: u64| memory.word(at).ok_or(());
            let unwinder = &prepared.unwinder;
            let next = unwinder.unwind_frame(address, &mut registers, cache, &mut read);
            next.ok().flatten()
        });
        let Some(next) = next else {
            return;
        };
        // Every caller's frame is above its callee's.
        let goes_on = stack_pointer(&registers) > before || address_is_first(address);
        let Some(next) = FrameAddress::from_return_address(next).filter(|_| goes_on) else {
            return;
        };
        if !stack.push_return(next.address()) {
            return;
        }
        address = next;
    }
}

/// Leaves a frame of a module that framehop does not know.
fn late_step(
    prepared: &Prepared,
    address: FrameAddress,
    registers: &mut UnwindRegsNative,
    memory: &mut MemoryPage,
) -> Option<u64> {
    let lookup = address.address_for_lookup();
    if prepared.knows(lookup) {
        return None;
    }
    let module = modules::module_of(lookup)?;
    // SAFETY: one thread at a time owns the handler, and only it walks.
    let context = unsafe { &mut *prepared.late.get() };
    let position = position(registers);
    let (caller, next) = late::step(module.base, lookup, &position, context, memory)?;
    *registers = to_framehop(
        &Registers {
            program_counter: next,
            stack_pointer: caller.stack_pointer,
            frame_pointer: caller.frame_pointer,
            link: caller.link,
        },
        prepared,
    );
    Some(next)
}

fn position(registers: &UnwindRegsNative) -> Position {
    #[cfg(target_arch = "x86_64")]
    let (frame_pointer, link) = (registers.bp(), 0);
    #[cfg(target_arch = "aarch64")]
    let (frame_pointer, link) = (registers.fp(), registers.lr());
    Position {
        stack_pointer: registers.sp(),
        frame_pointer,
        link,
    }
}

/// AArch64's innermost function may have no frame at all.
fn address_is_first(address: FrameAddress) -> bool {
    !address.is_return_address()
}

#[cfg(target_arch = "x86_64")]
fn to_framehop(registers: &Registers, _prepared: &Prepared) -> UnwindRegsNative {
    UnwindRegsNative::new(
        registers.program_counter,
        registers.stack_pointer,
        registers.frame_pointer,
    )
}

#[cfg(target_arch = "aarch64")]
fn to_framehop(registers: &Registers, prepared: &Prepared) -> UnwindRegsNative {
    let mask = framehop::aarch64::PtrAuthMask::from_max_known_address(prepared.highest);
    UnwindRegsNative::new_with_ptr_auth_mask(
        mask,
        registers.link,
        registers.stack_pointer,
        registers.frame_pointer,
    )
}

fn stack_pointer(registers: &UnwindRegsNative) -> u64 {
    registers.sp()
}

/// Returns what a signal interrupted: its context lies where the handler's return leaves the stack pointer.
///
/// Source: Linux, arch/x86/include/asm/sigframe.h, `rt_sigframe`. AArch64's unwind tables tell it themselves.
fn interrupted(context: u64, memory: &mut MemoryPage) -> Option<Registers> {
    #[cfg(target_arch = "x86_64")]
    {
        let general = core::mem::offset_of!(libc::ucontext_t, uc_mcontext) as u64;
        let mut register = |index: libc::c_int| {
            let offset = general.checked_add(u64::from(index.unsigned_abs()).checked_mul(8)?)?;
            memory.word(context.checked_add(offset)?)
        };
        Some(Registers {
            program_counter: register(libc::REG_RIP)?,
            stack_pointer: register(libc::REG_RSP)?,
            frame_pointer: register(libc::REG_RBP)?,
            link: 0,
        })
    }
    #[cfg(target_arch = "aarch64")]
    {
        let _ = (context, memory);
        None
    }
}
