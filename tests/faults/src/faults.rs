//! The faults themselves: each function raises one signal in one way, and does not return.

use std::arch::asm;
use std::ffi::c_int;
use std::hint::black_box;
use std::ptr::{null_mut, without_provenance_mut};

/// Inside the page that is never mapped, as a member of a null pointer would be.
const NEAR_NULL: usize = 0x10;
/// The last page of the lower half of a 47-bit address space, where Linux maps nothing.
const UNMAPPED: usize = 0x7fff_ffff_f123;
/// Between the two halves of the address space of x86-64.
const NON_CANONICAL: usize = 0x8000_0000_0000_0000;

fn read(address: usize) {
    let pointer = black_box(without_provenance_mut::<u8>(address));
    black_box(unsafe { pointer.read_volatile() });
}

fn write(address: usize) {
    unsafe { black_box(without_provenance_mut::<u8>(address)).write_volatile(1) };
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn read_null() {
    read(NEAR_NULL);
}

#[unsafe(no_mangle)]
extern "C" fn write_null() {
    write(NEAR_NULL);
}

#[unsafe(no_mangle)]
extern "C" fn read_unmapped() {
    read(UNMAPPED);
}

#[unsafe(no_mangle)]
extern "C" fn read_non_canonical() {
    read(NON_CANONICAL);
}

#[unsafe(no_mangle)]
extern "C" fn call_null() {
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("call {0}", in(reg) 0_usize, clobber_abi("C"))
    };
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("blr {0}", in(reg) 0_usize, clobber_abi("C"))
    };
}

#[unsafe(no_mangle)]
extern "C" fn write_read_only() {
    let page = unsafe {
        libc::mmap(
            null_mut(),
            4096,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    write(page as usize);
}

#[unsafe(no_mangle)]
extern "C" fn execute_data() {
    static DATA: [u8; 16] = [0xcc; 16];
    let function: extern "C" fn() = unsafe { std::mem::transmute(black_box(DATA.as_ptr())) };
    function();
}

/// Reads a mapped file past its end: SIGBUS.
#[unsafe(no_mangle)]
extern "C" fn read_past_end_of_file() {
    let page = unsafe {
        let file = libc::syscall(libc::SYS_memfd_create, c"empty".as_ptr(), 0) as c_int;
        libc::mmap(null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, file, 0)
    };
    read(page as usize);
}

/// AArch64 gives 0 and no signal.
#[unsafe(no_mangle)]
extern "C" fn divide_by_zero() {
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("cdq", "idiv {0:e}", in(reg) 0, inout("eax") 1 => _, out("edx") _)
    };
}

#[unsafe(no_mangle)]
extern "C" fn illegal_instruction() {
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("ud2")
    };
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("udf #0")
    };
}

#[unsafe(no_mangle)]
extern "C" fn c_abort() {
    unsafe { libc::abort() };
}

#[unsafe(no_mangle)]
extern "C" fn signal_own_thread(signal: c_int) {
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), signal) };
}

#[unsafe(no_mangle)]
extern "C" fn queue_signal(signal: c_int) {
    let value = libc::sigval {
        sival_ptr: without_provenance_mut(7),
    };
    unsafe { libc::sigqueue(libc::getpid(), signal, value) };
}

/// Overwrites a structure of Python's by addresses, then reads a null pointer.
#[unsafe(no_mangle)]
extern "C" fn corrupt_and_read_null(structure: *mut usize, address: usize) {
    for index in 0..32 {
        unsafe { structure.add(index).write_volatile(address) };
    }
    read_null();
}

/// Returns the address of a page whose reader waits until a signal comes, or 0 where the kernel has no such pages.
///
/// Source: userfaultfd(2); nobody answers its questions.
#[unsafe(no_mangle)]
extern "C" fn page_that_hangs() -> usize {
    const USER_MODE_ONLY: c_int = 1;
    const API: libc::c_ulong = 0xc018_aa3f;
    const REGISTER: libc::c_ulong = 0xc020_aa00;
    const MODE_MISSING: u64 = 1;
    unsafe {
        let flags = libc::O_CLOEXEC | USER_MODE_ONLY;
        let descriptor = libc::syscall(libc::SYS_userfaultfd, flags) as c_int;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(null_mut(), 4096, libc::PROT_READ, flags, -1, 0);
        let mut api = [0xaa_u64, 0, 0];
        let mut range = [page as u64, 4096, MODE_MISSING, 0];
        let failed = libc::ioctl(descriptor, API, api.as_mut_ptr()) != 0
            || libc::ioctl(descriptor, REGISTER, range.as_mut_ptr()) != 0;
        if failed { 0 } else { page as usize }
    }
}

/// Lets the fault happen when the process exits, after the interpreter is gone.
#[unsafe(no_mangle)]
extern "C" fn at_exit(fault: super::Function) {
    unsafe { libc::atexit(fault) };
}

#[unsafe(no_mangle)]
extern "C" fn breakpoint() {
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("int3")
    };
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("brk #0")
    };
}

/// Makes a system call that a seccomp filter answers by SIGSYS.
///
/// Source: seccomp(2), bpf(4).
#[unsafe(no_mangle)]
extern "C" fn forbidden_system_call() {
    const LOAD_WORD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        step(LOAD_WORD, 0, 0, 0),
        step(JUMP_IF_EQUAL, 0, 1, libc::SYS_acct as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_TRAP),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        );
        libc::syscall(libc::SYS_acct, null_mut::<u8>());
    }
}

/// Computes until the kernel has enough of it: SIGXCPU.
#[unsafe(no_mangle)]
extern "C" fn use_up_time() {
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_CPU, &raw mut limit);
        limit.rlim_cur = 1;
        libc::setrlimit(libc::RLIMIT_CPU, &raw const limit);
    }
    // One instruction, so that every run ends at the same one.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("2:", "jmp 2b", options(noreturn))
    };
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("2:", "b 2b", options(noreturn))
    };
}

/// Calls itself until the stack is used up, `size` bytes at a time.
#[inline(never)]
fn deeper(size: usize, depth: usize) -> usize {
    let mut frame = [0_u8; 200];
    black_box(&mut frame);
    if black_box(depth) == usize::MAX {
        return 0;
    }
    if size > 4000 {
        let mut large = [0_u8; 20_000];
        black_box(&mut large);
        return deeper(size, depth + 1) + usize::from(large[0]);
    }
    deeper(size, depth + 1) + usize::from(frame[0])
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn overflow() {
    black_box(deeper(200, 0));
}

#[unsafe(no_mangle)]
extern "C" fn overflow_by_large_frames() {
    black_box(deeper(20_000, 0));
}

/// Writes beyond the stack's beginning: close to it, but no overflow.
#[unsafe(no_mangle)]
extern "C" fn write_above_stack() {
    extern "C" fn start(_: *mut std::ffi::c_void) -> *mut std::ffi::c_void {
        let mut here = 0_u8;
        let mut address = black_box(&raw mut here) as usize;
        loop {
            write(address);
            address += 4096;
        }
    }
    unsafe {
        // A stack of our own, with nothing above it.
        let size = 256 * 1024;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let whole = libc::mmap(
            null_mut(),
            size + 4096,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        );
        libc::mprotect(whole.byte_add(size), 4096, libc::PROT_NONE);
        let mut attributes = std::mem::zeroed();
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setstack(&raw mut attributes, whole, size);
        let mut thread = 0;
        libc::pthread_create(&raw mut thread, &raw const attributes, start, null_mut());
        libc::pthread_join(thread, null_mut());
    }
}
