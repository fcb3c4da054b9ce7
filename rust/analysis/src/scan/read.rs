//! Bounded reads: no file costs more than its stated limit, and small ones cost one open, two reads, one close.

use super::excerpt::{Excerpt, excerpt};
use super::utf16::decoded;
use crate::error::Error;
use flate2::read::MultiGzDecoder;
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// At most this much of an error file is read, in bytes; a larger one is damaged.
pub const MAX_FILE_BYTES: usize = 16 << 20;

/// At most about this much of a log is kept, in bytes: its beginning, its end, and the first places that tell something.
pub const MAX_LOG_BYTES: usize = 16 << 20;

const BUFFER: usize = 64 << 10;

/// Where a file is: a name in an open directory, which the kernel finds sooner than a path.
#[derive(Clone, Copy)]
pub(crate) struct Location<'a> {
    directory: BorrowedFd<'a>,
    name: &'a Path,
    /// The same for people.
    pub(crate) path: &'a Path,
}

impl<'a> Location<'a> {
    pub(crate) fn of(path: &'a Path) -> Self {
        Self {
            directory: CWD,
            name: path,
            path,
        }
    }

    pub(super) fn within(directory: &'a OwnedFd, name: &'a OsStr, path: &'a Path) -> Self {
        Self {
            directory: directory.as_fd(),
            name: Path::new(name),
            path,
        }
    }

    pub(super) fn open_as(&self, flags: OFlags) -> io::Result<OwnedFd> {
        Ok(openat(self.directory, self.name, flags, Mode::empty())?)
    }

    fn open(&self) -> io::Result<File> {
        let file = self.open_as(OFlags::RDONLY | OFlags::CLOEXEC)?;
        Ok(file.into())
    }
}

/// Calls `use_bytes` with the whole content of an error file.
pub(crate) fn with_file<T>(
    location: Location<'_>,
    use_bytes: impl FnOnce(Result<&[u8], Error>) -> T,
) -> T {
    let path = location.path;
    thread_local! {
        // Ten thousand files of 3 KB need no ten thousand allocations.
        static SMALL: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
    }
    SMALL.with_borrow_mut(|buffer| {
        let read = location.open().and_then(|file| {
            let mut file = unpacked(location.name, file);
            let length = fill(&mut file, buffer)?;
            let mut rest = Vec::new();
            if length == buffer.len() {
                file.take((MAX_FILE_BYTES + 1 - length) as u64)
                    .read_to_end(&mut rest)?;
            }
            Ok((length, rest))
        });
        match read {
            Err(error) => use_bytes(Err(Error::io(path, error))),
            Ok((length, rest)) if length + rest.len() > MAX_FILE_BYTES => {
                let reason = format!("larger than {} MiB", MAX_FILE_BYTES >> 20);
                use_bytes(Err(Error::malformed(path, reason)))
            }
            Ok((length, rest)) if rest.is_empty() => use_bytes(Ok(&buffer[..length])),
            Ok((length, rest)) => use_bytes(Ok(&[&buffer[..length], &rest].concat())),
        }
    })
}

fn fill(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

/// Returns a log: all of it, or its first sixteenth, its end, and the first telling places between.
pub(super) fn log(path: &Path) -> io::Result<Excerpt> {
    let head = MAX_LOG_BYTES / 16;
    let bytes = unpacked(path, File::open(path)?);
    excerpt(decoded(bytes)?, head, MAX_LOG_BYTES - head)
}

/// Returns the content of a file that may be compressed by gzip, as its name says.
fn unpacked(path: &Path, file: File) -> Box<dyn Read> {
    match path.extension() {
        Some(extension) if extension == "gz" => Box::new(MultiGzDecoder::new(file)),
        _ => Box::new(file),
    }
}

/// Returns the first bytes of a file as text.
pub(super) fn head(path: &Path, limit: usize) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(limit as u64)
        .read_to_end(&mut bytes)?;
    Ok(lossy(bytes))
}

/// Returns the last bytes of a file as text.
pub(super) fn tail(path: &Path, limit: usize) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(limit as u64)))?;
    let mut bytes = Vec::new();
    file.take(limit as u64).read_to_end(&mut bytes)?;
    Ok(lossy(bytes))
}

fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}
