//! Preloaded, finds the calls that a signal handler must not make: of the allocator, of locks, of the loader.
//!
//! A handler that a module installs whose file name contains `DETECTOR_WATCHES` is wrapped: from its entry to the first
//! record under its name (linkat, rename), such a call of the same thread ends the process with [`FOUND`]; after that,
//! it is reported once on stderr.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every function here is one of the C library's, for the library's callers"
)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

/// The exit status of a process that was caught.
const FOUND: c_int = 97;

/// The thread that is inside a watched handler, 0 for none.
static INSIDE: AtomicI32 = AtomicI32::new(0);
static IS_COMMITTED: AtomicBool = AtomicBool::new(false);
/// The watched handlers, by signal.
static HANDLERS: [AtomicUsize; 65] = [const { AtomicUsize::new(0) }; 65];

/// The C library's own functions, looked up as this library is loaded.
static REAL: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];
const SIGACTION: usize = 0;
const LINKAT: usize = 1;
const RENAME: usize = 2;
const MUTEX_LOCK: usize = 3;
const DLOPEN: usize = 4;
const DLSYM: usize = 5;
const ITERATE: usize = 6;
const NAMES: [&CStr; 7] = [
    c"sigaction",
    c"linkat",
    c"rename",
    c"pthread_mutex_lock",
    c"dlopen",
    c"dlsym",
    c"dl_iterate_phdr",
];
/// Versions that these symbols have had, the latest first. dlsym itself is replaced here, so it cannot be asked.
const VERSIONS: [&CStr; 4] = [c"GLIBC_2.34", c"GLIBC_2.17", c"GLIBC_2.4", c"GLIBC_2.2.5"];

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(block: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_free(block: *mut c_void);
}

#[unsafe(link_section = ".init_array")]
#[used]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    for index in 0..NAMES.len() {
        real(index);
    }
}

fn real(index: usize) -> usize {
    let known = REAL[index].load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let found = VERSIONS
        .iter()
        .map(|version| unsafe {
            libc::dlvsym(libc::RTLD_NEXT, NAMES[index].as_ptr(), version.as_ptr()) as usize
        })
        .find(|address| *address != 0)
        .unwrap_or(0);
    REAL[index].store(found, Ordering::Relaxed);
    found
}

/// Calls the C library's own function.
macro_rules! call {
    ($index:expr, $type:ty, $($argument:expr),*) => {
        unsafe { std::mem::transmute::<usize, $type>(real($index))($($argument),*) }
    };
}

fn say(text: &[u8]) {
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
}

/// Judges a call of the running thread.
fn judge(name: &'static [u8], reported: &AtomicBool) {
    let inside = INSIDE.load(Ordering::Relaxed);
    if inside == 0 || inside != unsafe { libc::gettid() } {
        return;
    }
    if !IS_COMMITTED.load(Ordering::Relaxed) {
        say(b"before the first record: ");
        say(name);
        say(b"\n");
        unsafe { libc::_exit(FOUND) };
    }
    if !reported.swap(true, Ordering::Relaxed) {
        say(b"after the first record: ");
        say(name);
        say(b"\n");
    }
}

macro_rules! judged {
    ($name:literal) => {{
        static REPORTED: AtomicBool = AtomicBool::new(false);
        judge($name, &REPORTED);
    }};
}

extern "C" fn enter(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
    let before = INSIDE.swap(unsafe { libc::gettid() }, Ordering::Relaxed);
    let handler = HANDLERS[signal as usize].load(Ordering::Relaxed);
    unsafe { std::mem::transmute::<usize, Handler>(handler)(signal, info, context) };
    INSIDE.store(before, Ordering::Relaxed);
}

