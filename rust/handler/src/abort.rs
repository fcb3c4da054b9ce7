//! What a process said before it aborted: the C++ exception that nothing caught, and glibc's own message.
//!
//! No C++ is linked in. libstdc++'s functions are asked for by name, where it is loaded; a terminate handler of ours,
//! which runs in normal context, notes the exception and calls the one before it. Where libstdc++ came after
//! [`install`], the exception is read in the dying process, by a guarded stage.
//!
//! Source: Itanium C++ ABI, "Exception Handling"; libstdc++'s cxxabi.h and typeinfo; glibc's assert/assert.c and
//! sysdeps/posix/libc_fatal.c for `__abort_msg`.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::sync::atomic::{AtomicI32, AtomicU8, AtomicUsize, Ordering};

use crate::context::Facts;
use crate::sys;

/// A text of limited length.
struct Text<const MAX: usize> {
    bytes: UnsafeCell<[u8; MAX]>,
    length: AtomicUsize,
}

// SAFETY: written by the one thread that has `STATE` or owns the handler; read after the length is published.
unsafe impl<const MAX: usize> Sync for Text<MAX> {}

impl<const MAX: usize> Text<MAX> {
    const fn new() -> Self {
        Self {
            bytes: UnsafeCell::new([0; MAX]),
            length: AtomicUsize::new(0),
        }
    }

    fn set(&self, bytes: impl Iterator<Item = u8>) {
        // SAFETY: see the `Sync` of this type.
        let room = unsafe { &mut *self.bytes.get() };
        let mut length = 0_usize;
        for (slot, byte) in room.iter_mut().zip(bytes) {
            *slot = byte;
            length = length.saturating_add(1);
        }
        self.length.store(length, Ordering::Release);
    }

    fn get(&self) -> &[u8] {
        let length = self.length.load(Ordering::Acquire);
        // SAFETY: see the `Sync` of this type.
        unsafe { &*self.bytes.get() }
            .get(..length)
            .unwrap_or_default()
    }
}

static TYPE: Text<1024> = Text::new();
static WHAT: Text<WHAT_MAX> = Text::new();
const WHAT_MAX: usize = 8192;
static MESSAGE: Text<2048> = Text::new();

/// Where the note on a C++ exception stands.
static STATE: AtomicU8 = AtomicU8::new(EMPTY);
/// The thread that it is of.
static THREAD: AtomicI32 = AtomicI32::new(0);
const EMPTY: u8 = 0;
const FILLING: u8 = 1;
/// The terminate handler noted it: nothing had caught it.
const UNCAUGHT: u8 = 2;
/// It was found in flight as the process aborted.
const IN_FLIGHT: u8 = 3;

/// Functions and variables of others, 0 where they are not known.
static CURRENT_TYPE: AtomicUsize = AtomicUsize::new(0);
static CURRENT_EXCEPTION: AtomicUsize = AtomicUsize::new(0);
static STD_EXCEPTION: AtomicUsize = AtomicUsize::new(0);
static DEMANGLE: AtomicUsize = AtomicUsize::new(0);
static PREVIOUS: AtomicUsize = AtomicUsize::new(0);
static ABORT_MESSAGE: AtomicUsize = AtomicUsize::new(0);
/// [`resolve`] by pointer: it is foreign, for it asks the loader.
static RESOLVE: AtomicUsize = AtomicUsize::new(0);

type Terminate = extern "C" fn();
/// Returned through a hidden pointer, as C++ returns an `std::exception_ptr`.
#[repr(C)]
struct ExceptionPointer([*mut c_void; 4]);

