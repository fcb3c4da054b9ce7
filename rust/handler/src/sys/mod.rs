//! The system calls as safe functions.
//!
//! All of them are in the list of signal-safety(7) or are bare system calls, which take no lock and allocate nothing;
//! those on files enter the kernel directly.
//! Errors are errno values: the handler has nobody to explain them to.

mod files;
mod memory;
mod raw;
mod signals;
mod threads;

use core::mem::MaybeUninit;

pub use files::*;
pub use libc::{CLOCK_BOOTTIME, CLOCK_REALTIME};
pub use memory::*;
pub use signals::*;
pub use threads::*;

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

/// Returns whether this process is the first of its PID namespace, which no signal ends by its default action.
pub fn is_init() -> bool {
    process_id() == 1
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

/// A read-only view of a file, unmapped on drop.
#[derive(Debug)]
pub struct View {
    start: *const u8,
    length: usize,
}

impl View {
    /// Maps the first bytes of a file. The caller must not shrink the file while it looks.
    pub fn new(descriptor: i32, length: usize) -> Option<Self> {
        if length == 0 {
            return None;
        }
        // SAFETY: a new private mapping touches nothing that exists.
        let start = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                length,
                libc::PROT_READ,
                libc::MAP_PRIVATE,
                descriptor,
                0,
            )
        };
        (start != libc::MAP_FAILED).then_some(Self {
            start: start.cast(),
            length,
        })
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped with this length until drop.
        unsafe { core::slice::from_raw_parts(self.start, self.length) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length.
        unsafe { libc::munmap(self.start.cast_mut().cast(), self.length) };
    }
}
