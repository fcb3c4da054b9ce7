//! What can go wrong in an analysis, and with which file.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// An analysis that could not be made, or a file that could not be read.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    path: PathBuf,
}

/// Why.
#[derive(Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operating system refused to open, list or read the path.
    Io(io::Error),
    /// The path is not a regular file: a FIFO, a device, a socket.
    NotAFile(&'static str),
    /// The bytes are not an error file; the text says where they stop being one.
    Malformed(String),
    /// No error file and no log of a launcher below the paths.
    NothingFound,
    /// A file of rules that cannot be used; the text says which rule, which field and why.
    Rules(String),
    /// Whoever watched the analysis stopped it.
    Stopped,
}

impl Error {
    pub(crate) fn io(path: &Path, error: io::Error) -> Self {
        Self {
            kind: ErrorKind::Io(error),
            path: path.to_owned(),
        }
    }

    pub(crate) fn not_a_file(path: &Path, what: &'static str) -> Self {
        Self {
            kind: ErrorKind::NotAFile(what),
            path: path.to_owned(),
        }
    }

    pub(crate) fn malformed(path: &Path, reason: String) -> Self {
        Self {
            kind: ErrorKind::Malformed(reason),
            path: path.to_owned(),
        }
    }

    pub(crate) fn nothing_found(paths: &[PathBuf]) -> Self {
        Self {
            kind: ErrorKind::NothingFound,
            path: paths.first().cloned().unwrap_or_default(),
        }
    }

    pub(crate) fn rules(path: &Path, reason: String) -> Self {
        Self {
            kind: ErrorKind::Rules(reason),
            path: path.to_owned(),
        }
    }

    pub(crate) fn stopped() -> Self {
        Self {
            kind: ErrorKind::Stopped,
            path: PathBuf::new(),
        }
    }

    /// Returns the same with another path.
    pub(crate) fn with_path(self, path: PathBuf) -> Self {
        Self { path, ..self }
    }

    /// Returns why.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// Returns the file or directory concerned.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the reason alone, without the path.
    pub fn reason(&self) -> String {
        match &self.kind {
            ErrorKind::Io(error) => without_number(error),
            ErrorKind::NotAFile(what) => format!("not a regular file but {what}"),
            ErrorKind::Malformed(reason) | ErrorKind::Rules(reason) => reason.clone(),
            ErrorKind::Stopped => "stopped".to_owned(),
            ErrorKind::NothingFound => {
                "no error file and no torchrun log found below this path".to_owned()
            }
        }
    }
}

/// Rust appends "(os error 2)", which helps nobody at three in the morning.
fn without_number(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ErrorKind::Stopped => f.write_str("stopped"),
            _ if self.path.as_os_str().is_empty() => f.write_str(&self.reason()),
            _ => write!(f, "{}: {}", self.path.display(), self.reason()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            ErrorKind::Io(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_display_names_the_file_and_drops_the_number() {
        let error = Error::io(Path::new("/x"), io::Error::from_raw_os_error(13));
        assert_eq!(error.to_string(), "/x: Permission denied");
        assert!(std::error::Error::source(&error).is_some());
        assert!(std::error::Error::source(&Error::nothing_found(&[])).is_none());
    }
}
