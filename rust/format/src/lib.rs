//! What the capture side and the analysis side must agree on, and nothing else.
//!
//! The dying process writes with these names, numbers and suffixes; the reader, in another process and perhaps on
//! another machine, reads with the same ones. No `std`, no `alloc`: the signal handler links this crate.
#![no_std]

pub mod black_box;
pub mod env;
pub mod files;
pub mod probe;
pub mod signals;

/// The version of the error file that this build writes, `firstfault.schema_version` in the file.
///
/// Readers accept every version up to this one, and say so when they meet a newer one.
pub const SCHEMA_VERSION: u32 = 1;

/// The key of our section in an error file; torch's own keys stand beside it.
pub const SECTION: &str = "firstfault";
