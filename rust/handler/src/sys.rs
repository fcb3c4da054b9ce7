//! The libc calls as safe functions.
//!
//! All of them are in the list of signal-safety(7) or are bare system calls, which take no lock and allocate nothing.
//! Errors are errno values: the handler has nobody to explain them to.

use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::sync::atomic::AtomicU32;

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

/// Sleeps while the word holds this value, at most so long; a wake-up, a change or a signal ends it early.
///
/// Source: futex(2), a bare system call.
pub fn futex_wait(word: &AtomicU32, value: u32, timeout_ns: u64) {
    let timeout = libc::timespec {
        tv_sec: (timeout_ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (timeout_ns % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: the word and the timeout live through the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            value,
            &raw const timeout,
        )
    };
}

/// Wakes all who sleep on the word.
pub fn futex_wake(word: &AtomicU32) {
    // SAFETY: the word lives through the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            i32::MAX,
        )
    };
}

/// Sends a signal to one thread of this process.
pub fn signal_thread(thread: i32, signal: libc::c_int) -> Result<(), Errno> {
    // SAFETY: takes numbers alone.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, process_id(), thread, signal) };
    if result < 0 { Err(errno()) } else { Ok(()) }
}

/// Queues a signal with this information to the calling thread.
///
/// Source: rt_tgsigqueueinfo(2); a process may send itself any information, a kernel's `si_code` too.
pub fn queue_to_self(signal: libc::c_int, info: &libc::siginfo_t) -> Result<(), Errno> {
    // SAFETY: the information lives through the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_rt_tgsigqueueinfo,
            process_id(),
            thread_id(),
            signal,
            &raw const *info,
        )
    };
    if result < 0 { Err(errno()) } else { Ok(()) }
}

/// Returns the action of a signal.
pub fn action(signal: libc::c_int) -> Result<libc::sigaction, Errno> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null new action only asks; the room is for one sigaction.
    check(unsafe { libc::sigaction(signal, core::ptr::null(), action.as_mut_ptr()) })?;
    // SAFETY: zeroed, then filled.
    Ok(unsafe { action.assume_init() })
}

/// Sets the action of a signal.
pub fn set_action(signal: libc::c_int, action: &libc::sigaction) -> Result<(), Errno> {
    // SAFETY: the caller's sigaction lives through the call; what it points to is what it promises.
    check(unsafe { libc::sigaction(signal, &raw const *action, core::ptr::null_mut()) }).map(drop)
}

/// Returns the default action.
pub fn default_action() -> libc::sigaction {
    // SAFETY: all zeros is SIG_DFL with no flags and an empty mask.
    unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() }
}

/// Returns an empty set of signals.
pub fn empty_set() -> libc::sigset_t {
    // SAFETY: all zeros is the empty set of every libc on Linux.
    unsafe { MaybeUninit::<libc::sigset_t>::zeroed().assume_init() }
}

/// Adds a signal to a set.
pub fn add_to_set(set: &mut libc::sigset_t, signal: libc::c_int) {
    // SAFETY: the set is live; a wrong number is refused.
    unsafe { libc::sigaddset(&raw mut *set, signal) };
}

/// Returns the full set of signals but for those that the filter keeps out.
pub fn all_signals_but(kept_out: impl Fn(libc::c_int) -> bool) -> libc::sigset_t {
    let mut set = empty_set();
    for signal in 1..=64 {
        if !kept_out(signal) {
            add_to_set(&mut set, signal);
        }
    }
    set
}

/// Sets the signal mask of the calling thread.
pub fn set_mask(how: libc::c_int, set: &libc::sigset_t) {
    // SAFETY: the set lives through the call. sigprocmask is per thread in glibc and musl alike.
    unsafe { libc::sigprocmask(how, &raw const *set, core::ptr::null_mut()) };
}

