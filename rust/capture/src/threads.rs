//! What each thread of the process needs for its own crash.

use std::cell::RefCell;
use std::io;

use firstfault_handler::alternate_stack::AlternateStack;
use firstfault_handler::sys;

thread_local! {
    /// Taken back as the thread ends, whichever way that is.
    static STACK: RefCell<Option<AlternateStack>> = const { RefCell::new(None) };
}

/// Gives the calling thread an alternate signal stack for as long as it lives, unless it has a large one.
///
/// # Errors
/// No memory.
pub fn give_alternate_stack() -> io::Result<()> {
    if let Some(stack) = AlternateStack::give().map_err(io::Error::from_raw_os_error)? {
        if sys::thread_id() == sys::process_id() {
            // The main thread's locals are dropped first at exit(3); destructors that may crash run after.
            std::mem::forget(stack);
            return Ok(());
        }
        STACK.with_borrow_mut(|kept| *kept = Some(stack));
    }
    Ok(())
}
