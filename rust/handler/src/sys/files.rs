//! Files: opened, written, named, and moved between descriptors.

use core::ffi::CStr;
use core::mem::MaybeUninit;

use super::{Errno, check, errno};

/// Opens a file; `mode` counts only where the flags create one.
pub fn open(path: &CStr, flags: libc::c_int, mode: libc::mode_t) -> Result<i32, Errno> {
    loop {
        // SAFETY: the path is NUL-terminated.
        let result = check(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, mode) });
        if result != Err(libc::EINTR) {
            return result;
        }
    }
}

/// Closes a descriptor.
pub fn close(descriptor: i32) {
    // SAFETY: closing is safe for any number; a wrong one is an error that nobody can act on.
    unsafe { libc::close(descriptor) };
}

/// Writes all bytes, going on after interruptions and short writes.
pub fn write_all(descriptor: i32, bytes: &[u8]) -> Result<(), Errno> {
    let mut rest = bytes;
    while !rest.is_empty() {
        // SAFETY: pointer and length are of one live slice.
        let written = unsafe { libc::write(descriptor, rest.as_ptr().cast(), rest.len()) };
        match written {
            0 => return Err(libc::EIO),
            count if count > 0 => rest = rest.get(count as usize..).unwrap_or_default(),
            _ if errno() == libc::EINTR => {}
            _ => return Err(errno()),
        }
    }
    Ok(())
}

/// Reads once, going on after interruptions; returns the number of bytes, 0 at the end.
pub fn read(descriptor: i32, buffer: &mut [u8]) -> Result<usize, Errno> {
    loop {
        // SAFETY: pointer and length are of one live slice.
        let count = unsafe { libc::read(descriptor, buffer.as_mut_ptr().cast(), buffer.len()) };
        if count >= 0 {
            return Ok(count as usize);
        }
        if errno() != libc::EINTR {
            return Err(errno());
        }
    }
}

/// Which file a path names, and what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStatus {
    /// Device and inode: the file's identity while it exists.
    pub identity: (u64, u64),
    /// The kind and permission bits.
    pub mode: libc::mode_t,
    /// Its size, bytes.
    pub size: u64,
    /// When its content last changed, nanoseconds since the Unix epoch.
    pub modified_ns: u64,
}

impl FileStatus {
    /// Returns whether it is a regular file.
    pub fn is_regular(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }

    fn new(status: &libc::stat) -> Self {
        Self {
            identity: (status.st_dev, status.st_ino),
            mode: status.st_mode,
            size: status.st_size.max(0) as u64,
            modified_ns: (status.st_mtime as u64)
                .wrapping_mul(1_000_000_000)
                .wrapping_add(status.st_mtime_nsec as u64),
        }
    }
}

/// Returns what a path names, a symbolic link itself and not its target.
pub fn status(path: &CStr) -> Result<FileStatus, Errno> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the path is NUL-terminated and the room is for one stat.
    check(unsafe { libc::lstat(path.as_ptr(), status.as_mut_ptr()) })?;
    // SAFETY: lstat succeeded and filled it.
    Ok(FileStatus::new(unsafe { status.assume_init_ref() }))
}

/// Returns what an open descriptor names.
pub fn descriptor_status(descriptor: i32) -> Result<FileStatus, Errno> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the room is for one stat.
    check(unsafe { libc::fstat(descriptor, status.as_mut_ptr()) })?;
    // SAFETY: fstat succeeded and filled it.
    Ok(FileStatus::new(unsafe { status.assume_init_ref() }))
}

/// Gives a file a second name; fails with `EEXIST` where the name is taken.
pub fn link(from: &CStr, to: &CStr) -> Result<(), Errno> {
    // SAFETY: both paths are NUL-terminated. AT_SYMLINK_FOLLOW is for /proc/self/fd/N, the name of a nameless file.
    check(unsafe {
        libc::linkat(
            libc::AT_FDCWD,
            from.as_ptr(),
            libc::AT_FDCWD,
            to.as_ptr(),
            libc::AT_SYMLINK_FOLLOW,
        )
    })
    .map(drop)
}

/// Renames a file over whatever has the new name.
pub fn rename(from: &CStr, to: &CStr) -> Result<(), Errno> {
    // SAFETY: both paths are NUL-terminated.
    check(unsafe { libc::rename(from.as_ptr(), to.as_ptr()) }).map(drop)
}

/// Removes a name.
pub fn unlink(path: &CStr) -> Result<(), Errno> {
    // SAFETY: the path is NUL-terminated.
    check(unsafe { libc::unlink(path.as_ptr()) }).map(drop)
}

/// Moves the offset of a descriptor; returns the new one.
pub fn seek(descriptor: i32, offset: i64, whence: libc::c_int) -> Result<u64, Errno> {
    // SAFETY: takes numbers alone.
    let result = unsafe { libc::lseek(descriptor, offset, whence) };
    if result < 0 {
        Err(errno())
    } else {
        Ok(result as u64)
    }
}

/// Returns the descriptor of a new file in memory.
pub fn memory_file(name: &CStr) -> Option<i32> {
    // SAFETY: the name is NUL-terminated.
    let result = unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC) };
    (result >= 0).then_some(result as i32)
}

/// Makes another number mean the same file, closing what it meant before.
pub fn duplicate_to(descriptor: i32, number: i32) -> Result<(), Errno> {
    // SAFETY: takes numbers alone.
    check(unsafe { libc::dup3(descriptor, number, libc::O_CLOEXEC) }).map(drop)
}

/// Moves a descriptor to the lowest free number from `lowest` on, out of the way of loops that close small ones.
pub fn move_above(descriptor: i32, lowest: i32) -> i32 {
    // SAFETY: takes numbers alone.
    let moved = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, lowest) };
    if moved < 0 {
        return descriptor;
    }
    close(descriptor);
    moved
}
