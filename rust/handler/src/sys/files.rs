//! Files: opened, written, named, and moved between descriptors.

use core::ffi::CStr;
use core::mem::MaybeUninit;

use super::{Errno, raw};

/// Enters the kernel for a call on files, which an interruption does not end.
///
/// `takes_room` is whether a full disk may refuse it.
///
/// # Safety
/// As [`raw::call`].
unsafe fn call(
    number: libc::c_long,
    arguments: [usize; 5],
    takes_room: bool,
) -> Result<usize, Errno> {
    loop {
        #[cfg(not(feature = "inject"))]
        let allowed: Result<(), Errno> = Ok(());
        #[cfg(feature = "inject")]
        let allowed = crate::inject::before_call(takes_room);
        let _ = takes_room;
        // SAFETY: the caller's promise.
        let result = allowed.and_then(|()| unsafe { raw::call(number, arguments) });
        if result != Err(libc::EINTR) {
            return result;
        }
    }
}

/// The directory that relative paths begin at; all of ours are absolute.
const HERE: usize = libc::AT_FDCWD as usize;

/// Opens a file; `mode` counts only where the flags create one.
pub fn open(path: &CStr, flags: libc::c_int, mode: libc::mode_t) -> Result<i32, Errno> {
    let flags = flags | libc::O_CLOEXEC;
    let arguments = [
        HERE,
        path.as_ptr().expose_provenance(),
        flags as usize,
        mode as usize,
        0,
    ];
    let creates = flags & libc::O_CREAT != 0 || flags & libc::O_TMPFILE == libc::O_TMPFILE;
    // SAFETY: the path is NUL-terminated.
    unsafe { call(libc::SYS_openat, arguments, creates) }.map(|descriptor| descriptor as i32)
}

/// Closes a descriptor.
pub fn close(descriptor: i32) {
    // Once: an interrupted one is closed all the same, and its number may be somebody else's by then.
    // SAFETY: closing is safe for any number; a wrong one is an error that nobody can act on.
    let _ = unsafe { raw::call(libc::SYS_close, [descriptor as usize, 0, 0, 0, 0]) };
}

/// Writes all bytes, going on after interruptions and short writes.
pub fn write_all(descriptor: i32, bytes: &[u8]) -> Result<(), Errno> {
    let mut rest = bytes;
    while !rest.is_empty() {
        #[cfg(not(feature = "inject"))]
        let length = rest.len();
        #[cfg(feature = "inject")]
        let length = crate::inject::taken(rest.len());
        let arguments = [
            descriptor as usize,
            rest.as_ptr().expose_provenance(),
            length,
            0,
            0,
        ];
        // SAFETY: pointer and length are of one live slice.
        match unsafe { call(libc::SYS_write, arguments, true) }? {
            0 => return Err(libc::EIO),
            count => rest = rest.get(count..).unwrap_or_default(),
        }
    }
    Ok(())
}

/// Writes two pieces one behind the other, by one call as long as the kernel takes all of it.
pub fn write_both(descriptor: i32, first: &[u8], second: &[u8]) -> Result<(), Errno> {
    let piece = |bytes: &[u8]| libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let pieces = [piece(first), piece(second)];
    let arguments = [
        descriptor as usize,
        pieces.as_ptr().expose_provenance(),
        pieces.len(),
        0,
        0,
    ];
    // SAFETY: the pieces are two live slices, which the kernel only reads.
    let count = unsafe { call(libc::SYS_writev, arguments, true) }?;
    write_all(descriptor, first.get(count..).unwrap_or_default())?;
    let count = count.saturating_sub(first.len());
    write_all(descriptor, second.get(count..).unwrap_or_default())
}

/// Writes one byte, which is no call on files that a plan counts.
#[cfg(feature = "inject")]
pub(crate) fn write_a_byte(descriptor: i32) {
    let arguments = [
        descriptor as usize,
        b".".as_ptr().expose_provenance(),
        1,
        0,
        0,
    ];
    // SAFETY: pointer and length are of one live slice.
    let _ = unsafe { raw::call(libc::SYS_write, arguments) };
}

/// Cuts a file to this length, bytes.
pub fn cut(descriptor: i32, length: u64) -> Result<(), Errno> {
    let arguments = [descriptor as usize, length as usize, 0, 0, 0];
    // SAFETY: takes numbers alone.
    unsafe { call(libc::SYS_ftruncate, arguments, false) }.map(drop)
}

/// Reads once; returns the number of bytes, 0 at the end.
pub fn read(descriptor: i32, buffer: &mut [u8]) -> Result<usize, Errno> {
    let arguments = [
        descriptor as usize,
        buffer.as_mut_ptr().expose_provenance(),
        buffer.len(),
        0,
        0,
    ];
    // SAFETY: pointer and length are of one live slice.
    unsafe { call(libc::SYS_read, arguments, false) }
}

