//! The end of the interpreter, after which C++ destructors still run and may crash.

use std::sync::Once;

use firstfault_capture as capture;

static WATCHED: Once = Once::new();

/// Puts the crash handlers back once the interpreter is gone.
///
/// At its end it switches faulthandler off, which puts back what was there before faulthandler: where that was enabled
/// first, as torch's `record` does, our handlers are gone with it. Source: Python/pylifecycle.c, `Py_FinalizeEx`.
pub(crate) fn watch() {
    WATCHED.call_once(|| {
        extern "C" fn at_exit() {
            // Nobody is left to tell of an error, and no panic may leave a C callback.
            let _ = std::panic::catch_unwind(|| capture::reassert(0));
        }
        // SAFETY: the function lives as long as the module, which is never unloaded, and calls nothing of Python. All
        // 32 places being taken, nothing changes.
        unsafe { pyo3::ffi::Py_AtExit(Some(at_exit)) };
    });
}
