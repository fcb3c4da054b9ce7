//! What holds for one analysis in every thread that works on it: whose rules it goes by, and whether it goes on.
//!
//! Each analysis works in threads of its own: nothing of it reaches another, and a child process that was forked after an
//! earlier one, and has none of its parent's threads, waits for none of them.

use crate::error::Error;
use crate::rules::Rules;
use rayon::ThreadPool;
use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How far an analysis has come, for another thread that watches it and may stop it.
#[derive(Debug, Default)]
pub struct Progress {
    files: AtomicU64,
    stopped: AtomicBool,
}

impl Progress {
    /// Returns the number of files that were read so far.
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Has the analysis end soon, with [`ErrorKind::Stopped`](crate::ErrorKind::Stopped).
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Clone, Default)]
struct Work {
    rules: Option<&'static Rules>,
    progress: Option<Arc<Progress>>,
}

thread_local! {
    static WORK: RefCell<Work> = RefCell::default();
}

/// Returns the rules of the analysis that this thread works on, where they are not the plain ones.
pub(crate) fn rules() -> Option<&'static Rules> {
    WORK.with_borrow(|work| work.rules)
}

/// Notes that one more file is to be read, and returns whether it still should be.
pub(crate) fn goes_on() -> bool {
    WORK.with_borrow(|work| {
        work.progress.as_ref().is_none_or(|progress| {
            progress.files.fetch_add(1, Ordering::Relaxed);
            !progress.is_stopped()
        })
    })
}

/// Runs an analysis by these rules, the plain ones where not given, and with this progress, in threads of its own; in
/// this one where no other can be started, as in a container that has used up its processes.
///
/// # Errors
///
/// Those of the part, and [`ErrorKind::Stopped`](crate::ErrorKind::Stopped).
pub(crate) fn within<T: Send>(
    rules: Option<&'static Rules>,
    progress: Option<Arc<Progress>>,
    part: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let work = Work { rules, progress };
    let watched = work.progress.clone();
    let done = match pool(work.clone(), 0) {
        Ok(pool) => pool.install(part),
        Err(_) => alone(work, part),
    };
    match watched.is_some_and(|progress| progress.is_stopped()) {
        true => Err(Error::stopped()),
        false => done,
    }
}

/// Runs an analysis in this thread.
fn alone<T>(work: Work, part: impl FnOnce() -> T) -> T {
    // A pool of this thread alone is in force for good; one that is there already does as well.
    let builder = rayon::ThreadPoolBuilder::new().num_threads(1);
    std::mem::forget(builder.use_current_thread().build());
    let before = WORK.replace(work);
    let done = part();
    WORK.set(before);
    done
}

/// Returns so many more threads for the analysis that this thread works on.
pub(crate) fn threads(number: usize) -> Result<ThreadPool, Error> {
    pool(WORK.with_borrow(Work::clone), number)
}

/// Does the parts of one piece of work side by side, in threads of their own: those of the analysis may all be waiting
/// for such pieces, and one that takes up another's meanwhile would never come back to its own. What no thread can be
/// started for is done in this one.
pub(crate) fn side_by_side<P: Sync, T: Send>(parts: &[P], work: impl Fn(&P) -> T + Sync) -> Vec<T> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = parts.len().div_ceil(threads).max(1);
    let all = |parts: &[P]| parts.iter().map(&work).collect::<Vec<T>>();
    std::thread::scope(|scope| {
        let start = |parts| {
            let (rules, all) = (WORK.with_borrow(Work::clone), &all);
            let in_thread = move || {
                WORK.set(rules);
                all(parts)
            };
            let started = std::thread::Builder::new().spawn_scoped(scope, in_thread);
            (parts, started.ok())
        };
        let shares: Vec<_> = parts.chunks(share).map(start).collect();
        let done = shares.into_iter().map(|(parts, started)| match started {
            Some(thread) => thread.join(),
            None => Ok(all(parts)),
        });
        done.flat_map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// Returns threads that work on one analysis; as many as there are processors for 0.
fn pool(work: Work, number: usize) -> Result<ThreadPool, Error> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(number)
        .start_handler(move |_| WORK.set(work.clone()))
        .build()
        .map_err(|error| Error::io(Path::new("threads"), std::io::Error::other(error)))
}
