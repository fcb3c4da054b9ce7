//! The frame that the kernel lays on a stack for a signal handler, known by the code that the handler returns to.

use core::mem::{offset_of, size_of};

use firstfault_handler::native::Registers;
use firstfault_handler::sys::MemoryPage;

/// `rt_sigreturn`, as all C libraries and the kernel's vDSO spell it. Tables say nothing of it in musl and on AArch64.
#[cfg(target_arch = "x86_64")]
const RETURN: [(u64, u64); 2] = [
    // mov $0xf,%rax; syscall
    (0x0f00_0000_0fc0_c748, u64::MAX),
    (0x05, 0xff),
];
#[cfg(target_arch = "aarch64")]
const RETURN: [(u64, u64); 1] = [
    // mov x8, #0x8b; svc #0
    (0xd400_0001_d280_1168, u64::MAX),
];

/// Where the context is above the stack pointer that the handler leaves behind.
///
/// Source: Linux, `struct rt_sigframe` in arch/x86/include/asm/sigframe.h and arch/arm64/kernel/signal.c.
const CONTEXT: u64 = if cfg!(target_arch = "x86_64") {
    0
} else {
    size_of::<libc::siginfo_t>() as u64
};

/// Returns whether a signal handler returns to this address.
pub(crate) fn is_return(address: u64, memory: &mut MemoryPage) -> bool {
    let mut address = address;
    RETURN.iter().all(|(code, mask)| {
        let word = memory.word(address);
        address = address.wrapping_add(size_of::<u64>() as u64);
        word.is_some_and(|word| word & mask == *code)
    })
}

/// Returns what the signal interrupted, from the stack pointer that its handler leaves behind.
pub(crate) fn interrupted(stack_pointer: u64, memory: &mut MemoryPage) -> Option<Registers> {
    let context = stack_pointer.checked_add(CONTEXT)?;
    let mut word = |offset: usize| memory.word(context.checked_add(offset as u64)?);
    let machine = offset_of!(libc::ucontext_t, uc_mcontext);
    #[cfg(target_arch = "x86_64")]
    {
        let mut register = |index: libc::c_int| {
            let before = usize::try_from(index).ok()?.checked_mul(size_of::<u64>())?;
            word(machine.checked_add(before)?)
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
        let general = machine.checked_add(offset_of!(libc::mcontext_t, regs))?;
        let mut register = |index: usize| word(general.checked_add(index.checked_mul(8)?)?);
        let (frame_pointer, link) = (register(29)?, register(30)?);
        Some(Registers {
            program_counter: word(machine.checked_add(offset_of!(libc::mcontext_t, pc))?)?,
            stack_pointer: word(machine.checked_add(offset_of!(libc::mcontext_t, sp))?)?,
            frame_pointer,
            link,
        })
    }
}