fn is_watched(handler: usize) -> bool {
    if handler <= libc::SIG_IGN || INSIDE.load(Ordering::Relaxed) != 0 {
        return false;
    }
    unsafe {
        let wanted = libc::getenv(c"DETECTOR_WATCHES".as_ptr());
        let mut information: libc::Dl_info = std::mem::zeroed();
        !wanted.is_null()
            && libc::dladdr(handler as *const c_void, &raw mut information) != 0
            && !libc::strstr(information.dli_fname, wanted).is_null()
    }
}

/// Puts [`enter`] before a watched handler; whoever asks is told of the handler alone.
#[unsafe(no_mangle)]
extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    type Function = extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
    let slot = HANDLERS.get(signal as usize);
    let before = slot.map_or(0, |slot| slot.load(Ordering::Relaxed));
    let mut wrapped;
    let mut given = new;
    if let (Some(action), Some(slot)) = (unsafe { new.as_ref() }, slot)
        && (action.sa_sigaction == before && before != 0 || is_watched(action.sa_sigaction))
    {
        slot.store(action.sa_sigaction, Ordering::Relaxed);
        wrapped = *action;
        wrapped.sa_sigaction = enter as *const () as usize;
        given = &raw const wrapped;
    }
    let result = call!(SIGACTION, Function, signal, given, old);
    if let Some(old) = unsafe { old.as_mut() }
        && result == 0
        && old.sa_sigaction == enter as *const () as usize
    {
        old.sa_sigaction = before;
    }
    result
}

fn committed(result: c_int) -> c_int {
    if result == 0 && INSIDE.load(Ordering::Relaxed) == unsafe { libc::gettid() } {
        IS_COMMITTED.store(true, Ordering::Relaxed);
    }
    result
}

#[unsafe(no_mangle)]
extern "C" fn linkat(
    from: c_int,
    old: *const c_char,
    to: c_int,
    new: *const c_char,
    flags: c_int,
) -> c_int {
    type Function = extern "C" fn(c_int, *const c_char, c_int, *const c_char, c_int) -> c_int;
    committed(call!(LINKAT, Function, from, old, to, new, flags))
}

#[unsafe(no_mangle)]
extern "C" fn rename(old: *const c_char, new: *const c_char) -> c_int {
    type Function = extern "C" fn(*const c_char, *const c_char) -> c_int;
    committed(call!(RENAME, Function, old, new))
}

#[unsafe(no_mangle)]
extern "C" fn malloc(size: usize) -> *mut c_void {
    judged!(b"malloc");
    unsafe { __libc_malloc(size) }
}

#[unsafe(no_mangle)]
extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    judged!(b"calloc");
    unsafe { __libc_calloc(count, size) }
}

#[unsafe(no_mangle)]
extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    judged!(b"realloc");
    unsafe { __libc_realloc(block, size) }
}

#[unsafe(no_mangle)]
extern "C" fn free(block: *mut c_void) {
    judged!(b"free");
    unsafe { __libc_free(block) }
}

#[unsafe(no_mangle)]
extern "C" fn pthread_mutex_lock(mutex: *mut libc::pthread_mutex_t) -> c_int {
    judged!(b"pthread_mutex_lock");
    call!(
        MUTEX_LOCK,
        extern "C" fn(*mut libc::pthread_mutex_t) -> c_int,
        mutex
    )
}

#[unsafe(no_mangle)]
extern "C" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    judged!(b"dlopen");
    call!(
        DLOPEN,
        extern "C" fn(*const c_char, c_int) -> *mut c_void,
        name,
        flags
    )
}

#[unsafe(no_mangle)]
extern "C" fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void {
    judged!(b"dlsym");
    call!(
        DLSYM,
        extern "C" fn(*mut c_void, *const c_char) -> *mut c_void,
        library,
        name
    )
}

#[unsafe(no_mangle)]
extern "C" fn dl_iterate_phdr(callback: *mut c_void, data: *mut c_void) -> c_int {
    judged!(b"dl_iterate_phdr");
    if real(ITERATE) == 0 {
        return 0;
    }
    call!(
        ITERATE,
        extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        callback,
        data
    )
}
