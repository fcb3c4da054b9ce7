//! Faults on purpose, and signal handlers of others, for the crash tests: called from Python by ctypes.
//!
//! Independent of what it tests: nothing of firstfault is linked in.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "breaking things is what every function here is for"
)]

mod cpp;
mod faults;
mod forbidden;
mod handlers;
mod jump;
mod places;
mod signal_stack;
mod stacks;
mod threads;
mod waiting;

/// A fault, or whatever else a thread shall do.
type Function = extern "C" fn();
