//! Files that may not answer: they are touched by a thread that can be left behind.
//!
//! Nothing but SIGKILL reaches a thread that waits in the kernel for a file server. Whether one has to be asked is told
//! without asking: by what activation found, while the process was well.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use firstfault_handler::place::{Kind, PATIENCE_NS};

use crate::target::{self, Target};

/// Where the environment wants records, before anything of it was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) error_file: Option<PathBuf>,
    pub(crate) archive: Option<PathBuf>,
}

/// What is known to be on file systems of this node.
static LOCAL: Mutex<Option<Wanted>> = Mutex::new(None);

impl Wanted {
    pub(crate) fn now(error_file: Option<&Path>) -> Self {
        Self {
            error_file: error_file.map(Path::to_owned),
            archive: target::archive_directory(),
        }
    }

    /// Remembers which kind of file system the targets are on that were made of this.
    pub(crate) fn remember(self, targets: &[Target]) {
        let is_local = targets.iter().all(|target| target.kind == Kind::Local);
        *LOCAL.lock().unwrap_or_else(PoisonError::into_inner) = is_local.then_some(self);
    }

    pub(crate) fn may_hang(&self) -> bool {
        LOCAL
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            != Some(self)
    }

    /// Returns a path to name where nothing of it answers.
    pub(crate) fn path(&self) -> &Path {
        let path = self.error_file.as_ref().or(self.archive.as_ref());
        path.map_or(Path::new(""), PathBuf::as_path)
    }
}

/// Returns whether a file's system may not answer: whether it is any but the error file on a disk of this node.
pub fn may_hang(path: &Path) -> bool {
    let local = LOCAL.lock().unwrap_or_else(PoisonError::into_inner);
    let known = local.as_ref().and_then(|local| local.error_file.as_deref());
    known != Some(path)
}

/// Room for the writer's paths, without optimization.
const STACK: usize = 256 * 1024;

/// The process whose thread has not come back; 0 is none. A forked child's parent's is not its own.
static OUT: AtomicI32 = AtomicI32::new(0);

/// Does the work in a thread of its own, and waits for it no longer than a crash does.
///
/// # Errors
/// `ETIMEDOUT` where the thread has not come back, or where an earlier one still has not.
pub(crate) fn within<T: Send + 'static>(
    work: impl Fn() -> T + Send + Sync + 'static,
) -> io::Result<T> {
    let silent = || io::Error::from_raw_os_error(libc::ETIMEDOUT);
    let process = nix::unistd::getpid().as_raw();
    if OUT.swap(process, Ordering::AcqRel) == process {
        return Err(silent());
    }
    let work = Arc::new(work);
    let (done, result) = mpsc::channel();
    let thread = thread::Builder::new().stack_size(STACK).spawn({
        let work = Arc::clone(&work);
        move || {
            let result = work();
            OUT.store(0, Ordering::Release);
            let _ = done.send(result);
        }
    });
    if thread.is_err() {
        // No thread can be made: it is done here, or never.
        OUT.store(0, Ordering::Release);
        return Ok(work());
    }
    match result.recv_timeout(Duration::from_nanos(PATIENCE_NS)) {
        Ok(result) => Ok(result),
        Err(RecvTimeoutError::Timeout) => Err(silent()),
        Err(RecvTimeoutError::Disconnected) => {
            OUT.store(0, Ordering::Release);
            Err(io::Error::other("the writer has panicked"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_come_back_is_waited_for_once() {
        assert_eq!(within(|| 7).expect("it answers"), 7);
        let (release, gate) = mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let hang = move || drop(gate.lock().map(|gate| gate.recv()));
        let error = within(hang).expect_err("it does not answer");
        assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT));
        let error = within(|| ()).expect_err("the first is still out");
        assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT));
        drop(release);
        while OUT.load(Ordering::Acquire) != 0 {
            thread::yield_now();
        }
        assert_eq!(within(|| 8).expect("it answers again"), 8);
    }
}
