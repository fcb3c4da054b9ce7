//! Native stacks by the modules' unwind tables: framehop, prepared in normal context, run by the signal handler.
//!
//! [`prepare`] makes a table of the loaded modules while the process is well, and gives the handler [`walk`] as a guarded
//! foreign stage: it allocates nothing, takes no lock and reads stacks only through the kernel. The unwind tables it
//! reads where the loader mapped them; a module that was unloaded since is a fault in that stage, no more.
//!
//! Of a module that was loaded after the last [`prepare`], the tables are found at the time of the walk.
#![no_std]

extern crate alloc;

mod late;
mod modules;
mod walk;

pub use modules::{Prepared, prepare};
pub use walk::{walk, walk_with};
