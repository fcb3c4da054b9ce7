//! Signal handlers as other libraries install them.

use std::cell::UnsafeCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// What a handler does with a signal.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    /// Repairs a fault in the arena and returns, as a JVM does; puts back the default and returns otherwise.
    Recover,
    /// The same, but otherwise puts back what was there before it.
    RecoverOrRestore,
    /// The same, but otherwise calls what was there before it.
    RecoverOrCall,
    /// Waits for another thread, then puts back the default and raises.
    AskThread,
    /// Puts back the default and raises.
    Raise,
    /// `_exit(3)`.
    Exit,
    /// Sleeps.
    Never,
    /// Forks a child that aborts, waits for it, then puts back the default and raises.
    Fork,
}

const MANNERS: [Manner; 8] = [
    Manner::Recover,
    Manner::RecoverOrRestore,
    Manner::RecoverOrCall,
    Manner::AskThread,
    Manner::Raise,
    Manner::Exit,
    Manner::Never,
    Manner::Fork,
];

struct Saved([UnsafeCell<Option<libc::sigaction>>; 65]);
unsafe impl Sync for Saved {}

static SAVED: Saved = Saved([const { UnsafeCell::new(None) }; 65]);
static MANNER: AtomicUsize = AtomicUsize::new(0);
static RECOVERED: AtomicUsize = AtomicUsize::new(0);
static WRONG: AtomicUsize = AtomicUsize::new(0);
static WATCHED: OnceLock<CString> = OnceLock::new();
static FILES_SEEN: AtomicUsize = AtomicUsize::new(0);
static PIPES: [AtomicI32; 4] = [const { AtomicI32::new(-1) }; 4];

/// An access that the page forbids. Source: asm-generic/siginfo.h
const SEGV_ACCERR: c_int = 2;
const PAGE: usize = 4096;
const PAGES: usize = 64;
static ARENA: OnceLock<usize> = OnceLock::new();
static PAGES_TAKEN: AtomicUsize = AtomicUsize::new(0);
/// A value of errno that a handler must find and leave.
const ERRNO: c_int = 77;

fn arena() -> usize {
    *ARENA.get_or_init(|| unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(null_mut(), PAGE * PAGES, libc::PROT_NONE, flags, -1, 0) as usize
    })
}

/// Installs a handler with `SA_SIGINFO`, and keeps what was there before.
#[unsafe(no_mangle)]
extern "C" fn install(manner: c_int, signal: c_int) {
    arena();
    let manner = manner as usize;
    MANNER.store(manner, Ordering::Relaxed);
    if MANNERS[manner] == Manner::AskThread {
        start_helper();
    }
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        let mut before = std::mem::zeroed();
        libc::sigaction(signal, &raw const action, &raw mut before);
        *SAVED.0[signal as usize].get() = Some(before);
    }
}

extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let address = unsafe { (*info).si_addr() } as usize;
    let start = *ARENA.get().unwrap_or(&0);
    let manner = MANNERS[MANNER.load(Ordering::Relaxed)];
    match manner {
        Manner::Recover | Manner::RecoverOrRestore | Manner::RecoverOrCall
            if (start..start + PAGE * PAGES).contains(&address) =>
        {
            let is_whole = unsafe {
                *libc::__errno_location() == ERRNO
                    && (*info).si_code == SEGV_ACCERR
                    && program_counter(context) != 0
            };
            if !is_whole {
                WRONG.fetch_add(1, Ordering::Relaxed);
            }
            if let Some(path) = WATCHED.get() {
                let is_there = unsafe { libc::access(path.as_ptr(), libc::F_OK) } == 0;
                FILES_SEEN.fetch_add(usize::from(is_there), Ordering::Relaxed);
                unsafe { *libc::__errno_location() = ERRNO };
            }
            let page = address / PAGE * PAGE;
            unsafe {
                libc::mprotect(
                    page as *mut c_void,
                    PAGE,
                    libc::PROT_READ | libc::PROT_WRITE,
                )
            };
            RECOVERED.fetch_add(1, Ordering::Relaxed);
        }
        Manner::Recover => put_back(signal, None),
        Manner::RecoverOrRestore => put_back(signal, saved(signal)),
        Manner::RecoverOrCall => call_saved(signal, info, context),
        Manner::AskThread => {
            ask_helper();
            put_back(signal, None);
            unsafe { libc::raise(signal) };
        }
        Manner::Fork => {
            unsafe {
                match libc::fork() {
                    0 => libc::abort(),
                    child => libc::waitpid(child, null_mut(), 0),
                };
            }
            put_back(signal, None);
            unsafe { libc::raise(signal) };
        }
        Manner::Raise => {
            put_back(signal, None);
            unsafe { libc::raise(signal) };
        }
        Manner::Exit => unsafe { libc::_exit(3) },
        Manner::Never => loop {
            unsafe { libc::pause() };
        },
    }
}

fn saved(signal: c_int) -> Option<libc::sigaction> {
    unsafe { *SAVED.0[signal as usize].get() }
}