/// Returns the name of the calling thread, at most 15 bytes and NULs after them.
pub fn thread_name() -> [u8; 16] {
    let mut name = [0; 16];
    // SAFETY: PR_GET_NAME fills 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
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

/// A timer that sends a signal to one thread.
#[derive(Debug)]
pub struct ThreadTimer(libc::timer_t);

impl ThreadTimer {
    /// Returns a timer for the calling thread.
    ///
    /// Source: timer_create(2) with `SIGEV_THREAD_ID`, by bare system call: glibc's own wrapper allocates.
    pub fn new(signal: libc::c_int) -> Result<Self, Errno> {
        // SAFETY: all zeros is a valid sigevent.
        let mut event = unsafe { MaybeUninit::<libc::sigevent>::zeroed().assume_init() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_notify_thread_id = thread_id();
        let mut timer: libc::c_int = 0;
        // SAFETY: both pointers are to live values; the kernel's timer_t is an int.
        let result = unsafe {
            libc::syscall(
                libc::SYS_timer_create,
                libc::CLOCK_MONOTONIC,
                &raw mut event,
                &raw mut timer,
            )
        };
        if result < 0 {
            return Err(errno());
        }
        Ok(Self(timer as usize as libc::timer_t))
    }

    /// Returns the timer with this ID.
    pub fn from_id(id: i32) -> Self {
        Self(id as usize as libc::timer_t)
    }

    /// Returns the kernel's ID of the timer.
    pub fn id(&self) -> i32 {
        self.0 as usize as i32
    }

    /// Sends the signal after so many nanoseconds; 0 never.
    pub fn arm(&self, after_ns: u64) {
        let mut setting = libc::itimerspec {
            it_interval: libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: libc::timespec {
                tv_sec: (after_ns / 1_000_000_000) as libc::time_t,
                tv_nsec: (after_ns % 1_000_000_000) as libc::c_long,
            },
        };
        // SAFETY: the setting lives through the call.
        unsafe {
            libc::syscall(
                libc::SYS_timer_settime,
                self.0 as usize as libc::c_int,
                0,
                &raw mut setting,
                core::ptr::null_mut::<libc::itimerspec>(),
            )
        };
    }

    /// Removes the timer.
    pub fn delete(&self) {
        // SAFETY: takes a number alone.
        unsafe { libc::syscall(libc::SYS_timer_delete, self.0 as usize as libc::c_int) };
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

/// Calls a function with the ID of every thread of this process.
///
/// Source: getdents64(2) on /proc/self/task; readdir(3) allocates.
pub fn for_each_thread(mut each: impl FnMut(i32)) {
    let Ok(directory) = open(c"/proc/self/task", libc::O_RDONLY | libc::O_DIRECTORY, 0) else {
        return;
    };
    let mut buffer = [0_u8; 4096];
    loop {
        // SAFETY: pointer and length are of one live buffer.
        let count = unsafe {
            libc::syscall(
                libc::SYS_getdents64,
                directory,
                buffer.as_mut_ptr(),
                buffer.len(),
            )
        };
        let mut entries = match usize::try_from(count) {
            Ok(count @ 1..) => buffer.get(..count).unwrap_or_default(),
            _ => break,
        };
        // struct linux_dirent64: inode (8), offset (8), length of the entry (2), type (1), name.
        while let (Some(&low), Some(&high)) = (entries.get(16), entries.get(17)) {
            let length = usize::from(u16::from_ne_bytes([low, high]));
            let name = entries.get(19..length).unwrap_or_default();
            let digits = name.split(|byte| *byte == 0).next().unwrap_or_default();
            if let Some(thread) = decimal(digits) {
                each(thread);
            }
            entries = entries.get(length.max(1)..).unwrap_or_default();
        }
    }
    close(directory);
}

fn decimal(digits: &[u8]) -> Option<i32> {
    if digits.is_empty() {
        return None;
    }
    let mut number = 0_i32;
    for digit in digits {
        let value = char::from(*digit).to_digit(10)?;
        number = number.checked_mul(10)?.checked_add(value as i32)?;
    }
    Some(number)
}

/// Returns the name of a thread of this process, from /proc.
pub fn name_of_thread(thread: i32, name: &mut [u8; 16]) -> Option<&[u8]> {
    let mut path = [0_u8; 40];
    let mut digits = crate::path::Decimal::new();
    let parts: [&[u8]; 3] = [
        b"/proc/self/task/",
        digits.format(thread.unsigned_abs().into()),
        b"/comm",
    ];
    for (slot, byte) in path.iter_mut().zip(parts.into_iter().flatten()) {
        *slot = *byte;
    }
    let descriptor = open(CStr::from_bytes_until_nul(&path).ok()?, libc::O_RDONLY, 0).ok()?;
    let count = read(descriptor, name);
    close(descriptor);
    name.get(..count.ok()?)?.strip_suffix(b"\n")
}

/// Returns the set of signals that the kernel put into a context: its mask has 64 bits, and what lies behind in libc's
/// larger type is not its own.
pub fn kernel_set(set: &libc::sigset_t) -> libc::sigset_t {
    let mut clean = empty_set();
    // SAFETY: both are live and at least eight bytes long.
    unsafe {
        core::ptr::copy_nonoverlapping(
            (&raw const *set).cast::<u8>(),
            (&raw mut clean).cast::<u8>(),
            8,
        );
    }
    clean
}
