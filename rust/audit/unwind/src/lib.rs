//! The unwinder's walk and nothing else, linked so that what it needs from outside shows as undefined symbols.
#![no_std]

use firstfault_handler::native::{Registers, Stack};
use firstfault_handler::sys::MemoryPage;

unsafe extern "C" {
    fn firstfault_panic_reached() -> !;
}

#[panic_handler]
fn panic(_information: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: never linked, so never called.
    unsafe { firstfault_panic_reached() }
}

/// The walk, as the handler reaches it. Nothing but another `rustc` symbol would call it.
#[unsafe(no_mangle)]
pub fn firstfault_audit_walk(start: &Registers, stack: &mut Stack, memory: &mut MemoryPage) {
    firstfault_unwind::walk(start, stack, memory);
}
