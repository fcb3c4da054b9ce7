//! The Python states of threads: which have one, which of them holds the global interpreter lock, and its stack.
//!
//! Two functions of CPython tell it, each of them a load or two, without lock or memory. The state that is current is the
//! process's up to Python 3.11: that of the lock's holder. From 3.12 on it is the thread's own, and set while it holds
//! the lock of its interpreter. What they cannot tell stays unsaid.
//!
//! Source: Python/pystate.c, `PyGILState_GetThisThreadState`, `_PyThreadState_UncheckedGet`; Python/traceback.c, `_Py_DumpTraceback`.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Addresses of CPython's functions, 0 for those that the process has not.
#[derive(Debug, Clone, Copy)]
pub struct Functions {
    /// Returns the state that the calling thread has, whether it holds the lock or not.
    pub own: usize,
    /// Returns the state that is current.
    pub current: usize,
    /// Writes the Python stack of a state to a descriptor. Private in Python 3.13 and 3.14.
    pub dump: usize,
    /// Whether the current state is the thread's own, not the process's.
    pub is_current_per_thread: bool,
}

impl Functions {
    /// Finds them in a process that runs this version of Python.
    ///
    /// Normal context: takes the loader's lock.
    pub fn find(version: (u8, u8)) -> Self {
        Self {
            own: symbol(&[c"PyGILState_GetThisThreadState"]),
            // Each pair is two names of one function: a public and an older one.
            current: symbol(&[
                c"PyThreadState_GetUnchecked",
                c"_PyThreadState_UncheckedGet",
            ]),
            dump: symbol(&[c"PyUnstable_DumpTraceback", c"_Py_DumpTraceback"]),
            is_current_per_thread: version >= (3, 12),
        }
    }
}

fn symbol(names: &[&CStr]) -> usize {
    let find = |name: &&CStr| {
        // SAFETY: the name is NUL-terminated.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) as usize }
    };
    names
        .iter()
        .map(find)
        .find(|found| *found != 0)
        .unwrap_or(0)
}

static OWN: AtomicUsize = AtomicUsize::new(0);
static CURRENT: AtomicUsize = AtomicUsize::new(0);
static DUMP: AtomicUsize = AtomicUsize::new(0);
static IS_CURRENT_PER_THREAD: AtomicBool = AtomicBool::new(false);

/// Sets the functions.
pub fn configure(functions: &Functions) {
    OWN.store(functions.own, Ordering::Relaxed);
    CURRENT.store(functions.current, Ordering::Relaxed);
    DUMP.store(functions.dump, Ordering::Relaxed);
    IS_CURRENT_PER_THREAD.store(functions.is_current_per_thread, Ordering::Release);
}

fn call(function: &AtomicUsize) -> usize {
    match function.load(Ordering::Acquire) {
        0 => 0,
        address => {
            // SAFETY: the two that this is called with take nothing and return a pointer.
            let function =
                unsafe { core::mem::transmute::<usize, extern "C" fn() -> usize>(address) };
            function()
        }
    }
}

/// Writes the calling thread's Python stack, where it has one and the function can be had.
pub(crate) fn dump(descriptor: i32) {
    let (state, address) = (call(&OWN), DUMP.load(Ordering::Relaxed));
    if state != 0 && address != 0 {
        // SAFETY: only `configure` stores here, a function of this type.
        let function =
            unsafe { core::mem::transmute::<usize, extern "C" fn(libc::c_int, usize)>(address) };
        function(descriptor, state);
    }
}

/// What a thread noted of its own Python state.
#[derive(Debug)]
pub struct Note {
    state: AtomicUsize,
    current: AtomicUsize,
}

impl Note {
    pub(crate) const fn new() -> Self {
        Self {
            state: AtomicUsize::new(0),
            current: AtomicUsize::new(0),
        }
    }

    /// Notes the calling thread's.
    pub(crate) fn take(&self) {
        let state = call(&OWN);
        // Not asked where it cannot be: the first access to a variable of a library's own in a thread may allocate.
        let current = if state == 0 { 0 } else { call(&CURRENT) };
        self.state.store(state, Ordering::Relaxed);
        self.current.store(current, Ordering::Relaxed);
    }

    pub(crate) fn forget(&self) {
        self.state.store(0, Ordering::Relaxed);
        self.current.store(0, Ordering::Relaxed);
    }

    /// Returns whether the thread has a Python state.
    pub(crate) fn is_pythons(&self) -> bool {
        self.state.load(Ordering::Relaxed) != 0
    }
}

/// The owner's own, and whether it has been taken.
static HERE: Note = Note::new();
static IS_KNOWN: AtomicBool = AtomicBool::new(false);
/// The state of the process's lock holder, and whether it is one of a thread that told of its own.
static HOLDER: AtomicUsize = AtomicUsize::new(0);
static IS_HOLDER_KNOWN: AtomicBool = AtomicBool::new(false);

/// Looks who holds the lock; the other threads hold still, and these are their notes.
pub(crate) fn look<'n>(mut others: impl Iterator<Item = &'n Note>) {
    if CURRENT.load(Ordering::Acquire) == 0 || OWN.load(Ordering::Relaxed) == 0 {
        return;
    }
    HERE.take();
    if !IS_CURRENT_PER_THREAD.load(Ordering::Relaxed) {
        let holder = call(&CURRENT);
        let is_holders = |note: &Note| note.state.load(Ordering::Relaxed) == holder;
        HOLDER.store(holder, Ordering::Relaxed);
        IS_HOLDER_KNOWN.store(
            holder == 0 || is_holders(&HERE) || others.any(is_holders),
            Ordering::Relaxed,
        );
    }
    IS_KNOWN.store(true, Ordering::Relaxed);
}

/// Forgets what was seen: the failure was none.
pub(crate) fn forget() {
    IS_KNOWN.store(false, Ordering::Relaxed);
    IS_HOLDER_KNOWN.store(false, Ordering::Relaxed);
}

/// Returns whether the owner of the handler holds the lock, `None` where that cannot be known.
pub(crate) fn is_held_here() -> Option<bool> {
    is_held_by(Some(&HERE))
}

/// Returns whether the thread with this note holds the lock, `None` where that cannot be known; a thread that did not
/// answer has none.
pub(crate) fn is_held_by(note: Option<&Note>) -> Option<bool> {
    if !IS_KNOWN.load(Ordering::Relaxed) {
        return None;
    }
    if IS_CURRENT_PER_THREAD.load(Ordering::Relaxed) {
        return note.map(|note| note.current.load(Ordering::Relaxed) != 0);
    }
    let holder = HOLDER.load(Ordering::Relaxed);
    match note.map(|note| note.state.load(Ordering::Relaxed)) {
        // The state of a sub-interpreter is nobody's own: its thread keeps that of the main one.
        Some(state) if state == holder => Some(holder != 0),
        Some(0) => Some(false),
        _ => IS_HOLDER_KNOWN.load(Ordering::Relaxed).then_some(false),
    }
}
