//! The alternate signal stack, painted: what is not paint any more was used.

use std::io::Write;

const PAINT: u8 = 0xa5;

/// Paints the calling thread's alternate signal stack, and prints its address and size.
#[unsafe(no_mangle)]
extern "C" fn paint_alternate_stack() {
    unsafe {
        let mut stack: libc::stack_t = std::mem::zeroed();
        libc::sigaltstack(std::ptr::null(), &raw mut stack);
        libc::memset(stack.ss_sp, PAINT.into(), stack.ss_size);
        let mut output = std::io::stdout();
        let _ = writeln!(output, "{} {}", stack.ss_sp as usize, stack.ss_size);
        let _ = output.flush();
    }
}

/// For a thread that does one thing and ends.
#[unsafe(no_mangle)]
extern "C" fn paint_and_read_null() {
    paint_alternate_stack();
    crate::faults::read_null();
}
