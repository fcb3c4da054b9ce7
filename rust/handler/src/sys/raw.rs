//! System calls by the processor's own instruction, without libc between.
//!
//! libc's functions for files are ones that others replace (an I/O profiler preloaded on a cluster locks and allocates
//! in its own), they are points where a thread may be cancelled, and they keep errno in the thread. None of that is
//! wanted in a handler, nor in a thread that it has made.
//!
//! Source: syscall(2), "Architecture calling conventions".

use core::arch::asm;

use super::Errno;

/// The highest errno that the kernel returns.
const ERRNO_MAX: usize = 4095;

/// Enters the kernel.
///
/// # Safety
/// As the system call demands: pointers among the arguments must be valid for what it does with them.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn call(number: libc::c_long, arguments: [usize; 5]) -> Result<usize, Errno> {
    let [first, second, third, fourth, fifth] = arguments;
    let result: usize;
    // SAFETY: the caller's promise. The kernel keeps all registers but these three.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as usize => result,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            in("r10") fourth,
            in("r8") fifth,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    checked(result)
}

/// Enters the kernel.
///
/// # Safety
/// As the system call demands: pointers among the arguments must be valid for what it does with them.
#[cfg(target_arch = "aarch64")]
pub(super) unsafe fn call(number: libc::c_long, arguments: [usize; 5]) -> Result<usize, Errno> {
    let [first, second, third, fourth, fifth] = arguments;
    let result: usize;
    // SAFETY: the caller's promise. The kernel keeps all registers but the first.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number as usize,
            inlateout("x0") first => result,
            in("x1") second,
            in("x2") third,
            in("x3") fourth,
            in("x4") fifth,
            options(nostack),
        );
    }
    checked(result)
}

fn checked(result: usize) -> Result<usize, Errno> {
    match 0_usize.wrapping_sub(result) {
        errno @ 1..=ERRNO_MAX => Err(errno as Errno),
        _ => Ok(result),
    }
}
