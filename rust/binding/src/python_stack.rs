//! Finds CPython's own dumper of Python stacks and hands it to the signal handler.

use firstfault_capture::dumper;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Register faulthandler's dumper for a real-time signal, take the function out of the signal's action, and put the
/// action back as it was.
///
/// Once per process, forked children included: the handler makes their file anew. Source: Modules/faulthandler.c.
pub(crate) fn prepare(py: Python<'_>) -> PyResult<()> {
    let Some(preparation) = dumper::begin() else {
        return Ok(());
    };
    let options = PyDict::new(py);
    options.set_item("file", preparation.descriptor())?;
    options.set_item("all_threads", false)?;
    options.set_item("chain", false)?;
    py.import("faulthandler")?
        .call_method("register", (preparation.signal(),), Some(&options))?;
    let version = py.version_info();
    preparation.finish((version.major, version.minor));
    Ok(())
}
