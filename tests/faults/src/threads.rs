//! Threads that Python knows nothing of.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Barrier;

use super::Function;

/// Runs a function in a new thread named `native`, and waits for its end.
#[unsafe(no_mangle)]
pub(super) extern "C" fn in_native_thread(function: Function) {
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

/// Starts a thread that computes for ever.
#[unsafe(no_mangle)]
extern "C" fn spinner() {
    start_and_await(|| {
        loop {
            std::hint::spin_loop();
        }
    });
}

/// Starts a thread that the kernel keeps from handling any signal: its child has taken its place.
///
/// Source: vfork(2), the parent is suspended until the child ends; this child ends with the process.
#[unsafe(no_mangle)]
extern "C" fn uninterruptible() {
    let thread = start_and_await(|| unsafe {
        let flags = (libc::CLONE_VFORK | libc::SIGCHLD) as usize;
        if libc::syscall(libc::SYS_clone, flags, 0_usize, 0_usize, 0_usize, 0_usize) == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            loop {
                libc::pause();
            }
        }
    });
    await_state(thread, b'D');
}

/// Lets another thread of this process use up its own stack, wherever it is: by a signal that is handled on it.
#[unsafe(no_mangle)]
extern "C" fn overflow_in(thread: c_int) {
    extern "C" fn on_signal(_signal: c_int) {
        crate::faults::overflow();
    }
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        libc::sigaction(libc::SIGUSR2, &raw const action, null_mut());
        libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR2);
        loop {
            libc::pause();
        }
    }
}

/// Calls a function in a child that shares this process's memory, and returns how the child ended, as wait(2) has it.
///
/// Source: vfork(2); posix_spawn(3) starts its children so. This one has a stack of its own, and never becomes another
/// program.
#[unsafe(no_mangle)]
extern "C" fn in_vfork_child(function: Function) -> c_int {
    extern "C" fn run(function: *mut c_void) -> c_int {
        unsafe { std::mem::transmute::<*mut c_void, Function>(function)() };
        0
    }
    const STACK: usize = 1 << 20;
    const GUARD: usize = 1 << 16;
    let mut status = 0;
    unsafe {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let guard = libc::mmap(null_mut(), GUARD + STACK, libc::PROT_NONE, kind, -1, 0);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        libc::mprotect(guard.add(GUARD), STACK, access);
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        let top = guard.add(GUARD + STACK);
        let child = libc::clone(run, top, flags, function as *mut c_void);
        libc::waitpid(child, &raw mut status, 0);
        libc::munmap(guard, GUARD + STACK);
    }
    status
}

/// Ends the main thread alone; then another one faults.
#[unsafe(no_mangle)]
extern "C" fn fault_without_main(fault: Function) {
    let main = unsafe { libc::getpid() };
    std::thread::spawn(move || {
        await_state(main, b'Z');
        fault();
    });
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

/// Starts a thread, waits until it runs, and returns its ID.
fn start_and_await(function: impl FnOnce() + Send + 'static) -> libc::pid_t {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        sender
            .send(unsafe { libc::gettid() })
            .expect("somebody waits");
        function();
    });
    receiver.recv().expect("the thread runs")
}

/// Waits until the kernel says that a thread of this process is in a state.
fn await_state(thread: libc::pid_t, state: u8) {
    let is_there = || {
        let text = std::fs::read(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
        let name = text.iter().rposition(|byte| *byte == b')').unwrap_or(0);
        text.get(name + 2) == Some(&state)
    };
    while !is_there() {
        std::thread::yield_now();
    }
}
