//! Calls that no signal handler may make, each alone: what the detector must find.

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::ptr::null_mut;

#[unsafe(no_mangle)]
extern "C" fn call_malloc() {
    black_box(unsafe { libc::malloc(black_box(100)) });
}

#[unsafe(no_mangle)]
extern "C" fn call_calloc() {
    black_box(unsafe { libc::calloc(black_box(10), 10) });
}

#[unsafe(no_mangle)]
extern "C" fn call_realloc() {
    black_box(unsafe { libc::realloc(black_box(null_mut()), 10) });
}

#[unsafe(no_mangle)]
extern "C" fn call_free() {
    unsafe { libc::free(black_box(null_mut())) };
}

#[unsafe(no_mangle)]
extern "C" fn call_pthread_mutex_lock() {
    let mut mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    black_box(unsafe { libc::pthread_mutex_lock(&raw mut mutex) });
}

#[unsafe(no_mangle)]
extern "C" fn call_dlopen() {
    black_box(unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY) });
}

#[unsafe(no_mangle)]
extern "C" fn call_dlsym() {
    black_box(unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"write".as_ptr()) });
}

#[unsafe(no_mangle)]
extern "C" fn call_dl_iterate_phdr() {
    extern "C" fn nothing(_: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
        1
    }
    unsafe { libc::dl_iterate_phdr(Some(nothing), null_mut()) };
}