/// Reads once from an offset, which the descriptor's own does not change.
pub fn read_at(descriptor: i32, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let arguments = [
        descriptor as usize,
        buffer.as_mut_ptr().expose_provenance(),
        buffer.len(),
        offset as usize,
        0,
    ];
    // SAFETY: pointer and length are of one live slice.
    unsafe { call(libc::SYS_pread64, arguments, false) }
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
    let arguments = [
        HERE,
        path.as_ptr().expose_provenance(),
        status.as_mut_ptr().expose_provenance(),
        libc::AT_SYMLINK_NOFOLLOW as usize,
        0,
    ];
    // SAFETY: the path is NUL-terminated and the room is for one stat, which on 64-bit machines is the kernel's own.
    unsafe { call(libc::SYS_newfstatat, arguments, false) }?;
    // SAFETY: the call succeeded and filled it.
    Ok(FileStatus::new(unsafe { status.assume_init_ref() }))
}

/// Returns what an open descriptor names.
pub fn descriptor_status(descriptor: i32) -> Result<FileStatus, Errno> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    let arguments = [
        descriptor as usize,
        status.as_mut_ptr().expose_provenance(),
        0,
        0,
        0,
    ];
    // SAFETY: as in `status`.
    unsafe { call(libc::SYS_fstat, arguments, false) }?;
    // SAFETY: the call succeeded and filled it.
    Ok(FileStatus::new(unsafe { status.assume_init_ref() }))
}

/// Gives a file a second name; fails with `EEXIST` where the name is taken.
pub fn link(from: &CStr, to: &CStr) -> Result<(), Errno> {
    // AT_SYMLINK_FOLLOW is for /proc/self/fd/N, the name of a nameless file.
    let flags = libc::AT_SYMLINK_FOLLOW as usize;
    let arguments = [
        HERE,
        from.as_ptr().expose_provenance(),
        HERE,
        to.as_ptr().expose_provenance(),
        flags,
    ];
    // SAFETY: both paths are NUL-terminated.
    unsafe { call(libc::SYS_linkat, arguments, true) }.map(drop)
}

/// Renames a file over whatever has the new name.
pub fn rename(from: &CStr, to: &CStr) -> Result<(), Errno> {
    rename_by(from, to, 0)
}

/// Renames a file; fails with `EEXIST` where the new name is taken, and with `EINVAL` on file systems without such a
/// call.
pub fn rename_to_free(from: &CStr, to: &CStr) -> Result<(), Errno> {
    rename_by(from, to, libc::RENAME_NOREPLACE)
}

fn rename_by(from: &CStr, to: &CStr, flags: libc::c_uint) -> Result<(), Errno> {
    let flags = flags as usize;
    let arguments = [
        HERE,
        from.as_ptr().expose_provenance(),
        HERE,
        to.as_ptr().expose_provenance(),
        flags,
    ];
    // SAFETY: both paths are NUL-terminated.
    unsafe { call(libc::SYS_renameat2, arguments, true) }.map(drop)
}

/// Removes a name.
pub fn unlink(path: &CStr) -> Result<(), Errno> {
    // SAFETY: the path is NUL-terminated.
    unsafe {
        call(
            libc::SYS_unlinkat,
            [HERE, path.as_ptr().expose_provenance(), 0, 0, 0],
            false,
        )
    }
    .map(drop)
}

/// Moves the offset of a descriptor; returns the new one.
pub fn seek(descriptor: i32, offset: i64, whence: libc::c_int) -> Result<u64, Errno> {
    let arguments = [descriptor as usize, offset as usize, whence as usize, 0, 0];
    // SAFETY: takes numbers alone.
    unsafe { raw::call(libc::SYS_lseek, arguments) }.map(|offset| offset as u64)
}

/// Returns the descriptor of a new file in memory.
pub fn memory_file(name: &CStr) -> Option<i32> {
    let arguments = [
        name.as_ptr().expose_provenance(),
        libc::MFD_CLOEXEC as usize,
        0,
        0,
        0,
    ];
    // SAFETY: the name is NUL-terminated.
    let descriptor = unsafe { raw::call(libc::SYS_memfd_create, arguments) };
    descriptor.ok().map(|descriptor| descriptor as i32)
}

/// Makes another number mean the same file, closing what it meant before.
pub fn duplicate_to(descriptor: i32, number: i32) -> Result<(), Errno> {
    let flags = libc::O_CLOEXEC as usize;
    // SAFETY: takes numbers alone.
    unsafe {
        raw::call(
            libc::SYS_dup3,
            [descriptor as usize, number as usize, flags, 0, 0],
        )
    }
    .map(drop)
}

/// Returns another number for the same file, the lowest free one from `lowest` on.
pub fn duplicate_above(descriptor: i32, lowest: i32) -> Result<i32, Errno> {
    let arguments = [
        descriptor as usize,
        libc::F_DUPFD_CLOEXEC as usize,
        lowest as usize,
        0,
        0,
    ];
    // SAFETY: takes numbers alone.
    unsafe { raw::call(libc::SYS_fcntl, arguments) }.map(|number| number as i32)
}

/// Moves a descriptor to the lowest free number from `lowest` on, out of the way of loops that close small ones.
pub fn move_above(descriptor: i32, lowest: i32) -> i32 {
    let Ok(moved) = duplicate_above(descriptor, lowest) else {
        return descriptor;
    };
    close(descriptor);
    moved
}
