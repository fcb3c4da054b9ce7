//! The normal-context half of capture: who this process is, where its records go, and what the handler is told.
//!
//! The handler itself (`firstfault-handler`) knows no environment variables, formats no identity and allocates
//! nothing; all of that is prepared here, once, while the process is well.
#![deny(unsafe_code)]

mod activate;
pub mod black_box;
pub mod doctor;
pub mod dumper;
mod file_system;
pub mod identity;
mod leftovers;
mod named_error;
mod panics;
mod patience;
mod record;
mod redact;
mod target;
mod threads;

pub use activate::{Activation, activate, identity, reassert};
pub use firstfault_handler::commit::Strength;
pub use firstfault_handler::context::Clock;
pub use firstfault_handler::install::held;
pub use firstfault_handler::termination::restore as after_fork;
pub use named_error::NamedError;
pub use patience::may_hang;
pub use record::{commit, precede, replace};
pub use threads::{give_alternate_stack, protect_native_threads};
