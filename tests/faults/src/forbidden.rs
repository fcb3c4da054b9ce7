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
extern "C" fn call_posix_memalign() {
    let mut block = null_mut();
    black_box(unsafe { libc::posix_memalign(black_box(&raw mut block), 64, 64) });
}

#[unsafe(no_mangle)]
extern "C" fn call_aligned_alloc() {
    black_box(unsafe { libc::aligned_alloc(64, black_box(64)) });
}

#[unsafe(no_mangle)]
extern "C" fn call_memalign() {
    black_box(unsafe { libc::memalign(64, black_box(64)) });
}

#[unsafe(no_mangle)]
extern "C" fn call_pthread_mutex_lock() {
    let mut mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    black_box(unsafe { libc::pthread_mutex_lock(&raw mut mutex) });
}

#[unsafe(no_mangle)]
extern "C" fn call_pthread_mutex_trylock() {
    let mut mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    black_box(unsafe { libc::pthread_mutex_trylock(&raw mut mutex) });
}

#[unsafe(no_mangle)]
extern "C" fn call_pthread_rwlock_rdlock() {
    let mut lock = libc::PTHREAD_RWLOCK_INITIALIZER;
    black_box(unsafe { libc::pthread_rwlock_rdlock(&raw mut lock) });
}

#[unsafe(no_mangle)]
extern "C" fn call_pthread_rwlock_wrlock() {
    let mut lock = libc::PTHREAD_RWLOCK_INITIALIZER;
    black_box(unsafe { libc::pthread_rwlock_wrlock(&raw mut lock) });
}

#[unsafe(no_mangle)]
extern "C" fn call_pthread_spin_lock() {
    let mut lock = unsafe { std::mem::zeroed() };
    unsafe { libc::pthread_spin_init(&raw mut lock, 0) };
    black_box(unsafe { libc::pthread_spin_lock(&raw mut lock) });
}

#[unsafe(no_mangle)]
extern "C" fn call_pthread_cond_wait() {
    let mut condition = libc::PTHREAD_COND_INITIALIZER;
    let mut mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    black_box(unsafe { libc::pthread_cond_wait(&raw mut condition, &raw mut mutex) });
}

#[unsafe(no_mangle)]
extern "C" fn call_pthread_cond_signal() {
    let mut condition = libc::PTHREAD_COND_INITIALIZER;
    black_box(unsafe { libc::pthread_cond_signal(&raw mut condition) });
}

#[unsafe(no_mangle)]
extern "C" fn call_pthread_cond_broadcast() {
    let mut condition = libc::PTHREAD_COND_INITIALIZER;
    black_box(unsafe { libc::pthread_cond_broadcast(&raw mut condition) });
}

#[unsafe(no_mangle)]
extern "C" fn call_pthread_once() {
    unsafe extern "C" {
        fn pthread_once(once: *mut c_int, function: extern "C" fn()) -> c_int;
    }
    extern "C" fn nothing() {}
    let mut once = 0;
    black_box(unsafe { pthread_once(&raw mut once, nothing) });
}

#[unsafe(no_mangle)]
extern "C" fn call_dlopen() {
    black_box(unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY) });
}

#[unsafe(no_mangle)]
extern "C" fn call_dlclose() {
    black_box(unsafe { libc::dlclose(black_box(null_mut())) });
}

#[unsafe(no_mangle)]
extern "C" fn call_dlerror() {
    black_box(unsafe { libc::dlerror() });
}

#[unsafe(no_mangle)]
extern "C" fn call_dladdr() {
    let mut information = unsafe { std::mem::zeroed() };
    let address = call_dladdr as *const c_void;
    black_box(unsafe { libc::dladdr(address, &raw mut information) });
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
