//! Native stacks by the modules' unwind tables, found and read as the signal handler walks.
//!
//! [`install`] gives the handler [`walk`] as a guarded foreign stage: it allocates nothing, takes no lock, and reads
//! stacks and program headers through the kernel alone. The tables it reads where the loader mapped them; a module that
//! is unloaded meanwhile is a fault in that stage, no more. Nothing is prepared, so a start costs nothing, and a module
//! is found whenever it was loaded.
#![no_std]

mod row;
mod rule;
mod signal_frame;
mod tables;
mod walk;

pub use walk::{install, walk};
