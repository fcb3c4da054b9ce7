//! Makes this process one whose death leaves a file.

use std::io;
use std::path::Path;
use std::sync::Mutex;

use firstfault_format::env;

use crate::identity::Identity;
use crate::target::{self, Claim};

/// What activation learned from its caller and keeps for later records.
struct Caller {
    arguments: Vec<String>,
    entrypoint: Option<String>,
}

static CALLER: Mutex<Option<Caller>> = Mutex::new(None);

/// What the caller of [`activate`] has to do next.
#[derive(Debug)]
pub struct Activation {
    /// The value of `FIRSTFAULT_CLAIM` for the children of this process, `None` where it is itself a child.
    pub claim: Option<String>,
}

/// Prepares this process: decides where its records go and tells the handler.
///
/// Can be called again: a changed error file, entry point or environment takes effect.
///
/// # Errors
/// A target's directory cannot be made; everything else is in force then.
pub fn activate(
    error_file: Option<&Path>,
    arguments: &[String],
    entrypoint: Option<&str>,
) -> io::Result<Activation> {
    *CALLER
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(Caller {
        arguments: arguments.to_vec(),
        entrypoint: entrypoint.map(str::to_owned),
    });
    let error_file = error_file.and_then(target::usable);
    let own = Claim::own(error_file);
    let parent = own.inherited_from(std::env::var(env::CLAIM).ok().as_deref());
    let (targets, failed) = target::targets(
        error_file,
        target::archive_directory().as_deref(),
        &identity(),
        parent,
    );
    if let Some(first) = targets.first() {
        target::sweep(first);
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(Activation {
            claim: parent.is_none().then(|| own.format()),
        }),
    }
}

/// Returns the identity of this process, with what [`activate`] was told of it.
pub fn identity() -> Identity {
    let caller = CALLER
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    match &*caller {
        Some(caller) => Identity::of_this_process(&caller.arguments, caller.entrypoint.as_deref()),
        None => {
            let arguments: Vec<String> = std::env::args_os()
                .map(|argument| argument.to_string_lossy().into_owned())
                .collect();
            Identity::of_this_process(&arguments, None)
        }
    }
}
