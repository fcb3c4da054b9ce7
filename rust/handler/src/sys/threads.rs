//! Threads: which there are, what they are called, and how they wait for each other.

use core::ffi::CStr;
use core::sync::atomic::AtomicU32;

use super::{Errno, check, close, open, read};
use crate::path::Decimal;

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

/// Returns where errno lies, from the thread pointer.
pub fn errno_offset() -> isize {
    let pointer: usize;
    // SAFETY: reads a register; on x86-64 the word at the thread pointer is the thread pointer itself.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly));
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem));
    }
    // SAFETY: the location is the calling thread's own.
    let location = unsafe { libc::__errno_location() }.addr();
    location.wrapping_sub(pointer) as isize
}

/// Starts a thread of this process that libc knows nothing of.
///
/// It may use functions that need no thread-local variables but errno, which is a new one. The kernel sets `is_alive` to
/// 0 when the thread has ended.
///
/// Source: clone(2).
///
/// # Safety
/// `stack` is the end of a stack, and `locals` has enough zeros on both sides for [`errno_offset`]; both are the
/// thread's own until it has ended, and the argument is what the function wants.
pub unsafe fn start_thread(
    main: extern "C" fn(*mut libc::c_void) -> libc::c_int,
    argument: *mut libc::c_void,
    stack: *mut u8,
    locals: *mut u8,
    is_alive: &'static AtomicU32,
) -> Result<(), Errno> {
    // What the thread pointer points to on x86-64 has itself in it, twice.
    if cfg!(target_arch = "x86_64") {
        let block = locals.cast::<usize>();
        // SAFETY: the caller's promise.
        unsafe {
            block.write(locals.addr());
            block.add(2).write(locals.addr());
        }
    }
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_SETTLS
        | libc::CLONE_CHILD_CLEARTID;
    // SAFETY: the caller's promise; the word lives for ever.
    let result = unsafe {
        libc::clone(
            main,
            stack.cast(),
            flags,
            argument,
            core::ptr::null_mut::<libc::c_int>(),
            locals,
            is_alive.as_ptr(),
        )
    };
    check(result).map(drop)
}

/// Ends the calling thread, which [`start_thread`] has started.
pub fn exit_thread() -> ! {
    loop {
        // SAFETY: takes a number alone, and ends the thread without anything that libc would do.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
}

/// Returns the name of the calling thread, at most 15 bytes and NULs after them.
pub fn thread_name() -> [u8; 16] {
    let mut name = [0; 16];
    // SAFETY: PR_GET_NAME fills 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
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

/// What the kernel says of a thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThreadStatus {
    /// Its name, at most 15 bytes and NULs after them.
    pub name: [u8; 16],
    /// The letter of its state, 0 where it is gone.
    pub state: u8,
}

impl ThreadStatus {
    /// Returns whether the thread has ended and will never handle a signal: a main thread that ended alone stays so.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// Returns the status of a thread of this process.
pub fn thread_status(thread: i32) -> ThreadStatus {
    let mut text = [0_u8; 128];
    read_of(b"/proc/self/task/", thread, b"stat", &mut text)
        .and_then(parse_status)
        .unwrap_or_default()
}

/// Source: proc_pid_stat(5): the ID, the name in parentheses, of which it may hold more itself, and the state.
fn parse_status(text: &[u8]) -> Option<ThreadStatus> {
    let mut parts = text.rsplitn(2, |byte| *byte == b')');
    let (after, before) = (parts.next()?, parts.next()?);
    let found = before.splitn(2, |byte| *byte == b'(').nth(1)?;
    let mut name = [0; 16];
    for (slot, byte) in name.iter_mut().zip(found) {
        *slot = *byte;
    }
    let state = *after.get(1)?;
    Some(ThreadStatus { name, state })
}

/// Returns the kernel's own words for the letter of a state; empty for a letter that it does not have.
///
/// Source: fs/proc/array.c, `task_state_array`.
pub fn words_of_thread_state(letter: u8) -> &'static str {
    match letter {
        b'R' => "R (running)",
        b'S' => "S (sleeping)",
        b'D' => "D (disk sleep)",
        b'T' => "T (stopped)",
        b't' => "t (tracing stop)",
        b'X' => "X (dead)",
        b'Z' => "Z (zombie)",
        b'P' => "P (parked)",
        b'I' => "I (idle)",
        _ => "",
    }
}

/// Returns the name of a process, at most 15 bytes and NULs after them; empty where it is gone or hidden.
pub fn name_of_process(process: i32) -> [u8; 16] {
    let mut name = [0; 16];
    let found = read_of(b"/proc/", process, b"comm", &mut name);
    let length = found.map_or(0, |name| name.trim_ascii_end().len());
    for byte in name.iter_mut().skip(length) {
        *byte = 0;
    }
    name
}

/// Returns whether a thread of this process blocks a signal, and so will never handle it; a thread that is gone will
/// not either.
///
/// Source: proc_pid_status(5), `SigBlk`, a mask in hexadecimal with the first signal in the lowest bit.
pub fn thread_blocks(thread: i32, signal: libc::c_int) -> bool {
    let mut status = [0_u8; 2048];
    let Some(text) = read_of(b"/proc/self/task/", thread, b"status", &mut status) else {
        return true;
    };
    let mask = text
        .split(|byte| *byte == b'\n')
        .find_map(|line| line.strip_prefix(b"SigBlk:\t"));
    let mask = mask.and_then(|digits| str::from_utf8(digits).ok());
    let mask = mask.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    let bit = 1_u64.checked_shl(signal.saturating_sub(1).unsigned_abs());
    mask.unwrap_or(0) & bit.unwrap_or(0) != 0
}

/// Returns the beginning of a file of a thread or process in /proc, as much as fits.
fn read_of<'b>(directory: &[u8], id: i32, name: &[u8], buffer: &'b mut [u8]) -> Option<&'b [u8]> {
    let mut path = [0_u8; 48];
    let mut digits = Decimal::new();
    let parts: [&[u8]; 4] = [
        directory,
        digits.format(id.unsigned_abs().into()),
        b"/",
        name,
    ];
    for (slot, byte) in path.iter_mut().zip(parts.into_iter().flatten()) {
        *slot = *byte;
    }
    let descriptor = open(CStr::from_bytes_until_nul(&path).ok()?, libc::O_RDONLY, 0).ok()?;
    let count = read(descriptor, buffer);
    close(descriptor);
    buffer.get(..count.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_whatever_the_thread_is_called() {
        for (text, name, state) in [
            (&b"42 (python) S 1 42 0"[..], &b"python"[..], b'S'),
            (b"42 (a) R (b (c)) D 1", b"a) R (b (c)", b'D'),
            (b"42 (exactly 15 byte) Z 1", b"exactly 15 byte", b'Z'),
            (b"42 () t 1", b"", b't'),
        ] {
            let status = parse_status(text).unwrap();
            assert_eq!(&status.name[..name.len()], name);
            assert!(status.name[name.len()..].iter().all(|byte| *byte == 0));
            assert_eq!(status.state, state);
        }
        for text in [
            &b""[..],
            b"42",
            b"42 (python",
            b"42 (python)",
            b"42 (python) ",
        ] {
            assert_eq!(parse_status(text), None);
        }
    }

    #[test]
    fn the_calling_thread_runs() {
        let status = thread_status(crate::sys::thread_id());
        assert_eq!(status.state, b'R');
        assert_eq!(status.name, thread_name());
        assert_eq!(thread_status(i32::MAX), ThreadStatus::default());
    }
}
