//! The libc calls as safe functions.
//!
//! All of them are in the list of signal-safety(7) or are bare system calls, which take no lock and allocate nothing.
//! Errors are errno values: the handler has nobody to explain them to.

use core::ffi::CStr;
use core::mem::MaybeUninit;

/// An errno value, as `libc::ENOENT`.
pub type Errno = i32;

/// Returns the errno of the calling thread.
pub fn errno() -> Errno {
    // SAFETY: the location is the calling thread's own and always valid.
    unsafe { *libc::__errno_location() }
}

/// Sets the errno of the calling thread, to leave it as it was found.
pub fn set_errno(value: Errno) {
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = value }
}

fn check(result: libc::c_int) -> Result<libc::c_int, Errno> {
    if result < 0 { Err(errno()) } else { Ok(result) }
}

/// Returns the process ID, from the kernel: a raw clone(2) leaves glibc nothing to be wrong about.
pub fn process_id() -> i32 {
    // SAFETY: takes nothing, always succeeds.
    unsafe { libc::getpid() }
}

/// Returns the kernel's ID of the calling thread.
pub fn thread_id() -> i32 {
    // SAFETY: takes nothing, always succeeds. The value is a pid_t.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Returns the time of a clock in nanoseconds, 0 where the clock cannot be read.
pub fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a live timespec.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return 0;
    }
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}

/// What the kernel knows of its clock's error.
#[derive(Debug, Clone, Copy)]
pub struct ClockError {
    /// The bound of the error, microseconds.
    pub max_error_us: u64,
    /// Whether something (NTP, PTP) keeps the clock synchronized.
    pub synchronized: bool,
}

/// Returns the kernel's own bound of its clock's error, or `None` where it will not say.
///
/// Source: adjtimex(2); read-only, needs no privilege.
pub fn clock_error() -> Option<ClockError> {
    let mut timex = MaybeUninit::<libc::timex>::zeroed();
    // SAFETY: all zeros is a valid timex whose `modes` asks for no change; the kernel fills the rest.
    let state = unsafe { libc::syscall(libc::SYS_adjtimex, timex.as_mut_ptr()) };
    if state < 0 {
        return None;
    }
    // SAFETY: zeroed above, then filled by the kernel.
    let timex = unsafe { timex.assume_init() };
    Some(ClockError {
        max_error_us: timex.maxerror.max(0) as u64,
        synchronized: state != libc::TIME_ERROR as i64 && timex.status & libc::STA_UNSYNC == 0,
    })
}

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
