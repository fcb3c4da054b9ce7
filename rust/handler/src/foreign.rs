//! The guarded foreign stages: code of others that runs in the dying process, by function pointer.
//!
//! One is the unwinder that reads the modules' unwind tables. The other is CPython's own dumper of a thread's Python
//! stack. Its symbol is private in most versions, but
//! `faulthandler.register` puts a function of that module into a signal's action, from which the caller of
//! [`take_python_dumper`] reads it back. Called directly, it writes the calling thread's stack to a descriptor whose
//! number it was registered with. It needs neither the GIL nor memory. The registration stays: a program that calls
//! `faulthandler.unregister` for that signal, the highest real-time one that is free, is told that there was one, and
//! switches it off as below.
//!
//! A dump that a fault or the watchdog cut short leaves it switched off for good: it takes itself to be running still.
//! Then the function below it serves, which knows nothing of that, where the process has its name.
//!
//! Source: Modules/faulthandler.c, `faulthandler_user`, `faulthandler_dump_traceback`.

use core::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use crate::native::{Registers, Stack};
use crate::python_state;
use crate::sys::{self, MemoryPage};

/// Walks a stack by unwind tables, from these registers; reads the stack through the page alone.
pub type Unwinder = fn(&Registers, &mut Stack, &mut MemoryPage);

static UNWINDER: AtomicUsize = AtomicUsize::new(0);

/// Sets the unwinder; its tables are ready.
pub fn set_unwinder(unwinder: Unwinder) {
    UNWINDER.store(unwinder as usize, Ordering::Release);
}

/// Returns whether there is an unwinder.
pub fn has_unwinder() -> bool {
    UNWINDER.load(Ordering::Acquire) != 0
}

/// Walks a stack by unwind tables. Returns whether there is an unwinder.
pub(crate) fn unwind(registers: &Registers, stack: &mut Stack, memory: &mut MemoryPage) -> bool {
    let address = UNWINDER.load(Ordering::Acquire);
    if address == 0 {
        return false;
    }
    // SAFETY: only `set_unwinder` stores here.
    let unwinder = unsafe { core::mem::transmute::<usize, Unwinder>(address) };
    unwinder(registers, stack, memory);
    true
}

static FUNCTION: AtomicUsize = AtomicUsize::new(0);
static SIGNAL: AtomicI32 = AtomicI32::new(0);
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);
static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);
static PROCESS: AtomicI32 = AtomicI32::new(0);
/// The same file under another number, for when all are in use: the record needs one, and the list of threads.
static RESERVE: AtomicI32 = AtomicI32::new(-1);

/// Takes the dumper out of the action that `faulthandler.register` has just set for a signal, and restores the default.
///
/// `descriptor` is the open memory file that it was registered with, with `all_threads=False` and `chain=False`.
pub fn take_python_dumper(signal: i32, descriptor: i32) {
    let Ok(action) = sys::action(signal) else {
        return;
    };
    let _ = sys::set_action(signal, &sys::default_action());
    let address = action.sa_sigaction;
    if address == libc::SIG_DFL
        || address == libc::SIG_IGN
        || action.sa_flags & libc::SA_SIGINFO != 0
    {
        return;
    }
    SIGNAL.store(signal, Ordering::Relaxed);
    DESCRIPTOR.store(descriptor, Ordering::Relaxed);
    remember(descriptor);
    let reserve = sys::duplicate_above(descriptor, descriptor);
    RESERVE.store(reserve.unwrap_or(-1), Ordering::Relaxed);
    FUNCTION.store(address, Ordering::Release);
}

/// Returns the address of the dumper, 0 before it is set.
pub fn python_dumper_address() -> usize {
    FUNCTION.load(Ordering::Acquire)
}

/// Makes the file that the dumper writes to ready, and returns its descriptor; `None` without a dumper or a file.
///
/// The program may have closed the descriptor, or a forked child may share it with its parent: then there is a new
/// file under the same number. What the program has opened there since is its own; `is_dying` says that it needs nothing
/// any more.
pub fn prepare_python_dump(is_dying: bool) -> Option<i32> {
    if FUNCTION.load(Ordering::Acquire) == 0 {
        return None;
    }
    let descriptor = DESCRIPTOR.load(Ordering::Relaxed);
    if !is_ours(descriptor) {
        let is_taken = !is_known(descriptor) && sys::descriptor_status(descriptor).is_ok();
        if is_taken && !is_dying {
            return None;
        }
        let fresh = sys::memory_file(c"firstfault")?;
        if fresh != descriptor {
            let moved = sys::duplicate_to(fresh, descriptor);
            sys::close(fresh);
            moved.ok()?;
        }
        remember(descriptor);
    }
    Some(descriptor)
}

/// Lets the next dump begin where this one began: its failure was none.
pub fn forget_python_dump() {
    let descriptor = DESCRIPTOR.load(Ordering::Relaxed);
    if is_ours(descriptor) {
        let _ = sys::seek(descriptor, 0, libc::SEEK_SET);
    }
}

/// Closes the reserve, so that something else can be opened, or else the memory file; returns whether there was one.
///
/// The next dump makes the memory file anew, where there is room by then. A view of what it held stays.
pub fn give_up_descriptor() -> bool {
    let reserve = RESERVE.swap(-1, Ordering::Relaxed);
    if reserve >= 0 && is_known(reserve) {
        sys::close(reserve);
        return true;
    }
    let descriptor = DESCRIPTOR.load(Ordering::Relaxed);
    let had_one = is_ours(descriptor);
    if had_one {
        sys::close(descriptor);
    }
    had_one
}

/// Whether the descriptor still is the memory file of this process.
fn is_ours(descriptor: i32) -> bool {
    PROCESS.load(Ordering::Relaxed) == sys::process_id() && is_known(descriptor)
}

/// Whether the descriptor is the memory file that was made last, by this process or by the parent that it shares it with.
fn is_known(descriptor: i32) -> bool {
    let known = (
        DEVICE.load(Ordering::Relaxed),
        INODE.load(Ordering::Relaxed),
    );
    sys::descriptor_status(descriptor).is_ok_and(|status| status.identity == known)
}

/// Writes the calling thread's Python stack; returns at once in a thread without one.
pub fn dump_python_stack() {
    let address = FUNCTION.load(Ordering::Acquire);
    if address == 0 {
        return;
    }
    let descriptor = DESCRIPTOR.load(Ordering::Relaxed);
    let before = sys::seek(descriptor, 0, libc::SEEK_CUR);
    // SAFETY: only `take_python_dumper` stores here: a handler without SA_SIGINFO is a function of this type.
    let function = unsafe { core::mem::transmute::<usize, extern "C" fn(libc::c_int)>(address) };
    function(SIGNAL.load(Ordering::Relaxed));
    if sys::seek(descriptor, 0, libc::SEEK_CUR) == before {
        python_state::dump(descriptor);
    }
}

fn remember(descriptor: i32) {
    if let Ok(status) = sys::descriptor_status(descriptor) {
        DEVICE.store(status.identity.0, Ordering::Relaxed);
        INODE.store(status.identity.1, Ordering::Relaxed);
        PROCESS.store(sys::process_id(), Ordering::Relaxed);
    }
}
