//! A handler that leaves by a jump, as siglongjmp(3) does: Rust has no function that returns twice, so the two halves
//! of it are written out.

use std::ffi::c_int;

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".local jump_stack",
    ".comm jump_stack, 8, 8",
    ".global fault_and_jump",
    // Reads through a null pointer; returns 1 if a handler jumped out, 0 if the read succeeded.
    "fault_and_jump:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov [rip + jump_stack], rsp",
    "xor eax, eax",
    "mov ecx, dword ptr [rax + 16]",
    "xor eax, eax",
    "jmp 2f",
    "jump_landing:",
    "mov rsp, [rip + jump_stack]",
    "mov eax, 1",
    "2:",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
    ".global jump_out",
    "jump_out:",
    "jmp jump_landing",
);

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    fn fault_and_jump() -> c_int;
    fn jump_out() -> !;
}

/// Installs a handler for a signal that leaves by a jump to the last [`fault_and_jump`].
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
extern "C" fn install_jumping(signal: c_int) -> usize {
    extern "C" fn handler(signal: c_int) {
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigaddset(&raw mut set, signal);
            libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
            jump_out()
        }
    }
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
    }
    // Keeps the assembler's function in the library.
    fault_and_jump as *const () as usize
}

/// Calls the assembler's function, whose own name a library does not export.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
extern "C" fn fault_and_be_jumped_out() -> c_int {
    unsafe { fault_and_jump() }
}
