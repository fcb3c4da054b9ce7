//! Threads that the dying process makes for what may never come back: a call on a file system that does not answer, or a
//! page of a file there.
//!
//! No signal but SIGKILL reaches a thread that waits in the kernel for a file server, so the thread that handles the
//! crash must not be the one that waits. It goes on when its patience ends, and the process dies by its own signal; that
//! takes the helpers along. There are none before a crash.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use firstfault_format::signals;

use crate::sys::{self, Errno};

/// Commits records. It needs 20 KiB without optimization.
pub(crate) static WRITER: Helper = Helper::new();
/// Reads the symbol tables of modules whose files may be on a file server.
pub(crate) static READER: Helper = Helper::new();
/// Writes to stderr, which may be a file on the same file system.
pub(crate) static TELLER: Helper = Helper::new();

const STACK: usize = 128 * 1024;
/// Room for thread-local variables on both sides of the thread pointer.
const LOCALS: usize = 16 * 1024;

const FREE: u32 = 0;
const RUNNING: u32 = 1;
const DONE: u32 = 2;
const FAILED: u32 = 3;
const ABANDONED: u32 = 4;

/// How long the thread's end may take once its work is done, before that is looked at again.
const END_NS: u64 = 50_000;

/// What a helper does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    /// Returns whether it succeeded.
    pub(crate) run: fn() -> bool,
    /// Takes back what came too late, after [`Helper::abandon`].
    pub(crate) undo: fn(),
}

/// One helper thread at a time, and its stack.
pub(crate) struct Helper {
    state: AtomicU32,
    /// 1 until the kernel has ended the thread: then its stack is free.
    is_alive: AtomicU32,
    thread: AtomicI32,
    process: AtomicI32,
    run: AtomicUsize,
    undo: AtomicUsize,
    stack: Room<STACK>,
    /// Its errno is its own: the thread that made it goes on, perhaps into normal code.
    locals: Room<{ 2 * LOCALS }>,
}

#[repr(align(64))]
struct Room<const SIZE: usize>(UnsafeCell<[u8; SIZE]>);

// SAFETY: only the one helper thread uses it, after whoever made it has set it up.
unsafe impl<const SIZE: usize> Sync for Room<SIZE> {}

impl Helper {
    const fn new() -> Self {
        Self {
            state: AtomicU32::new(FREE),
            is_alive: AtomicU32::new(0),
            thread: AtomicI32::new(0),
            process: AtomicI32::new(0),
            run: AtomicUsize::new(0),
            undo: AtomicUsize::new(0),
            stack: Room(UnsafeCell::new([0; STACK])),
            locals: Room(UnsafeCell::new([0; 2 * LOCALS])),
        }
    }

    /// Does the work in the helper thread and waits so long for it.
    ///
    /// Returns its result; `ETIMEDOUT` where it has not come back, or where an earlier one still has not; or why there
    /// can be no thread.
    pub(crate) fn run(&'static self, work: Work, patience_ns: u64) -> Result<bool, Errno> {
        if self.is_busy() {
            return Err(libc::ETIMEDOUT);
        }
        self.run.store(work.run as usize, Ordering::Relaxed);
        self.undo.store(work.undo as usize, Ordering::Relaxed);
        self.process.store(sys::process_id(), Ordering::Relaxed);
        self.state.store(RUNNING, Ordering::Release);
        self.start()?;
        let deadline = sys::clock_ns(libc::CLOCK_MONOTONIC).saturating_add(patience_ns);
        while self.state.load(Ordering::Acquire) == RUNNING {
            let left = deadline.saturating_sub(sys::clock_ns(libc::CLOCK_MONOTONIC));
            if left == 0 {
                return Err(libc::ETIMEDOUT);
            }
            sys::futex_wait(&self.state, RUNNING, left);
        }
        // The kernel's own wake-up at the thread's end is for another kind of wait.
        while self.is_alive.load(Ordering::Acquire) != 0 {
            sys::futex_wait(&self.is_alive, 1, END_NS);
        }
        Ok(self.state.load(Ordering::Acquire) == DONE)
    }

    /// Whether the helper of this process has not come back.
    pub(crate) fn is_busy(&self) -> bool {
        self.process.load(Ordering::Relaxed) == sys::process_id()
            && self.is_alive.load(Ordering::Acquire) != 0
    }

    /// Lets a helper that has not come back undo its work when it does. Returns whether there is one.
    pub(crate) fn abandon(&self) -> bool {
        self.is_busy()
            && self
                .state
                .compare_exchange(RUNNING, ABANDONED, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    fn finish(&self, is_done: bool) {
        let result = if is_done { DONE } else { FAILED };
        let ended =
            self.state
                .compare_exchange(RUNNING, result, Ordering::AcqRel, Ordering::Acquire);
        if ended.is_ok() {
            sys::futex_wake(&self.state);
        } else {
            // SAFETY: only `run` stores here.
            let undo =
                unsafe { core::mem::transmute::<usize, fn()>(self.undo.load(Ordering::Relaxed)) };
            undo();
        }
    }

    fn start(&'static self) -> Result<(), Errno> {
        // Else the thread's errno would lie outside its room.
        if sys::errno_offset().unsigned_abs() > LOCALS.wrapping_sub(64) {
            return Err(libc::ENOTSUP);
        }
        let (stack, locals) = (self.stack.0.get(), self.locals.0.get());
        // SAFETY: one is the room's end, the other inside it.
        let (stack, locals) = unsafe {
            (
                stack.cast::<u8>().add(STACK),
                locals.cast::<u8>().add(LOCALS),
            )
        };
        self.is_alive.store(1, Ordering::Release);
        let own = (&raw const *self).cast_mut().cast();
        // It inherits the mask: what the program handles is no business of a thread that libc knows nothing of.
        let is_crash = |number| signals::by_number(number).is_some_and(|signal| signal.crash);
        let before = sys::block(&sys::all_signals_but(is_crash));
        // SAFETY: the rooms live for ever, and the thread before has ended; `main` gets a helper, as it wants.
        let result = unsafe { sys::start_thread(main, own, stack, locals, &self.is_alive) };
        sys::set_mask(libc::SIG_SETMASK, &before);
        if result.is_err() {
            self.is_alive.store(0, Ordering::Release);
        }
        result
    }
}

extern "C" fn main(helper: *mut c_void) -> libc::c_int {
    // SAFETY: `start` passes a helper, which lives for ever.
    let Some(helper) = (unsafe { helper.cast::<Helper>().as_ref() }) else {
        return 1;
    };
    helper.thread.store(sys::thread_id(), Ordering::Relaxed);
    // SAFETY: only `run` stores here.
    let run =
        unsafe { core::mem::transmute::<usize, fn() -> bool>(helper.run.load(Ordering::Relaxed)) };
    helper.finish(run());
    0
}

fn busy() -> impl Iterator<Item = &'static Helper> {
    [&WRITER, &READER, &TELLER]
        .into_iter()
        .filter(|helper| helper.is_busy())
}

fn of_thread(thread: i32) -> Option<&'static Helper> {
    busy().find(|helper| helper.thread.load(Ordering::Relaxed) == thread)
}

/// Whether a thread is a helper: it is none of the program's.
pub(crate) fn is_helper(thread: i32) -> bool {
    of_thread(thread).is_some()
}

/// Ends a helper thread that has faulted; returns in every other thread.
pub(crate) fn take_fault() {
    // Mostly there is none: a fault that the program repairs is to cost no system call for that.
    if busy().next().is_some()
        && let Some(helper) = of_thread(sys::thread_id())
    {
        helper.finish(false);
        sys::exit_thread();
    }
}
