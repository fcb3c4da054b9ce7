//! Evidence to verdict to report: which rank of a dead job failed first, why, and with what evidence.
//!
//! [`analyze`] is the whole way: it finds the error files and logs below some paths, reads them, eliminates what is
//! only a consequence, and returns a [`schema::Report`] that [`report`] renders as text, JSON or markdown. Everything
//! after the reading is a pure function: the same evidence gives the same report, on any machine, with or without
//! torch.
//!
//! ```
//! use firstfault_analysis::{Options, analyze};
//!
//! let error = analyze(&["/nonexistent/job".into()], &Options::default()).unwrap_err();
//! assert_eq!(error.to_string(), "/nonexistent/job: No such file or directory");
//! ```
#![deny(unsafe_code)]

pub mod black_box;
pub mod children;
pub mod classify;
pub mod error;
pub mod failure;
pub mod groups;
mod literals;
pub mod logs;
pub mod parse;
pub mod report;
pub mod scan;
pub mod schema;
pub mod symbolize;
pub mod traceback;
pub mod verdict;

mod alike;
mod assemble;
mod blocks;
mod by_rank;
mod console;
mod date;
mod decide;
mod demangle;
mod descendants;
mod dress;
mod ended;
mod ending;
mod exits;
mod explain;
mod followers;
mod hang;
mod hearsay;
mod history;
mod hosts;
mod jobs;
mod kept;
mod launchers;
mod memory;
mod numbered;
mod numbers;
mod outcome;
mod output;
mod overlay;
mod pickle;
mod recorder;
mod records;
mod rendezvous;
mod reported;
mod rounds;
mod rules;
mod runs;
mod sequence;
mod silence;
mod speakers;
mod user_rules;
mod voices;
mod watchdog;
mod words;
mod work;

pub use error::{Error, ErrorKind};
pub use failure::Failure;
pub use memory::analyze_files;
pub use schema::Report;
pub use user_rules::{MAX_RULES_BYTES, rules_in, user_rules};
pub use work::Progress;

use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the caller knows about the job that its files may not say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The number of ranks that the job had, where known: ranks that left nothing at all are then counted as missing.
    pub world_size: Option<u32>,
    /// The process file system that tells whether the process of a black box is still there; `/proc` where not given.
    pub proc: Option<PathBuf>,
    /// The rules to go by; those that this build carries where not given.
    pub rules: Option<&'static classify::Rules>,
}

impl Options {
    /// Returns these options with the job's number of ranks.
    #[must_use]
    pub fn with_world_size(self, world_size: Option<u32>) -> Self {
        Self { world_size, ..self }
    }

    /// Returns these options with a user's rules.
    #[must_use]
    pub fn with_rules(self, rules: Option<&'static classify::Rules>) -> Self {
        Self { rules, ..self }
    }

    /// Returns these options with another process file system.
    #[must_use]
    pub fn with_proc(self, proc: PathBuf) -> Self {
        Self {
            proc: Some(proc),
            ..self
        }
    }
}

/// Returns the report on the one job whose files lie below `paths`.
///
/// Directories are walked (symbolic links to directories are not followed), files are read whatever their names. At
/// most [`scan::MAX_FILE_BYTES`] of an error file and [`scan::MAX_LOG_BYTES`] of a log are read. A file that cannot be
/// read or is no error file is an entry in the report's `damaged_files`, never an error.
///
/// # Errors
///
/// [`ErrorKind::Io`] when one of `paths` itself cannot be read, [`ErrorKind::NothingFound`] when no error file and no
/// log of a launcher lies below any of them.
pub fn analyze(paths: &[PathBuf], options: &Options) -> Result<Report, Error> {
    work::within(options.rules, None, || find_and_judge(paths, options))
}

/// Returns the same as [`analyze`], while another thread may look at its progress and stop it.
///
/// # Errors
///
/// As [`analyze`], and [`ErrorKind::Stopped`] once it was stopped.
pub fn analyze_watched(
    paths: &[PathBuf],
    options: &Options,
    progress: &Arc<Progress>,
) -> Result<Report, Error> {
    let progress = Some(Arc::clone(progress));
    work::within(options.rules, progress, || find_and_judge(paths, options))
}

fn find_and_judge(paths: &[PathBuf], options: &Options) -> Result<Report, Error> {
    let proc = options.proc.as_deref().unwrap_or(Path::new("/proc"));
    let evidence = scan::scan(paths, proc)?;
    if evidence.is_empty() {
        return Err(Error::nothing_found(paths));
    }
    Ok(verdict::judge(evidence, options))
}
