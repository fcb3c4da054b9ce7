//! Errors of the crates as Python exceptions.

use std::io;

use firstfault_analysis::ErrorKind;
use firstfault_capture::NamedError;
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;

/// An error on its way to Python.
pub(crate) enum Error {
    /// What Python itself raised.
    Python(PyErr),
    /// The operating system's, to become `OSError(errno, strerror, filename)`.
    Io(io::Error),
    /// The analysis', to become an exception of `firstfault._errors` that names the path.
    Analysis(firstfault_analysis::Error),
}

/// The result of every binding function that can fail.
pub(crate) type Result<T> = std::result::Result<T, Error>;

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<firstfault_analysis::Error> for Error {
    fn from(error: firstfault_analysis::Error) -> Self {
        Self::Analysis(error)
    }
}

impl From<PyErr> for Error {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        let error = match error {
            Error::Python(error) => return error,
            Error::Analysis(error) => return Python::attach(|py| raised(py, &error)),
            Error::Io(error) => error,
        };
        let named = error
            .get_ref()
            .and_then(|source| source.downcast_ref::<NamedError>());
        match named {
            Some(
                named @ NamedError {
                    errno: Some(errno),
                    path,
                    kept,
                },
            ) => {
                let mut reason = named.reason();
                if let Some(kept) = kept {
                    reason.push_str("; the record is in ");
                    reason.push_str(&kept.to_string_lossy());
                }
                // As text: a Path would load pathlib, which a process out of descriptors cannot, and PyO3 aborts then.
                PyOSError::new_err((*errno, reason, path.as_os_str().to_owned()))
            }
            _ => error.into(),
        }
    }
}

/// Returns the exception that says what kept an analysis from its report.
fn raised(py: Python<'_>, error: &firstfault_analysis::Error) -> PyErr {
    let path = error.path().as_os_str();
    let made = py.import("firstfault._errors").and_then(|errors| {
        let named = |class| errors.getattr(class)?.call1((error.to_string(),));
        match error.kind() {
            ErrorKind::Rules(_) => named("RulesError"),
            ErrorKind::NothingFound => named("NothingFoundError"),
            ErrorKind::Io(source) => {
                let errno = source.raw_os_error().unwrap_or(EINVAL);
                errors
                    .getattr("UnreadablePathError")?
                    .call1((errno, error.reason(), path))
            }
            _ => errors
                .getattr("UnreadablePathError")?
                .call1((EINVAL, error.reason(), path)),
        }
    });
    made.map_or_else(|error| error, PyErr::from_value)
}

/// What is said of a path that the operating system would read, but that is nothing to read from.
const EINVAL: i32 = 22;

/// Runs a function so that a panic of ours becomes a `RuntimeError`.
///
/// PyO3 would raise it as a `BaseException`, which callers that guard against our errors do not catch.
pub(crate) fn guard<T>(function: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(function)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("unknown");
        Err(Error::Python(PyRuntimeError::new_err(format!(
            "firstfault failed internally: {text}"
        ))))
    })
}