/// Finds what is needed of libstdc++ and glibc, and notes uncaught exceptions from now on. Can be called again: libstdc++
/// may have been loaded since.
pub fn install() {
    RESOLVE.store(resolve as *const () as usize, Ordering::Relaxed);
    ABORT_MESSAGE.store(
        symbol(libc::RTLD_DEFAULT, c"__abort_msg"),
        Ordering::Relaxed,
    );
    let set_terminate = resolve();
    if set_terminate == 0 {
        return;
    }
    // SAFETY: `std::set_terminate(std::terminate_handler)` of libstdc++.
    let set_terminate = unsafe {
        core::mem::transmute::<usize, extern "C" fn(Terminate) -> Option<Terminate>>(set_terminate)
    };
    let ours = on_terminate as *const () as usize;
    let Some(previous) = set_terminate(on_terminate) else {
        return;
    };
    if previous as usize == ours {
        return;
    }
    let first =
        PREVIOUS.compare_exchange(0, previous as usize, Ordering::AcqRel, Ordering::Relaxed);
    if first.is_err() {
        // One that came after ours: it may call ours, so ours stays below it.
        set_terminate(previous);
    }
}

/// Looks libstdc++'s functions up, where it is loaded; returns `std::set_terminate`, or 0.
extern "C" fn resolve() -> usize {
    let mut library = libc::RTLD_DEFAULT;
    if symbol(library, c"__cxa_current_exception_type") == 0 {
        // Else the loader would look for it in its cache and open it, only to leave it.
        if !is_loaded(b"/libstdc++.so") {
            return 0;
        }
        // SAFETY: takes a name; what is not loaded is not loaded for this.
        library = unsafe {
            libc::dlopen(
                c"libstdc++.so.6".as_ptr(),
                libc::RTLD_NOLOAD | libc::RTLD_LAZY,
            )
        };
        if library.is_null() {
            return 0;
        }
    }
    for (place, name) in [
        (&CURRENT_TYPE, c"__cxa_current_exception_type"),
        (&CURRENT_EXCEPTION, c"_ZSt17current_exceptionv"),
        (&STD_EXCEPTION, c"_ZTISt9exception"),
        (&DEMANGLE, c"__cxa_demangle"),
    ] {
        place.store(symbol(library, name), Ordering::Relaxed);
    }
    symbol(library, c"_ZSt13set_terminatePFvvE")
}

/// Returns whether a library with this in its path is loaded.
fn is_loaded(part: &[u8]) -> bool {
    unsafe extern "C" fn has(
        information: *mut libc::dl_phdr_info,
        _size: usize,
        part: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader's information lives through the call, its name is NUL-terminated, and `part` is the slice.
        let (name, part) = unsafe {
            (
                CStr::from_ptr((*information).dlpi_name).to_bytes(),
                *part.cast::<&[u8]>(),
            )
        };
        c_int::from(name.windows(part.len()).any(|found| found == part))
    }
    let mut part = part;
    // SAFETY: the slice lives through the call.
    unsafe { libc::dl_iterate_phdr(Some(has), (&raw mut part).cast()) != 0 }
}

fn symbol(library: *mut c_void, name: &CStr) -> usize {
    // SAFETY: the name is NUL-terminated.
    unsafe { libc::dlsym(library, name.as_ptr()) as usize }
}

