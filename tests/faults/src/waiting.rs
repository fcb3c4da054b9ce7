//! Native threads that wait to be told what to do, each with or without an alternate signal stack of its own.

use std::ffi::c_int;
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use super::Function;

/// The thread that was started last.
static LAST: Mutex<Option<(Sender<Function>, JoinHandle<()>)>> = Mutex::new(None);

fn alternate_stack() -> libc::stack_t {
    unsafe {
        let mut stack = std::mem::zeroed();
        libc::sigaltstack(null(), &raw mut stack);
        stack
    }
}

/// Starts a thread; `with_stack` is whether it sets an alternate signal stack. It leaves it alone otherwise.
#[unsafe(no_mangle)]
extern "C" fn start_waiting(with_stack: c_int) {
    const SIZE: usize = 256 * 1024;
    let (sender, receiver) = channel::<Function>();
    let (ready, is_ready) = channel();
    let thread = std::thread::spawn(move || {
        let mut room = vec![0_u8; SIZE];
        let own = libc::stack_t {
            ss_sp: room.as_mut_ptr().cast(),
            ss_flags: 0,
            ss_size: SIZE,
        };
        if with_stack != 0 {
            unsafe { libc::sigaltstack(&raw const own, null_mut()) };
        }
        ready.send(()).expect("somebody waits");
        let function = receiver.recv().expect("an order");
        if with_stack != 0 {
            assert_eq!(alternate_stack().ss_sp, own.ss_sp);
        }
        function();
    });
    is_ready.recv().expect("the thread runs");
    *LAST.lock().expect("no panic") = Some((sender, thread));
}

/// Lets the thread that was started last call a function, and waits for its end.
#[unsafe(no_mangle)]
extern "C" fn tell_waiting(function: Function) {
    let (sender, thread) = LAST.lock().expect("no panic").take().expect("a thread");
    sender.send(function).expect("it waits");
    thread.join().expect("no panic");
}

/// Whether somebody waits outside the interpreter for its lock to be held, and whether it is.
static IS_AWAITED: AtomicBool = AtomicBool::new(false);
static IS_HELD: AtomicBool = AtomicBool::new(false);

fn wait_for(what: &AtomicBool) {
    while !what.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
}

/// Waits until [`call_while_held`] is at it.
#[unsafe(no_mangle)]
extern "C" fn await_call() {
    wait_for(&IS_AWAITED);
}

/// Never returns; to be called with the interpreter's lock held.
#[unsafe(no_mangle)]
extern "C" fn hold_for_ever() {
    IS_HELD.store(true, Ordering::Release);
    loop {
        std::thread::park();
    }
}

/// Calls a function in a thread of its own once [`hold_for_ever`] is at it; to be called without the lock.
#[unsafe(no_mangle)]
extern "C" fn call_while_held(function: Function) {
    IS_AWAITED.store(true, Ordering::Release);
    wait_for(&IS_HELD);
    super::threads::in_native_thread(function);
}

#[unsafe(no_mangle)]
extern "C" fn nothing() {}