fn put_back(signal: c_int, action: Option<libc::sigaction>) {
    unsafe {
        let action = action.unwrap_or_else(|| std::mem::zeroed());
        libc::sigaction(signal, &raw const action, null_mut());
    }
}

fn call_saved(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(action) = saved(signal).filter(|action| action.sa_sigaction > libc::SIG_IGN) else {
        return put_back(signal, None);
    };
    let address = action.sa_sigaction;
    if action.sa_flags & libc::SA_SIGINFO != 0 {
        let function: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
            unsafe { std::mem::transmute(address) };
        function(signal, info, context);
    } else {
        let function: extern "C" fn(c_int) = unsafe { std::mem::transmute(address) };
        function(signal);
    }
}

/// Installs a handler that is code made at run time: it returns.
#[unsafe(no_mangle)]
extern "C" fn install_code(signal: c_int) {
    let code: &[u8] = if cfg!(target_arch = "x86_64") {
        &[0xc3]
    } else {
        &[0xc0, 0x03, 0x5f, 0xd6]
    };
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(null_mut(), PAGE, protection, flags, -1, 0);
        std::ptr::copy_nonoverlapping(code.as_ptr(), page.cast(), code.len());
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = page as usize;
        libc::sigaction(signal, &raw const action, null_mut());
    }
}

/// Installs and removes a handler as old programs do, by signal(3): what is put back has lost its flags.
#[unsafe(no_mangle)]
extern "C" fn put_back_without_flags(signal: c_int) {
    unsafe {
        let before = libc::signal(signal, libc::SIG_IGN);
        libc::signal(signal, before);
    }
}

/// Faults so many times in a page that the recovering handler repairs.
///
/// Returns how often errno was not the same afterwards.
#[unsafe(no_mangle)]
extern "C" fn touch(times: c_int) -> c_int {
    let page = arena() + PAGES_TAKEN.fetch_add(1, Ordering::Relaxed) % PAGES * PAGE;
    let mut wrong = 0;
    for _ in 0..times {
        unsafe {
            libc::mprotect(page as *mut c_void, PAGE, libc::PROT_NONE);
            *libc::__errno_location() = ERRNO;
            (page as *mut u8).write_volatile(1);
            wrong += c_int::from(*libc::__errno_location() != ERRNO);
        }
    }
    wrong
}

/// Lets several threads fault and recover at once; returns how often errno was lost.
#[unsafe(no_mangle)]
extern "C" fn touch_together(threads: c_int, times: c_int) -> c_int {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(|| touch(times))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .sum()
    })
}

/// Lets the recovering handler look whether this file is there, each time before it repairs a fault.
#[unsafe(no_mangle)]
extern "C" fn watch(path: *const c_char) {
    let _ = WATCHED.set(unsafe { CStr::from_ptr(path) }.to_owned());
}

/// Returns how often the file was there.
#[unsafe(no_mangle)]
extern "C" fn files_seen() -> usize {
    FILES_SEEN.load(Ordering::Relaxed)
}

/// Returns how many faults the handler repaired.
#[unsafe(no_mangle)]
extern "C" fn recovered() -> usize {
    RECOVERED.load(Ordering::Relaxed)
}

/// Returns how often the handler was given another errno, code or context than the kernel's.
#[unsafe(no_mangle)]
extern "C" fn wrong() -> usize {
    WRONG.load(Ordering::Relaxed)
}

/// Returns the address of a signal's action, 0 for the default, 1 for "ignored".
#[unsafe(no_mangle)]
extern "C" fn action_of(signal: c_int) -> usize {
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action);
        action.sa_sigaction
    }
}

/// A thread that answers each byte of one pipe by a byte into another.
fn start_helper() {
    let mut ends = [0; 4];
    unsafe {
        libc::pipe(ends.as_mut_ptr());
        libc::pipe(ends.as_mut_ptr().add(2));
    }
    for (slot, end) in PIPES.iter().zip(ends) {
        slot.store(end, Ordering::Relaxed);
    }
    std::thread::spawn(move || {
        let mut byte = [0_u8];
        loop {
            unsafe {
                libc::read(ends[0], byte.as_mut_ptr().cast(), 1);
                libc::write(ends[3], byte.as_ptr().cast(), 1);
            }
        }
    });
}

fn ask_helper() {
    let mut byte = [0_u8];
    unsafe {
        libc::write(PIPES[1].load(Ordering::Relaxed), byte.as_ptr().cast(), 1);
        libc::read(
            PIPES[2].load(Ordering::Relaxed),
            byte.as_mut_ptr().cast(),
            1,
        );
    }
}

fn program_counter(context: *mut c_void) -> u64 {
    let context = context.cast::<libc::ucontext_t>();
    #[cfg(target_arch = "x86_64")]
    return unsafe { (*context).uc_mcontext.gregs[libc::REG_RIP as usize] as u64 };
    #[cfg(target_arch = "aarch64")]
    return unsafe { (*context).uc_mcontext.pc };
}