/// What `std::terminate` calls: normal context, on the thread that threw.
extern "C" fn on_terminate() {
    // An exception that `what()` throws comes here again.
    if STATE
        .compare_exchange(EMPTY, FILLING, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
    {
        note_current(true);
        THREAD.store(sys::thread_id(), Ordering::Relaxed);
        STATE.store(UNCAUGHT, Ordering::Release);
    }
    let previous = PREVIOUS.load(Ordering::Acquire);
    if previous != 0 {
        // SAFETY: what `std::set_terminate` returned.
        let previous = unsafe { core::mem::transmute::<usize, Terminate>(previous) };
        previous();
    }
    // SAFETY: takes nothing. A terminate handler must not return.
    unsafe { libc::abort() };
}

/// The stage: reads the exception in flight where no terminate handler of ours noted it.
pub(crate) fn find_exception(facts: &Facts) {
    if !is_own_abort(facts) || exception_of(facts).is_some() {
        return;
    }
    if CURRENT_TYPE.load(Ordering::Relaxed) == 0 {
        let address = RESOLVE.load(Ordering::Relaxed);
        if address == 0 {
            return;
        }
        // SAFETY: only `install` stores here.
        let resolve = unsafe { core::mem::transmute::<usize, extern "C" fn() -> usize>(address) };
        resolve();
    }
    TYPE.set(core::iter::empty());
    WHAT.set(core::iter::empty());
    note_current(false);
    if !TYPE.get().is_empty() {
        THREAD.store(facts.thread, Ordering::Relaxed);
        STATE.store(IN_FLIGHT, Ordering::Release);
    }
}

/// Notes type and text of the calling thread's exception.
fn note_current(can_allocate: bool) {
    let current_type = CURRENT_TYPE.load(Ordering::Relaxed);
    if current_type == 0 {
        return;
    }
    // SAFETY: `std::type_info* __cxa_current_exception_type()`.
    let current_type = unsafe {
        core::mem::transmute::<usize, extern "C" fn() -> *const *const c_void>(current_type)
    }();
    if current_type.is_null() {
        return;
    }
    // SAFETY: the second member of a type_info is its name; a star in front says that names compare by address.
    let name = unsafe { CStr::from_ptr(current_type.add(1).read().cast::<c_char>()) };
    let name = name.to_bytes();
    let name = name.strip_prefix(b"*").unwrap_or(name);
    TYPE.set(name.iter().copied());
    if can_allocate {
        demangle(current_type, name.len());
    }
    let current_exception = CURRENT_EXCEPTION.load(Ordering::Relaxed);
    if current_exception == 0 {
        return;
    }
    // SAFETY: `std::exception_ptr std::current_exception()`. The reference that it counts is never given back.
    let exception = unsafe {
        core::mem::transmute::<usize, extern "C" fn() -> ExceptionPointer>(current_exception)
    }();
    let [object, ..] = exception.0;
    if object.is_null() {
        return;
    }
    let text = if name == b"PKc" || name == b"Pc" {
        // SAFETY: the exception is a pointer to characters.
        unsafe { object.cast::<*const c_char>().read() }
    } else {
        what(current_type, object)
    };
    if !text.is_null() {
        // A NUL-terminated text, of which no more is read than is kept.
        WHAT.set((0..WHAT_MAX).map_while(|index| {
            // SAFETY: not beyond its NUL.
            let byte = unsafe { text.add(index).read() } as u8;
            (byte != 0).then_some(byte)
        }));
    }
}

/// Returns what `what()` of an `std::exception` returns, null for any other object.
fn what(its_type: *const *const c_void, object: *mut c_void) -> *const c_char {
    let std_exception = STD_EXCEPTION.load(Ordering::Relaxed) as *const *const *const c_void;
    if std_exception.is_null() {
        return core::ptr::null();
    }
    let mut object = object;
    // SAFETY: libstdc++'s virtual tables: `type_info::__do_catch` is the fifth function, `exception::what` the third.
    unsafe {
        let do_catch = std_exception.read().add(4).read();
        let do_catch = core::mem::transmute::<
            *const c_void,
            extern "C" fn(*const c_void, *const c_void, *mut *mut c_void, c_uint) -> bool,
        >(do_catch);
        if !do_catch(std_exception.cast(), its_type.cast(), &raw mut object, 1) {
            return core::ptr::null();
        }
        let what = object.cast::<*const *const c_void>().read().add(2).read();
        core::mem::transmute::<*const c_void, extern "C" fn(*mut c_void) -> *const c_char>(what)(
            object,
        )
    }
}

/// Replaces the type's name by the one in its source.
fn demangle(its_type: *const *const c_void, length: usize) {
    let demangle = DEMANGLE.load(Ordering::Relaxed);
    if demangle == 0 || length > 1000 {
        return;
    }
    // SAFETY: `char* __cxa_demangle(const char*, char*, size_t*, int*)`, which allocates what it returns.
    unsafe {
        let demangle = core::mem::transmute::<
            usize,
            extern "C" fn(*const c_char, *mut c_char, *mut usize, *mut c_int) -> *mut c_char,
        >(demangle);
        let mut name = its_type.add(1).read().cast::<c_char>();
        if name.read() as u8 == b'*' {
            name = name.add(1);
        }
        let mut status = 0;
        let plain = demangle(
            name,
            core::ptr::null_mut(),
            core::ptr::null_mut(),
            &raw mut status,
        );
        if !plain.is_null() {
            TYPE.set(CStr::from_ptr(plain).to_bytes().iter().copied());
            libc::free(plain.cast());
        }
    }
}

/// Reads glibc's message, by a system call that fails where memory is not what it should be.
pub(crate) fn collect(facts: &Facts) {
    MESSAGE.set(core::iter::empty());
    let variable = ABORT_MESSAGE.load(Ordering::Relaxed);
    if variable == 0 || !is_own_abort(facts) {
        return;
    }
    let mut pointer = [0_u8; size_of::<usize>()];
    if sys::read_memory(variable as u64, &mut pointer).is_err() {
        return;
    }
    let pointer = usize::from_ne_bytes(pointer);
    if pointer == 0 {
        return;
    }
    // struct abort_msg_s { unsigned int size; char msg[0]; }: in pages of its own, so there is more to read than is kept.
    let mut text = [0_u8; 2048];
    let start = pointer.wrapping_add(size_of::<c_uint>());
    if sys::read_memory(start as u64, &mut text).is_err() {
        return;
    }
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    MESSAGE.set(text.trim_ascii_end().iter().copied());
}

/// Forgets what a process said that went on after it.
pub(crate) fn forget() {
    STATE.store(EMPTY, Ordering::Release);
    MESSAGE.set(core::iter::empty());
}

/// A C++ exception: the name of its type, and what it says of itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exception<'a> {
    /// Empty where `std::terminate` was called without one.
    pub(crate) type_name: &'a [u8],
    pub(crate) what: &'a [u8],
    /// Whether it is known that nothing caught it.
    pub(crate) is_uncaught: bool,
}

