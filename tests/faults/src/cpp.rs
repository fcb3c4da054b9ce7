//! C++ exceptions that nothing catches, thrown without a C++ compiler: by the functions that one would call.
//!
//! Source: Itanium C++ ABI, "Exception Handling"; symbols of libstdc++ and of torch's libc10.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Function;

const TEXT: &CStr = c"rank 3 lost its peer\nframe #0: somewhere";
/// What a thread starts with. An exception may pass a frame that Rust calls `C-unwind`: nothing is to be done in it.
type Start = extern "C" fn(*mut c_void) -> *mut c_void;
type Passing = extern "C-unwind" fn(*mut c_void) -> *mut c_void;

fn symbol(library: &CStr, name: &CStr) -> *mut c_void {
    unsafe {
        let library = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY);
        let found = libc::dlsym(library, name.as_ptr());
        assert!(!found.is_null(), "no {name:?}");
        found
    }
}

fn standard(name: &CStr) -> *mut c_void {
    symbol(c"libstdc++.so.6", name)
}

/// Loads libstdc++, as importing torch would.
#[unsafe(no_mangle)]
extern "C" fn load_cpp() {
    standard(c"__cxa_throw");
}

fn allocate(size: usize) -> *mut c_void {
    let function = standard(c"__cxa_allocate_exception");
    unsafe { transmute::<*mut c_void, extern "C" fn(usize) -> *mut c_void>(function)(size) }
}

fn throw(object: *mut c_void, its_type: *mut c_void) {
    let function = standard(c"__cxa_throw");
    let throw: extern "C-unwind" fn(*mut c_void, *mut c_void, *mut c_void) -> ! =
        unsafe { transmute(function) };
    throw(object, its_type, null_mut());
}

/// `throw std::runtime_error(TEXT)`
#[unsafe(no_mangle)]
extern "C-unwind" fn throw_runtime_error() {
    let object = allocate(16);
    let construct = standard(c"_ZNSt13runtime_errorC1EPKc");
    unsafe {
        let construct: extern "C" fn(*mut c_void, *const c_char) = transmute(construct);
        construct(object, TEXT.as_ptr());
    }
    throw(object, standard(c"_ZTISt13runtime_error"));
}

/// `throw 7`
#[unsafe(no_mangle)]
extern "C-unwind" fn throw_int() {
    let object = allocate(4);
    unsafe { object.cast::<c_int>().write(7) };
    throw(object, standard(c"_ZTIi"));
}

/// `throw "a text"`
#[unsafe(no_mangle)]
extern "C-unwind" fn throw_text() {
    let object = allocate(8);
    unsafe { object.cast::<*const c_char>().write(c"a text".as_ptr()) };
    throw(object, standard(c"_ZTIPKc"));
}

/// `throw c10::DistBackendError(…)`, as NCCL's watchdog does; torch must be loaded.
#[unsafe(no_mangle)]
extern "C-unwind" fn throw_dist_backend_error() {
    #[repr(C)]
    struct SourceLocation(*const c_char, *const c_char, u32);
    /// libstdc++'s std::string: where its text is, its length, and room for a short one.
    #[repr(C)]
    struct Text(*const c_char, usize, [usize; 2]);
    let torch = |name| symbol(c"libc10.so", name);
    let object = allocate(512);
    let construct = torch(
        c"_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
    );
    let mut text = Text(TEXT.as_ptr(), TEXT.count_bytes(), [64, 0]);
    unsafe {
        let construct: extern "C" fn(*mut c_void, SourceLocation, *mut Text) = transmute(construct);
        let place = SourceLocation(c"watchdog".as_ptr(), c"ProcessGroupNCCL.cpp".as_ptr(), 12);
        construct(object, place, &raw mut text);
    }
    throw(object, torch(c"_ZTIN3c1016DistBackendErrorE"));
}

/// `std::terminate()`, as the destructor of a thread that was not joined does.
#[unsafe(no_mangle)]
extern "C" fn terminate() {
    unsafe { transmute::<*mut c_void, extern "C" fn()>(standard(c"_ZSt9terminatev"))() }
}

/// Aborts in a terminate handler of the program's own, set after ours.
#[unsafe(no_mangle)]
extern "C" fn set_terminate_abort() {
    extern "C" fn quietly() {
        unsafe { libc::abort() };
    }
    let set: extern "C" fn(Function) -> *mut c_void =
        unsafe { transmute(standard(c"_ZSt13set_terminatePFvvE")) };
    set(quietly);
}

/// Sets a terminate handler of the program's own that calls the one before it.
#[unsafe(no_mangle)]
extern "C" fn set_terminate_chain() {
    static BEFORE: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn calling() {
        unsafe { transmute::<usize, Function>(BEFORE.load(Ordering::Relaxed))() };
    }
    let set: extern "C" fn(Function) -> *mut c_void =
        unsafe { transmute(standard(c"_ZSt13set_terminatePFvvE")) };
    BEFORE.store(set(calling) as usize, Ordering::Relaxed);
}

/// Runs a function in a thread whose frames have no handler: named as NCCL's.
#[unsafe(no_mangle)]
extern "C" fn in_bare_thread(function: *mut c_void) {
    extern "C-unwind" fn start(function: *mut c_void) -> *mut c_void {
        unsafe {
            libc::prctl(libc::PR_SET_NAME, c"pt_nccl_watchdg".as_ptr());
            transmute::<*mut c_void, extern "C-unwind" fn()>(function)();
        }
        null_mut()
    }
    unsafe {
        let start = transmute::<Passing, Start>(start);
        let mut thread = 0;
        libc::pthread_create(&raw mut thread, std::ptr::null(), start, function);
        libc::pthread_join(thread, null_mut());
    }
}
