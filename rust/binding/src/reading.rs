//! What reads: the classification of a message, names of signals, and the command line.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use firstfault_analysis::classify;
use firstfault_format::signals;
use pyo3::prelude::*;

use firstfault_capture::doctor::probes;

use crate::error::{Result, guard};

/// More than the rules need where they have to be built first, bytes.
const ROOM_FOR_RULES: usize = 32 << 20;

/// Whether there is memory for the rules: an allocation of Rust's that fails ends the process, and its own error with it.
fn has_room() -> bool {
    let mut room = Vec::<u8>::new();
    let is_there = room.try_reserve_exact(ROOM_FOR_RULES).is_ok();
    // What nobody looks at need not be asked for.
    std::hint::black_box(&mut room);
    is_there
}

/// Return whether a message says that a peer or the store was lost: then its failure is the consequence of another.
///
/// Without memory for the rules it says that of none.
#[pyfunction]
pub(crate) fn is_collateral(message: &str) -> Result<bool> {
    guard(|| Ok(has_room() && classify::is_collateral(message)))
}

/// Return whether an exception's text is one of a rank's own work: not of the communicator, the device or a peer.
///
/// Without memory for the rules it says that of none.
///
/// Args:
///     message: The exception as ``ValueError: the text``.
#[pyfunction]
pub(crate) fn is_rank_local(message: &str) -> Result<bool> {
    guard(|| Ok(has_room() && classify::is_rank_local(message)))
}

/// Return the name of a signal, as `SIGSEGV`, or None for a number without one.
#[pyfunction]
pub(crate) fn signal_name(number: i32) -> Option<&'static str> {
    signals::by_number(number).map(|signal| signal.name)
}

/// Run the command line and return its exit status.
///
/// Args:
///     arguments: Without the program's own name, as the operating system's bytes.
#[pyfunction]
pub(crate) fn run_cli(py: Python<'_>, arguments: Vec<Vec<u8>>) -> Result<u8> {
    let arguments = arguments.into_iter().map(OsString::from_vec);
    py.detach(|| guard(|| Ok(firstfault::run_with(arguments, Some(&probes)))))
}

/// Return the modules that `firstfault doctor` is to import; None where the arguments ask for something else.
///
/// Args:
///     arguments: Those after the program's name, as the operating system's bytes.
#[pyfunction]
pub(crate) fn modules_to_import(arguments: Vec<Vec<u8>>) -> Result<Option<Vec<String>>> {
    let arguments = arguments.into_iter().map(OsString::from_vec);
    guard(|| Ok(firstfault::modules_to_import(arguments)))
}

/// Return what capture can and cannot do in this process, as the text that `firstfault doctor` prints.
#[pyfunction]
pub(crate) fn doctor(py: Python<'_>) -> Result<String> {
    py.detach(|| {
        guard(|| {
            let found = firstfault::doctor::examine(Some(&probes));
            Ok(firstfault::doctor::text(&found, false))
        })
    })
}
