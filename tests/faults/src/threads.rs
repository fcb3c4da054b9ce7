//! Threads that Python knows nothing of.

use std::ffi::{c_int, c_void};
use std::sync::Barrier;

use super::Function;

/// Runs a function in a new thread named `native`, and waits for its end.
#[unsafe(no_mangle)]
extern "C" fn in_native_thread(function: Function) {
    let thread = std::thread::Builder::new()
        .name("native".into())
        .spawn(move || function());
    let _ = thread.expect("a thread").join();
}

/// The same, the function being called through the chain of known functions.
///
/// A bare thread: the standard library's would catch what C++ throws.
#[unsafe(no_mangle)]
extern "C" fn in_native_thread_through(function: Function) {
    extern "C" fn start(function: *mut c_void) -> *mut c_void {
        unsafe {
            libc::prctl(libc::PR_SET_NAME, c"native".as_ptr());
            crate::stacks::stack_outer(std::mem::transmute::<*mut c_void, Function>(function));
        }
        std::ptr::null_mut()
    }
    unsafe {
        let mut thread = std::mem::zeroed();
        let function = function as *mut c_void;
        libc::pthread_create(&raw mut thread, std::ptr::null(), start, function);
        libc::pthread_join(thread, std::ptr::null_mut());
    }
}

/// Starts threads that sleep for ever.
#[unsafe(no_mangle)]
extern "C" fn sleepers(count: c_int, stack_size: usize) {
    for _ in 0..count {
        std::thread::Builder::new()
            .stack_size(stack_size)
            .spawn(|| {
                loop {
                    std::thread::park();
                }
            })
            .expect("a thread");
    }
}

/// Lets several threads crash at the same moment, by the two functions in turn.
#[unsafe(no_mangle)]
extern "C" fn crash_together(count: c_int, even: Function, odd: Function) {
    let count = count as usize;
    let barrier = Barrier::new(count);
    std::thread::scope(|scope| {
        for number in 0..count {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                if number % 2 == 0 { even() } else { odd() }
            });
        }
    });
}

/// Blocks every signal in the calling thread that can be blocked, or none any more.
#[unsafe(no_mangle)]
extern "C" fn block_signals(block: c_int) {
    let how = if block == 0 {
        libc::SIG_UNBLOCK
    } else {
        libc::SIG_BLOCK
    };
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(how, &raw const all, std::ptr::null_mut());
    }
}
