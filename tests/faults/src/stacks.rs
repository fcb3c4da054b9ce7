//! Native stacks: functions with known names that call each other and then a fault, and stacks that are broken.

use std::arch::asm;
use std::ffi::c_int;
use std::hint::black_box;

use super::Function;

#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn stack_outer(fault: Function) -> c_int {
    // What is done with the result keeps the call from being the last thing: it would not be on the stack then.
    black_box(stack_middle(black_box(fault))).wrapping_add(1)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn stack_middle(fault: Function) -> c_int {
    black_box(stack_inner(black_box(fault))).wrapping_add(1)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn stack_inner(fault: Function) -> c_int {
    fault();
    black_box(1)
}

/// Calls itself so many times, then a fault.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn stack_deep(depth: c_int, fault: Function) -> c_int {
    if depth == 0 {
        fault();
        return 0;
    }
    black_box(stack_deep(black_box(depth - 1), fault)).wrapping_add(1)
}

/// Raises a signal whose handler faults: the handler's frames are above those of the signal, and below are ours.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn fault_in_handler() {
    let handler = handler_that_faults as extern "C" fn(c_int);
    unsafe {
        libc::signal(libc::SIGUSR2, handler as libc::sighandler_t);
        libc::raise(libc::SIGUSR2);
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn handler_that_faults(signal: c_int) {
    black_box(signal);
    crate::faults::read_null();
    black_box(signal);
}

/// Throws a `std::runtime_error` that nobody catches.
///
/// Without a C++ compiler: what `throw` means is a call of three functions of libstdc++. Source: Itanium C++ ABI.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn throw_cpp() {
    type Object = *mut std::ffi::c_void;
    unsafe {
        let library = libc::dlopen(c"libstdc++.so.6".as_ptr(), libc::RTLD_NOW);
        let symbol = |name: &std::ffi::CStr| libc::dlsym(library, name.as_ptr());
        let allocate: extern "C" fn(usize) -> Object =
            std::mem::transmute(symbol(c"__cxa_allocate_exception"));
        let construct: extern "C" fn(Object, *const std::ffi::c_char) =
            std::mem::transmute(symbol(c"_ZNSt13runtime_errorC1EPKc"));
        let throw: extern "C" fn(Object, Object, Object) =
            std::mem::transmute(symbol(c"__cxa_throw"));
        let object = allocate(16);
        construct(object, c"collective timed out".as_ptr());
        throw(
            object,
            symbol(c"_ZTISt13runtime_error"),
            symbol(c"_ZNSt13runtime_errorD1Ev"),
        );
        black_box(object);
    }
}

/// Lets the stack pointer point to nowhere, then faults. On a thread with an alternate stack only.
#[unsafe(no_mangle)]
extern "C" fn lost_stack_pointer() {
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("mov rsp, {0}", "mov rbp, {0}", "ud2", in(reg) 0x10_0000_0008_usize, options(noreturn))
    };
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("mov sp, {0}", "mov x29, {0}", "udf #0", in(reg) 0x10_0000_0010_usize, options(noreturn))
    };
}

/// Overwrites the stack above this frame, return addresses and saved registers alike, then faults.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn smashed_stack() {
    let mut here = 0_u64;
    let here = &raw mut here;
    for index in 1..128 {
        unsafe {
            here.wrapping_add(index)
                .write_volatile(0x4141_4141_4141_4141)
        };
    }
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("ud2", options(noreturn))
    };
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("udf #0", options(noreturn))
    };
}

/// Lets the kernel refuse process_vm_readv(2) with EPERM, as the filters of old container runtimes do.
///
/// Source: seccomp(2); the filter compares the number of the call alone.
#[unsafe(no_mangle)]
extern "C" fn refuse_memory_reads() -> c_int {
    const fn step(code: u32, value: u32, yes: u8, no: u8) -> libc::sock_filter {
        libc::sock_filter {
            code: code as u16,
            jt: yes,
            jf: no,
            k: value,
        }
    }
    let number = libc::SYS_process_vm_readv as u32;
    let mut filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number, 0, 1),
        step(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
            0,
            0,
        ),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        )
    }
}