/// Returns the exception by which the crashed thread aborted.
pub(crate) fn exception_of(facts: &Facts) -> Option<Exception<'static>> {
    let state = STATE.load(Ordering::Acquire);
    let is_its = is_own_abort(facts) && THREAD.load(Ordering::Relaxed) == facts.thread;
    (is_its && state >= UNCAUGHT).then(|| Exception {
        type_name: TYPE.get(),
        what: WHAT.get(),
        is_uncaught: state == UNCAUGHT,
    })
}

/// Returns what glibc said, empty for nothing.
pub(crate) fn message_of(facts: &Facts) -> &'static [u8] {
    if is_own_abort(facts) {
        MESSAGE.get()
    } else {
        b""
    }
}

fn is_own_abort(facts: &Facts) -> bool {
    let is_sent = facts.signal == libc::SIGABRT
        && facts
            .sender
            .is_some_and(|(process, _)| process == facts.process);
    is_sent || is_fallback(facts)
}

/// The thread whose SIGABRT came to nothing; 0 is none.
static SURVIVED: AtomicI32 = AtomicI32::new(0);

/// Notes that SIGABRT has not ended the process: it never ends the first one of a PID namespace.
pub(crate) fn note_survival(thread: i32) {
    SURVIVED.store(thread, Ordering::Relaxed);
}

/// Whether this is how abort(3) ends a process that SIGABRT does not: by an instruction that is not allowed.
///
/// Source: glibc's stdlib/abort.c and sysdeps/*/abort-instr.h: `hlt` on x86-64, `brk` on AArch64.
pub(crate) fn is_fallback(facts: &Facts) -> bool {
    const SI_KERNEL: i32 = 0x80;
    let is_instruction = match facts.signal {
        libc::SIGSEGV => facts.code == Some(SI_KERNEL),
        libc::SIGTRAP => facts.is_fault(),
        _ => false,
    };
    is_instruction && SURVIVED.load(Ordering::Relaxed) == facts.thread
}
