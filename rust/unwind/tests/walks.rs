//! Walks from real and from senseless registers: none may fault, and a fault would end this process.
#![allow(
    clippy::undocumented_unsafe_blocks,
    clippy::print_stdout,
    reason = "a test that drives signals by hand and tells what it measured"
)]

use std::ffi::{CString, c_int, c_void};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};

use firstfault_handler::native::{self, Registers};
use firstfault_handler::{modules, sys};

const WALKS: usize = 10_000;
/// The alternate stack of the handler; a walk may use a quarter of it.
const STACK_SIZE: usize = 256 * 1024;
const PAINT: u8 = 0xa5;

static SAMPLES: AtomicUsize = AtomicUsize::new(0);
static WHOLE: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_sample(_signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    let registers = Registers::of_context(context);
    native::forget();
    native::walk_crashed(registers.as_ref());
    let name = |frame: native::Frame| {
        modules::module_of(frame.lookup).is_some_and(|module| module.name().starts_with(b"libc.so"))
    };
    // Every thread begins in the C library.
    let ends_well = native::crashed_frames().last().is_some_and(name);
    WHOLE.fetch_add(usize::from(ends_well), Ordering::Relaxed);
    SAMPLES.fetch_add(1, Ordering::Relaxed);
}

/// Work of many kinds: the allocator, formatting, sorting, reading files, the loader.
fn work(round: usize) -> usize {
    let mut words: Vec<String> = (0..50)
        .map(|number| format!("{}", number * round % 97))
        .collect();
    words.sort();
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"getpid".as_ptr()) };
    words.concat().len() + text.len() + symbol.addr() % 2
}

fn sample_own_stack() {
    let mut stack = vec![PAINT; STACK_SIZE];
    unsafe {
        let alternate = libc::stack_t {
            ss_sp: stack.as_mut_ptr().cast(),
            ss_flags: 0,
            ss_size: STACK_SIZE,
        };
        assert_eq!(
            libc::sigaltstack(&raw const alternate, std::ptr::null_mut()),
            0
        );
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sample as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut());
    }
    let thread = sys::thread_id();
    let end = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let ended = end.clone();
    let sampler = std::thread::spawn(move || {
        while !ended.load(Ordering::Relaxed) {
            let _ = sys::signal_thread(thread, libc::SIGUSR2);
            std::thread::sleep(std::time::Duration::from_micros(20));
        }
    });
    let mut round = 0;
    while SAMPLES.load(Ordering::Relaxed) < WALKS {
        round += 1;
        black_box(work(black_box(round)));
    }
    end.store(true, Ordering::Relaxed);
    sampler.join().expect("no panic");
    unsafe {
        libc::signal(libc::SIGUSR2, libc::SIG_IGN);
        let mut none: libc::stack_t = std::mem::zeroed();
        none.ss_flags = libc::SS_DISABLE;
        libc::sigaltstack(&raw const none, std::ptr::null_mut());
    }
    let untouched = stack.iter().take_while(|byte| **byte == PAINT).count();
    let (samples, whole) = (
        SAMPLES.load(Ordering::Relaxed),
        WHOLE.load(Ordering::Relaxed),
    );
    println!(
        "{whole} of {samples} walks reached the thread's start, {} bytes of stack used",
        STACK_SIZE - untouched
    );
    // What may be left: the middle of code that was written by hand.
    assert!(whole * 1000 >= samples * 999, "{whole} of {samples}");
    assert!(STACK_SIZE - untouched < 48 * 1024);
}

/// xorshift64: the same walks each time.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn walk_from_anywhere(walks: usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("readable");
    let ranges: Vec<(u64, u64, bool)> = maps
        .lines()
        .filter_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (start, end) = range.split_once('-')?;
            let number = |digits| u64::from_str_radix(digits, 16).ok();
            Some((number(start)?, number(end)?, rest.get(2..3)? == "x"))
        })
        .collect();
    let code: Vec<_> = ranges.iter().filter(|range| range.2).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let mut frames = 0;
    for _ in 0..walks {
        let mut within = |ranges: &[&(u64, u64, bool)]| {
            let (start, end, _) = ranges[(random(&mut state) % ranges.len() as u64) as usize];
            start + random(&mut state) % (end - start)
        };
        let all: Vec<_> = ranges.iter().collect();
        let registers = Registers {
            program_counter: within(&code),
            stack_pointer: within(&all) & !7,
            frame_pointer: within(&all) & !7,
            link: within(&code),
        };
        let registers = match random(&mut state) % 8 {
            0 => Registers {
                program_counter: 0,
                ..registers
            },
            1 => Registers {
                stack_pointer: random(&mut state),
                ..registers
            },
            2 => Registers {
                frame_pointer: random(&mut state),
                ..registers
            },
            3 => Registers {
                stack_pointer: u64::MAX - 3,
                frame_pointer: 1,
                ..registers
            },
            _ => registers,
        };
        native::forget();
        native::walk_crashed(Some(&registers));
        let count = native::crashed_frames().count();
        assert!((1..=native::CRASHED_FRAMES_MAX).contains(&count));
        frames += count;
    }
    println!(
        "{walks} walks from anywhere, {frames} frames, {} code ranges",
        code.len()
    );
}

/// One test: a walk has one owner at a time, as in the handler.
#[test]
fn no_walk_faults() {
    firstfault_unwind::install();
    assert!(modules::read());
    sample_own_stack();
    walk_from_anywhere(WALKS);
    if let Some(library) = std::env::var_os("FIRSTFAULT_TEST_LIBRARY") {
        let library = CString::new(library.into_encoded_bytes()).expect("a path");
        let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{library:?} cannot be loaded");
        assert!(modules::read());
        walk_from_anywhere(10 * WALKS);
    }
}
