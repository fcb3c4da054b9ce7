//! The signal handler and nothing else, linked so that what it needs from outside shows as undefined symbols.
//!
//! `cargo build --profile audit -p firstfault-audit`, then `symbols.sh`: a panic that the optimizer could not rule out
//! shows as `firstfault_panic_reached`, an allocation as an allocator's name, a lock as libpthread's.
#![no_std]

use firstfault_handler::install::{self, Configuration, Places};
use firstfault_handler::python_state::Functions;
use firstfault_handler::termination::{self, Snapshot};
use firstfault_handler::{black_box, foreign, handle, python_state};

unsafe extern "C" {
    fn firstfault_panic_reached() -> !;
}

#[panic_handler]
fn panic(_information: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: never linked, so never called.
    unsafe { firstfault_panic_reached() }
}

/// The handler of every crash signal, as the kernel reaches it.
#[unsafe(no_mangle)]
pub extern "C" fn firstfault_audit_entry(
    signal: core::ffi::c_int,
    information: *mut core::ffi::c_void,
    context: *mut core::ffi::c_void,
) {
    handle::on_signal(signal, information.cast(), context);
}

/// What normal code tells the handler; without it the optimizer would see that nothing was ever installed.
///
/// # Safety
/// Never called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn firstfault_audit_setup(
    configuration: &'static Configuration,
    preceded_by: &'static &'static [u8],
    guard: &'static black_box::Guard,
    places: &'static Places,
    functions: &Functions,
    action: &libc::sigaction,
    signal: core::ffi::c_int,
    is_known: bool,
) -> bool {
    install::configure(configuration);
    termination::configure(places, Snapshot::Own);
    install::set_preceded_by(preceded_by);
    black_box::publish(guard);
    foreign::take_python_dumper(signal, signal);
    python_state::configure(functions);
    install::remember(signal, *action, is_known).is_ok()
}

/// What no handler may have: an index that may panic, and an allocation.
///
/// # Safety
/// Never called.
#[cfg(feature = "broken")]
#[unsafe(no_mangle)]
#[allow(clippy::indexing_slicing, reason = "the audit must find it")]
pub unsafe extern "C" fn firstfault_audit_broken(
    sizes: &[usize; 2],
    index: usize,
) -> *mut core::ffi::c_void {
    // SAFETY: any size will do.
    unsafe { libc::malloc(sizes[index]) }
}
