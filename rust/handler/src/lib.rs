//! What runs at signal time, and its installation.
//!
//! Everything reachable from [`handle`] up to the first commit is async-signal-safe by construction: no `std`, no
//! `alloc`, system calls alone. After the first commit come the named foreign stages of [`foreign`], each guarded.
//! Nothing here decides what a death means: facts are written down, another process judges them.
#![no_std]
#![cfg_attr(
    test,
    allow(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic
    )
)]

pub mod abort;
pub mod alternate_stack;
pub mod black_box;
mod bounds;
pub mod commit;
pub mod context;
mod crash_record;
mod delivery;
pub mod elf;
pub mod error_file;
pub mod foreign;
pub mod handle;
pub mod handlers;
mod helper;
#[cfg(feature = "inject")]
pub mod inject;
pub mod install;
pub mod json;
pub mod modules;
pub mod native;
mod notice;
pub mod offer;
mod owner;
pub mod park;
pub mod path;
pub mod place;
pub mod python_stack;
pub mod python_state;
mod remote;
mod stages;
mod symbols;
pub mod sys;
mod temporary;
pub mod termination;
mod watchdog;
mod words;
