//! Reports for Python: one job's, and the root cause among failures that a parent holds.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use firstfault_analysis::children::{self, Child};
use firstfault_analysis::{
    Options, Progress, Report, analyze_files, analyze_watched, report as forms, user_rules,
};
use pyo3::prelude::*;

use crate::error::{Result, guard};

/// How often a thread of Python's looks for signals while it waits.
const PATIENCE: Duration = Duration::from_millis(50);

/// Return the report on one job as JSON, and as text.
///
/// Args:
///     paths: Files and directories of the job; used where `files` is None.
///     files: Files in memory: relative paths, and contents.
///     world_size: The number of ranks, where known.
///     rules: A file of rules to try first.
///     redact: Whether hosts, users and addresses are replaced.
#[pyfunction]
pub(crate) fn report(
    py: Python<'_>,
    paths: Vec<Vec<u8>>,
    files: Option<Vec<(Vec<u8>, Vec<u8>)>>,
    world_size: Option<u32>,
    rules: Option<Vec<u8>>,
    redact: bool,
) -> Result<(String, String)> {
    let rules = rules.map(path);
    let paths: Vec<PathBuf> = paths.into_iter().map(path).collect();
    let named = |(name, content)| (path(name), content);
    let files = files.map(|files| files.into_iter().map(named).collect::<Vec<_>>());
    let found = watched(py, |progress| {
        let rules = rules.as_deref().map(user_rules).transpose()?;
        let options = Options::default()
            .with_world_size(world_size)
            .with_rules(rules);
        let found = match &files {
            Some(files) => analyze_files(files, &options, progress),
            None => analyze_watched(&paths, &options, progress),
        };
        found.map(|found| {
            if redact {
                forms::redact::redacted(found)
            } else {
                found
            }
        })
    })?;
    Ok((
        forms::json::render(&found),
        forms::text::render(&found, false),
    ))
}

fn path(name: Vec<u8>) -> PathBuf {
    OsString::from_vec(name).into()
}

/// Does the work in another thread, while this one answers signals; one that raises stops the work. Where no thread can be
/// started this one does it.
fn watched(
    py: Python<'_>,
    work: impl Fn(&Arc<Progress>) -> std::result::Result<Report, firstfault_analysis::Error> + Sync,
) -> Result<Report> {
    let progress = Arc::new(Progress::default());
    let is_done = AtomicBool::new(false);
    let waiting = thread::current();
    let do_it = || guard(|| Ok(work(&progress)?));
    thread::scope(|scope| {
        let in_thread = || {
            let done = do_it();
            is_done.store(true, Ordering::Release);
            waiting.unpark();
            done
        };
        let Ok(worker) = thread::Builder::new().spawn_scoped(scope, in_thread) else {
            return py.detach(do_it);
        };
        let mut raised = None;
        while !is_done.load(Ordering::Acquire) {
            py.detach(|| thread::park_timeout(PATIENCE));
            if raised.is_none()
                && let Err(error) = py.check_signals()
            {
                progress.stop();
                raised = Some(error);
            }
        }
        let done = py.detach(|| worker.join());
        match (raised, done) {
            (Some(error), _) => Err(error.into()),
            (None, Ok(done)) => done,
            (None, Err(panic)) => std::panic::resume_unwind(panic),
        }
    })
}

/// Rank, process ID, exit status, path and content of the error file.
type Failure = (u32, Option<u32>, i64, Vec<u8>, Vec<u8>);

/// Return the root cause among failures as JSON, or None where they do not tell.
///
/// Args:
///     failures: Of each child its rank, process ID, exit status (negative for a signal), and the path and content of its
///         error file, an empty path where it left none.
#[pyfunction]
pub(crate) fn root_cause(py: Python<'_>, failures: Vec<Failure>) -> Result<Option<String>> {
    let child = |(rank, pid, status, name, content): Failure| Child {
        rank,
        pid,
        status,
        error_file: (!name.is_empty()).then(|| (path(name), content)),
    };
    let children = failures.into_iter().map(child).collect();
    py.detach(|| {
        guard(|| {
            let cause = children::root_cause(children);
            Ok(cause.map(|cause| forms::json::of(&cause)))
        })
    })
}
