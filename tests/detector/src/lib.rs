//! Preloaded, finds the calls that a signal handler must not make: of the allocator, of locks, of the loader.
//!
//! A handler that a module installs whose file name contains `DETECTOR_WATCHES` is wrapped: from its entry on, until the
//! first record is in the directory `DETECTOR_LOOKS_IN`, such a call of the same thread ends the process with `FOUND`;
//! after that, it is reported once on stderr. How a record gets its name is not seen, since that does not go through the
//! C library: the detector looks at the directory whenever it meets such a call.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every function here is one of the C library's, for the library's callers"
)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

/// How the name of a record ends in a directory's entry.
const RECORD: &[u8] = b".json\0";
/// The exit status of a process that was caught.
const FOUND: c_int = 97;

/// The thread that is inside a watched handler, 0 for none.
static INSIDE: AtomicI32 = AtomicI32::new(0);
static IS_COMMITTED: AtomicBool = AtomicBool::new(false);
/// The watched handlers, by signal.
static HANDLERS: [AtomicUsize; 65] = [const { AtomicUsize::new(0) }; 65];

/// The C library's own functions, looked up as this library is loaded.
static REAL: [AtomicUsize; NAMES.len()] = [const { AtomicUsize::new(0) }; NAMES.len()];
/// Versions that these symbols have had, the latest first. dlsym itself is replaced here, so it cannot be asked.
const VERSIONS: [&CStr; 6] = [
    c"GLIBC_2.34",
    c"GLIBC_2.17",
    c"GLIBC_2.16",
    c"GLIBC_2.4",
    c"GLIBC_2.3.2",
    c"GLIBC_2.2.5",
];

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

/// Returns a function of [`NAMES`], or 0.
fn real(index: usize) -> usize {
    let known = REAL[index].load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let found = VERSIONS
        .iter()
        .map(|version| unsafe {
            libc::dlvsym(
                libc::RTLD_NEXT,
                NAMES[index].as_ptr().cast(),
                version.as_ptr(),
            ) as usize
        })
        .find(|address| *address != 0)
        .unwrap_or(0);
    REAL[index].store(found, Ordering::Relaxed);
    found
}

fn say(text: &[u8]) {
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
}

/// Returns whether the first record is there: a file that ends so, since a file without a name or under another is
/// being written still.
fn is_committed() -> bool {
    if !IS_COMMITTED.load(Ordering::Relaxed) && has_record() {
        IS_COMMITTED.store(true, Ordering::Relaxed);
    }
    IS_COMMITTED.load(Ordering::Relaxed)
}

/// Looks at the directory by system calls alone: it is the handler of another that is interrupted here.
fn has_record() -> bool {
    let directory = unsafe { libc::getenv(c"DETECTOR_LOOKS_IN".as_ptr()) };
    if directory.is_null() {
        return false;
    }
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let descriptor = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, directory, flags) };
    let mut entries = [0_u8; 1024];
    let mut found = false;
    loop {
        let (buffer, size) = (entries.as_mut_ptr(), entries.len());
        let count = unsafe { libc::syscall(libc::SYS_getdents64, descriptor, buffer, size) };
        let Some(filled @ [_, ..]) = usize::try_from(count).ok().and_then(|n| entries.get(..n))
        else {
            break;
        };
        // Names end with NUL, and no other part of an entry is likely to say this.
        found |= filled.windows(RECORD.len()).any(|part| part == RECORD);
    }
    unsafe { libc::syscall(libc::SYS_close, descriptor) };
    found
}

/// Judges a call of the running thread.
fn judge(name: &'static [u8], reported: &AtomicBool) {
    let inside = INSIDE.load(Ordering::Relaxed);
    if inside == 0 || inside != unsafe { libc::gettid() } {
        return;
    }
    if !is_committed() {
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
    let function = unsafe { std::mem::transmute::<usize, Function>(real(SIGACTION)) };
    let result = function(signal, given, old);
    if let Some(old) = unsafe { old.as_mut() }
        && result == 0
        && old.sa_sigaction == enter as *const () as usize
    {
        old.sa_sigaction = before;
    }
    result
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

/// Defines functions of the C library that are judged and then called, and `NAMES`, where each has an index.
macro_rules! forwarded {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        #[allow(non_camel_case_types, reason = "they are the functions' own names")]
        #[derive(Clone, Copy)]
        enum Index { $($name,)* sigaction }

        const SIGACTION: usize = Index::sigaction as usize;
        const NAMES: [&str; SIGACTION + 1] = [$(concat!(stringify!($name), "\0"),)* "sigaction\0"];

        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $type),*) -> $result {
                type Function = extern "C" fn($($type),*) -> $result;
                static REPORTED: AtomicBool = AtomicBool::new(false);
                judge(stringify!($name).as_bytes(), &REPORTED);
                let function = real(Index::$name as usize);
                unsafe { std::mem::transmute::<usize, Function>(function)($($argument),*) }
            }
        )*
    };
}

type Address = *mut c_void;

forwarded! {
    posix_memalign(block: Address, alignment: usize, size: usize) -> c_int;
    aligned_alloc(alignment: usize, size: usize) -> Address;
    memalign(alignment: usize, size: usize) -> Address;
    pthread_mutex_lock(mutex: Address) -> c_int;
    pthread_mutex_trylock(mutex: Address) -> c_int;
    pthread_rwlock_rdlock(lock: Address) -> c_int;
    pthread_rwlock_wrlock(lock: Address) -> c_int;
    pthread_spin_lock(lock: Address) -> c_int;
    pthread_cond_wait(condition: Address, mutex: Address) -> c_int;
    pthread_cond_signal(condition: Address) -> c_int;
    pthread_cond_broadcast(condition: Address) -> c_int;
    pthread_once(once: Address, function: Address) -> c_int;
    dlopen(name: *const c_char, flags: c_int) -> Address;
    dlclose(library: Address) -> c_int;
    dlsym(library: Address, name: *const c_char) -> Address;
    dlerror() -> *mut c_char;
    dladdr(address: *const c_void, information: Address) -> c_int;
    dl_iterate_phdr(callback: Address, data: Address) -> c_int;
}
