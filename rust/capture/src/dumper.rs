//! Takes CPython's dumper of Python stacks out of a signal's action.

use firstfault_handler::python_state::{self, Functions};
use firstfault_handler::{foreign, install, sys};

/// File descriptors below this are where programs open and close in loops.
///
/// It is in the table that every process begins with, which has room for 64: a larger one costs a process with other
/// threads 5 to 20 milliseconds. Source: Linux, fs/file.c, `expand_fdtable`, which waits for all CPUs.
const LOWEST_DESCRIPTOR: i32 = 56;

/// A registration in progress: the caller registers faulthandler for the signal, then calls [`Preparation::finish`].
#[derive(Debug)]
pub struct Preparation {
    signal: i32,
    descriptor: i32,
}

/// Starts a registration; `None` where the dumper is known already or cannot be had.
pub fn begin() -> Option<Preparation> {
    if foreign::python_dumper_address() != 0 {
        return None;
    }
    let (signal, _) = install::free_signals()?;
    let descriptor = sys::move_above(sys::memory_file(c"firstfault")?, LOWEST_DESCRIPTOR);
    Some(Preparation { signal, descriptor })
}

impl Preparation {
    /// Returns the real-time signal to register for.
    pub fn signal(&self) -> i32 {
        self.signal
    }

    /// Returns the descriptor of the memory file to register with.
    pub fn descriptor(&self) -> i32 {
        self.descriptor
    }

    /// Takes the function out of the signal's action and restores the action to the default. `version` is Python's.
    pub fn finish(self, version: (u8, u8)) {
        python_state::configure(&Functions::find(version));
        foreign::take_python_dumper(self.signal, self.descriptor);
    }
}
