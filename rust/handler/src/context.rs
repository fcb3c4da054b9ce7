//! Facts that the moment of a death leaves: the clocks now; the signal's own later in this file.

use crate::sys::{self, ClockError};

/// The time of one moment, on every clock that a reader may need.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// Nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Nanoseconds since boot, suspended time not counted: orders the events of one boot.
    pub monotonic_ns: u64,
    /// The kernel's own bound of its clock's error, where it says one.
    pub error: Option<ClockError>,
}

impl Clock {
    /// Returns the time of now.
    pub fn now() -> Self {
        Self {
            time_ns: sys::clock_ns(libc::CLOCK_REALTIME),
            monotonic_ns: sys::clock_ns(libc::CLOCK_MONOTONIC),
            error: sys::clock_error(),
        }
    }
}
