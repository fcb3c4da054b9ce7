//! What runs in a worker: activation, identity, and the one writer.

use std::ffi::OsString;
use std::path::PathBuf;

use firstfault_capture as capture;
use firstfault_capture::{Clock, Strength};
use firstfault_format::env;
use pyo3::prelude::*;

use crate::error::{Result, guard};
use crate::{interpreter_end, python_stack};

/// Make this process one whose death leaves a file.
///
/// Can be called again: a changed error file or entry point takes effect. Sets `FIRSTFAULT_CLAIM` in `os.environ`, by
/// which a child knows that the error file is not its own.
///
/// Args:
///     error_file: Where torchelastic wants the error file; None, an empty name or a device means "no file".
///     entrypoint: The qualified name of the decorated function, if known.
///     argv: The command line to record; secrets in it are replaced.
///
/// Raises:
///     OSError: A target's directory could not be made. All else is in force then.
#[pyfunction]
#[pyo3(signature = (*, error_file, entrypoint, argv))]
pub(crate) fn activate(
    py: Python<'_>,
    error_file: Option<PathBuf>,
    entrypoint: Option<&str>,
    argv: Vec<String>,
) -> Result<()> {
    // Without the dumper a record lacks Python stacks, and has all the rest.
    let prepared = python_stack::prepare(py);
    interpreter_end::watch();
    let activation = guard(|| Ok(capture::activate(error_file.as_deref(), &argv, entrypoint)?))?;
    if let Some(claim) = activation.claim {
        py.import("os")?
            .getattr("environ")?
            .set_item(env::CLAIM, claim)?;
    }
    Ok(prepared?)
}

/// Return who this process is, as a JSON object with the keys `host`, `process` and `rank`.
#[pyfunction]
pub(crate) fn identity() -> Result<String> {
    guard(|| Ok(capture::identity().to_json()))
}

/// Return the time of now: `(time_ns, monotonic_ns, max_error_us, synchronized)`.
///
/// Nanoseconds since the Unix epoch, nanoseconds since boot, and the kernel's own bound of its clock's error in
/// microseconds, None where the kernel will not say.
///
/// Source: clock_gettime(2), adjtimex(2).
#[pyfunction]
pub(crate) fn clock() -> (u64, u64, Option<u64>, Option<bool>) {
    let now = Clock::now();
    let error = now.error;
    (
        now.time_ns,
        now.monotonic_ns,
        error.map(|error| error.max_error_us),
        error.map(|error| error.synchronized),
    )
}

/// Write a finished record to every target of this process, whole or not at all.
///
/// The first final record keeps the error file; what loses goes beside it as `<stem>.<pid>.json`. A provisional record
/// is replaced by a final one. An empty file, or one older than this process, is replaced and kept beside.
///
/// Args:
///     error_file: Where torchelastic wants the error file; None, an empty name or a device means "no file".
///     record: A whole error file.
///     compact: Its form of at most 4,000 bytes, for a target that can only be written in place.
///     final: Whether the process is leaving because of this failure.
///     copy: Whether `<stem>.firstfault.json` is written too, because an outer recorder may overwrite the first.
///
/// Returns:
///     The path of the record at the first target that took it, None where there is no target.
///
/// Raises:
///     OSError: A target could not be written; all were tried. `TimeoutError` where one does not answer.
#[pyfunction]
#[pyo3(signature = (error_file, record, compact, *, r#final, copy))]
pub(crate) fn commit(
    error_file: Option<PathBuf>,
    record: &[u8],
    compact: &[u8],
    r#final: bool,
    copy: bool,
) -> Result<Option<OsString>> {
    let strength = if r#final {
        Strength::Final
    } else {
        Strength::Provisional
    };
    guard(|| {
        let written = capture::commit(error_file.as_deref(), record, compact, strength, copy)?;
        Ok(written.map(PathBuf::into_os_string))
    })
}

/// Replace a file by these bytes, whatever was there; a mount point is written in place.
///
/// Raises:
///     OSError: The file could not be written.
#[pyfunction]
pub(crate) fn replace(path: PathBuf, content: &[u8]) -> Result<()> {
    guard(|| Ok(capture::replace(&path, content)?))
}

/// Return whether a file's system may not answer, as far as is known without asking it: whether the file is any but the
/// error file on a disk of this node, as `activate` found it.
#[pyfunction]
pub(crate) fn may_hang(path: PathBuf) -> bool {
    capture::may_hang(&path)
}

/// Put back, in a forked child, what SIGTERM, SIGHUP and SIGQUIT did before `activate`: they are its parent's business.
#[pyfunction]
pub(crate) fn after_fork() {
    capture::after_fork();
}

/// Give the calling thread an alternate signal stack for as long as it lives, so that its own overflow is recorded.
///
/// Raises:
///     OSError: There is no memory for it.
#[pyfunction]
pub(crate) fn give_alternate_stack() -> Result<()> {
    guard(|| Ok(capture::give_alternate_stack()?))
}

/// Give the threads of this process that have none an alternate signal stack; return to how many.
///
/// Raises:
///     OSError: There is no memory for them, or no real-time signal is free.
#[pyfunction]
pub(crate) fn protect_native_threads() -> Result<usize> {
    guard(|| Ok(capture::protect_native_threads()?))
}

/// Let a later crash record mention, in `preceded_by`, a failure that the process survived. At most eight are kept.
///
/// Args:
///     entry: A JSON object.
#[pyfunction]
pub(crate) fn precede(entry: String) -> Result<()> {
    guard(|| {
        capture::precede(entry);
        Ok(())
    })
}

/// Return the crash signals that are handled by us, as a set of bits for `reassert`.
#[pyfunction]
pub(crate) fn held() -> u32 {
    capture::held()
}

/// Put the handlers of crash signals back above those that came later and are known to end the process.
///
/// Args:
///     held: The signals that were handled by us until somebody put back what had been there before: they are again.
///
/// Raises:
///     OSError: The kernel refused.
#[pyfunction]
#[pyo3(signature = (held=0))]
pub(crate) fn reassert(held: u32) -> Result<()> {
    guard(|| Ok(capture::reassert(held)?))
}
