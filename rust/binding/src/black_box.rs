//! Breadcrumbs and the step, which go into the black box of this process.

use std::borrow::Cow;

use firstfault_capture::black_box as capture;
use pyo3::prelude::*;
use pyo3::types::PyString;

/// Note that something happened, for whoever reads what this process leaves when it dies.
///
/// A store into mapped memory: it survives SIGKILL, takes no lock, and costs a fraction of a microsecond. The latest 448
/// are kept in the black box, the latest 32 go into an error file. Does nothing before `record` has entered the main
/// function, and in forked children. Never raises because of what `value` is.
///
/// Args:
///     name: What happened. At most 48 bytes of UTF-8 are kept.
///     value: More about it, as `str` shows it. Name and value have 96 bytes together; what is cut is counted.
#[pyfunction]
#[pyo3(signature = (name, value=None))]
pub(crate) fn breadcrumb(
    name: &Bound<'_, PyString>,
    value: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let Some(value) = value else {
        capture::breadcrumb(&text(name), None);
        return Ok(());
    };
    if let Ok(value) = value.cast::<PyString>() {
        capture::breadcrumb(&text(name), Some(&text(value)));
        return Ok(());
    }
    if !capture::is_open() {
        return Ok(());
    }
    match value.str() {
        Ok(value) => capture::breadcrumb(&text(name), Some(&text(&value))),
        // Ctrl-C while a large value was printed is not about the value.
        Err(error) if !error.is_instance_of::<pyo3::exceptions::PyException>(name.py()) => {
            return Err(error);
        }
        Err(_) => capture::breadcrumb(&text(name), Some("<cannot be shown>")),
    }
    Ok(())
}

/// What is not Unicode (a lone surrogate) becomes U+FFFD.
fn text<'a>(text: &'a Bound<'_, PyString>) -> Cow<'a, str> {
    text.to_str()
        .map_or_else(|_| text.to_string_lossy(), Cow::Borrowed)
}

/// Note the training step: every record of a failure says the latest one.
///
/// Costs as little as a breadcrumb, and is none: a step's number leaves the others in their places.
///
/// Args:
///     n: The step, a signed integer of 64 bits.
#[pyfunction]
pub(crate) fn step(n: i64) {
    capture::step(n);
}

/// Note that the main function has returned or that its failure is recorded: the process is about to end.
#[pyfunction]
pub(crate) fn exiting() {
    capture::exiting();
}

/// Remove the black box: something else tells all that it could.
#[pyfunction]
pub(crate) fn discard_black_box() {
    capture::remove();
}

/// Return the step and the latest breadcrumbs, as a JSON object with those keys that have something to say.
#[pyfunction]
pub(crate) fn black_box() -> String {
    capture::to_json()
}
