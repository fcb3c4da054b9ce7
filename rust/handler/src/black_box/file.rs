//! The file of a black box: made, mapped, and removed when there is nothing to tell.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use firstfault_format::black_box::{SIZE, header, state};

use super::{GUARD, Guard, Header, Words, breadcrumb, enter, get, publish, words};
use crate::helper::{self, Work};
use crate::place::PATIENCE_NS;
use crate::sys::{self, Errno};

/// The box's own path and that of the file which points at it, for the end of the process.
static PATHS: [AtomicPtr<core::ffi::c_char>; 2] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; 2];

/// Whether [`at_exit`] is registered; forked children inherit that.
static WATCHES_EXIT: AtomicBool = AtomicBool::new(false);

/// Makes a box: a new file with all its blocks, mapped, its header written. Normal context.
///
/// `pointer` is the path of a file that names this one, to be removed with it.
///
/// # Errors
/// `EEXIST` where the name is taken, `ENOSPC` where there is no room for all of it; nothing is left behind then.
pub fn create(
    path: &'static CStr,
    pointer: Option<&'static CStr>,
    header: &Header<'_>,
) -> Result<(), Errno> {
    let guard = guard()?;
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR | libc::O_NOFOLLOW;
    let descriptor = sys::open(path, flags, 0o600)?;
    let mapped = map(descriptor);
    sys::close(descriptor);
    let words = match mapped {
        Ok(words) => words,
        Err(errno) => {
            let _ = sys::unlink(path);
            return Err(errno);
        }
    };
    header.write(words);
    let pointer = pointer.map_or(core::ptr::null(), CStr::as_ptr);
    for (slot, path) in PATHS.iter().zip([path.as_ptr(), pointer]) {
        slot.store(path.cast_mut(), Ordering::Relaxed);
    }
    guard.store((&raw const *words).cast_mut(), Ordering::Release);
    publish(guard);
    if !WATCHES_EXIT.swap(true, Ordering::Relaxed) {
        // SAFETY: a function that lives for ever and takes nothing.
        unsafe { libc::atexit(at_exit) };
    }
    Ok(())
}

/// Returns the guard of this process, in a page that fork(2) wipes.
fn guard() -> Result<&'static Guard, Errno> {
    // SAFETY: as in `words`. In a forked child it is there, and holds null.
    if let Some(guard) = unsafe { GUARD.load(Ordering::Acquire).as_ref() } {
        return Ok(guard);
    }
    let length = core::mem::size_of::<Guard>();
    // SAFETY: a new private mapping touches nothing that exists.
    let start = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(sys::errno());
    }
    // SAFETY: the mapping just made. Before Linux 4.14 there is no such advice, and then no box: a child's breadcrumbs
    // would go into its parent's.
    if unsafe { libc::madvise(start, length, libc::MADV_WIPEONFORK) } != 0 {
        let errno = sys::errno();
        // SAFETY: as above; nothing points into it.
        unsafe { libc::munmap(start, length) };
        return Err(errno);
    }
    // SAFETY: zeroed, aligned to a page, never unmapped: a null pointer for ever to live in.
    Ok(unsafe { &*start.cast::<Guard>() })
}

/// Reserves the blocks, so that no store can find the disk full, and maps them.
fn map(descriptor: i32) -> Result<&'static Words, Errno> {
    loop {
        // SAFETY: takes numbers alone.
        match unsafe { libc::posix_fallocate(descriptor, 0, SIZE as libc::off_t) } {
            0 => break,
            libc::EINTR => {}
            errno => return Err(errno),
        }
    }
    // SAFETY: a new mapping touches nothing that exists.
    let start = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            SIZE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_POPULATE,
            descriptor,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(sys::errno());
    }
    // SAFETY: as long as `Words`, aligned to a page, never unmapped; other processes only read it.
    Ok(unsafe { &*start.cast::<Words>() })
}

/// Removes the box of a process whose interpreter has ended: there is nothing to tell. For atexit(3).
///
/// Where native code called exit(3) under a running main function the box stays, and says so.
extern "C" fn at_exit() {
    let Some(words) = words() else { return };
    match get(words, header::STATE) {
        state::EXITING => enter(words, state::FINISHED),
        state::RUNNING => return breadcrumb("exit", Some("called by native code")),
        _ => return,
    }
    remove();
}

/// Removes the box, and the page that points at it: something else tells all that it could. Async-signal-safe.
pub fn remove() {
    remove_within(PATIENCE_NS);
}

/// How long the removal of the page that points at the box may take where the process dies.
const AT_DEATH_NS: u64 = 50_000_000;

/// Removes the box of a process that dies by a request to end, whose snapshot has all that the box could tell.
pub(crate) fn remove_at_death() {
    remove_within(AT_DEATH_NS);
}

/// The page that points at the box is on a file system that may not answer: a helper is left to it.
fn remove_within(patience_ns: u64) {
    if words().is_none() {
        // A forked child's parent has its own use for it.
        return;
    }
    let [_, pointer] = &PATHS;
    if pointer.load(Ordering::Relaxed).is_null() {
        return remove_now();
    }
    let work = Work {
        run: || {
            remove_now();
            true
        },
        undo: || {},
    };
    let _ = helper::TELLER.run(work, patience_ns);
}

fn remove_now() {
    for path in &PATHS {
        let path = path.load(Ordering::Relaxed);
        if !path.is_null() {
            // SAFETY: only `create` stores here, paths that live for ever.
            let _ = sys::unlink(unsafe { CStr::from_ptr(path) });
        }
    }
}
