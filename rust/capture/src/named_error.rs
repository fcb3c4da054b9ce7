//! Errors of the operating system that say which path they are about, and where a record is instead.

use std::io;
use std::path::{Path, PathBuf};

/// The same error, with the path that it is about.
pub(crate) fn named(error: &io::Error, path: &Path) -> io::Error {
    io::Error::new(
        error.kind(),
        NamedError {
            errno: error.raw_os_error(),
            path: path.to_owned(),
            kept: None,
        },
    )
}

/// The same error, with where the record is instead.
pub(crate) fn kept_in(error: io::Error, kept: Option<PathBuf>) -> io::Error {
    let kind = error.kind();
    match error.downcast::<NamedError>() {
        Ok(named) => io::Error::new(kind, NamedError { kept, ..named }),
        Err(error) => error,
    }
}

/// An operating-system error and its path, so that a caller can say both.
#[derive(Debug)]
pub struct NamedError {
    /// The errno, where the operating system gave one.
    pub errno: Option<i32>,
    /// The file or directory.
    pub path: PathBuf,
    /// Where the record is that could not be written there.
    pub kept: Option<PathBuf>,
}

impl NamedError {
    /// Returns what the operating system says of the error, without its number.
    pub fn reason(&self) -> String {
        match self.errno {
            None => "failed".to_owned(),
            // Only a file server's silence has this one.
            Some(libc::ETIMEDOUT) => "the file system does not answer".to_owned(),
            Some(errno) => nix::errno::Errno::from_raw(errno).desc().to_owned(),
        }
    }
}

impl std::fmt::Display for NamedError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}: {}", self.path.display(), self.reason())?;
        match &self.kept {
            Some(kept) => write!(formatter, "; the record is in {}", kept.display()),
            None => Ok(()),
        }
    }
}

impl std::error::Error for NamedError {}
