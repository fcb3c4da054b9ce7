//! Which of the process's Python interpreters this is.

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;

/// Refuses any interpreter but the main one.
///
/// What leaves a function there does not end the process, and objects that PyO3 keeps for all would outlive it.
pub(crate) fn require_main(_py: Python<'_>) -> PyResult<()> {
    // SAFETY: the calling thread is attached to an interpreter, as `_py` shows.
    let id = unsafe { pyo3::ffi::PyInterpreterState_GetID(pyo3::ffi::PyInterpreterState_Get()) };
    if id == 0 {
        Ok(())
    } else {
        Err(PyImportError::new_err(
            "firstfault works in the main interpreter only; loaded there, it records a crash in any other one too",
        ))
    }
}
