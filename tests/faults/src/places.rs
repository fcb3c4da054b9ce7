//! Places for a fault that Python cannot make: inside a signal handler, malloc or the loader, on a stack of others.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::hint::black_box;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Function;

static IN_HANDLER: AtomicUsize = AtomicUsize::new(0);

/// Calls a function inside the handler of a signal, which runs on the alternate stack if that is wanted.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn in_signal_handler(function: Function, on_alternate_stack: c_int) {
    extern "C" fn handler(_: c_int) {
        unsafe { std::mem::transmute::<usize, Function>(IN_HANDLER.load(Ordering::Relaxed))() };
    }
    IN_HANDLER.store(function as usize, Ordering::Relaxed);
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = if on_alternate_stack == 0 {
            0
        } else {
            libc::SA_ONSTACK
        };
        libc::sigaction(libc::SIGUSR2, &raw const action, null_mut());
        libc::raise(libc::SIGUSR2);
    }
}

/// Gives the calling thread an alternate signal stack of this size, as other libraries do.
#[unsafe(no_mangle)]
extern "C" fn set_alternate_stack(size: usize) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    unsafe {
        let guard = 4096;
        let whole = libc::mmap(null_mut(), size + guard, libc::PROT_NONE, flags, -1, 0);
        let bottom = whole.byte_add(guard);
        libc::mprotect(bottom, size, libc::PROT_READ | libc::PROT_WRITE);
        let stack = libc::stack_t {
            ss_sp: bottom,
            ss_flags: 0,
            ss_size: size,
        };
        libc::sigaltstack(&raw const stack, null_mut());
    }
}

/// Faults inside malloc, which holds the lock of its arena then.
///
/// Source: glibc's malloc.c: `_int_malloc` follows `bk` of a free chunk; it takes the lock once there was a second
/// thread.
#[unsafe(no_mangle)]
extern "C" fn fault_in_malloc() {
    std::thread::spawn(|| ()).join().expect("no panic");
    unsafe {
        let freed = libc::malloc(3000).cast::<usize>();
        // Between the chunk and the unused rest, which it would become part of.
        black_box(libc::malloc(3000));
        libc::free(freed.cast());
        freed
            .add(1)
            .write_volatile(without_provenance_mut::<usize>(0x6666_0000) as usize);
        black_box(libc::malloc(5000));
    }
}

/// Lets threads allocate and free for ever.
#[unsafe(no_mangle)]
extern "C" fn allocate_for_ever(threads: c_int) {
    for number in 0..threads as usize {
        std::thread::spawn(move || {
            loop {
                // Large enough for the arena, whose lock is taken, and too small for pages of its own.
                let block = unsafe { libc::malloc(2000 + number) };
                unsafe { libc::free(black_box(block)) };
            }
        });
    }
}

/// Jumps to an address where nothing is mapped.
#[unsafe(no_mangle)]
extern "C" fn jump_unmapped() {
    let function: Function =
        unsafe { std::mem::transmute(black_box(without_provenance_mut::<c_void>(0x6666_0000))) };
    function();
}

/// Reads what was mapped a moment before.
#[unsafe(no_mangle)]
extern "C" fn read_after_unmap() {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    unsafe {
        let place = without_provenance_mut(0x6666_0000);
        let page = libc::mmap(place, 4096, libc::PROT_READ, flags, -1, 0);
        libc::munmap(page, 4096);
        black_box(page.cast::<u8>().read_volatile());
    }
}

/// A panic of Rust with `panic = "abort"`.
#[unsafe(no_mangle)]
extern "C" fn rust_panic() {
    // What the hook says has the process ID in it. Out of a function that C may call, a panic aborts.
    std::panic::set_hook(Box::new(|_| ()));
    panic!("lost the shard");
}

/// Crashes while the loader loads this library, if a variable names one of its functions: `FAULT_AT_LOAD`.
#[unsafe(link_section = ".init_array")]
#[used]
static AT_LOAD: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = at_load;

extern "C" fn at_load(_: c_int, _: *const *const c_char, _: *const *const c_char) {
    unsafe {
        let wanted = libc::getenv(c"FAULT_AT_LOAD".as_ptr());
        if wanted.is_null() {
            return;
        }
        match CStr::from_ptr(wanted).to_bytes() {
            b"c_abort" => libc::abort(),
            _ => super::faults::read_null(),
        }
    }
}
