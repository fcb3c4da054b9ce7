//! The unwinder's walk and nothing else, linked so that what it needs from outside shows as undefined symbols.
//!
//! framehop needs an allocator to be built; this one calls a symbol that nobody defines, so that an allocation that the
//! walk can reach shows as `firstfault_allocator_reached`.
#![no_std]

use core::alloc::{GlobalAlloc, Layout};

use firstfault_handler::native::{Registers, Stack};
use firstfault_handler::sys::MemoryPage;
use firstfault_unwind::{Prepared, walk_with};

unsafe extern "C" {
    fn firstfault_panic_reached() -> !;
    fn firstfault_allocator_reached() -> !;
}

struct Allocator;

// SAFETY: never linked, so never called.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, _layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { firstfault_allocator_reached() }
    }

    unsafe fn dealloc(&self, _pointer: *mut u8, _layout: Layout) {
        // SAFETY: as above.
        unsafe { firstfault_allocator_reached() }
    }
}

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

#[panic_handler]
fn panic(_information: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: never linked, so never called.
    unsafe { firstfault_panic_reached() }
}

/// The walk, as the handler reaches it. Nothing but another `rustc` symbol would call it.
#[unsafe(no_mangle)]
pub fn firstfault_audit_walk(
    prepared: &Prepared,
    start: &Registers,
    stack: &mut Stack,
    memory: &mut MemoryPage,
) {
    walk_with(prepared, start, stack, memory);
}
