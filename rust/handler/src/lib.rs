//! What runs at signal time, and its installation.
//!
//! Everything reachable from [`handle`] up to the first commit is async-signal-safe by construction: no `std`, no
//! `alloc`, system calls alone. After the first commit come the named foreign stages of [`foreign`], each guarded.
//! Nothing here decides what a death means: facts are written down, another process judges them.
#![no_std]

pub mod commit;
pub mod context;
pub mod path;
pub mod sys;
