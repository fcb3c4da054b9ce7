//! Facts of the moment: the clocks, what the signal says, and where the thread was.

use core::ffi::c_void;

use crate::native::Registers;
use crate::sys::{self, ClockError};
use crate::termination;

/// The time of one moment, on every clock that a reader may need.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// Nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Nanoseconds since boot, suspended time not counted: orders the events of one boot.
    pub monotonic_ns: u64,
    /// The kernel's own bound of its clock's error, where it says one.
    pub error: Option<ClockError>,
}

impl Clock {
    /// Returns the time of now.
    pub fn now() -> Self {
        Self {
            time_ns: sys::clock_ns(libc::CLOCK_REALTIME),
            monotonic_ns: sys::clock_ns(libc::CLOCK_MONOTONIC),
            error: sys::clock_error(),
        }
    }
}

/// What is known of a crash at its first instruction in the handler.
#[derive(Debug, Clone, Copy)]
pub struct Facts {
    /// When.
    pub clock: Clock,
    /// The signal's number.
    pub signal: i32,
    /// Its `si_code`; `None` where somebody called the handler without a siginfo.
    pub code: Option<i32>,
    /// The fault address, for a fault.
    pub address: Option<u64>,
    /// The system call that a seccomp filter stopped.
    pub system_call: Option<i32>,
    /// Process ID and user ID of the sender, for a signal that was sent.
    pub sender: Option<(i32, u32)>,
    /// The name of the sender's program, NULs after it; empty where it cannot be told.
    pub sender_name: [u8; 16],
    /// Whether the process ends by this signal; one that asks it to end may have a handler of the program's own.
    pub is_final: bool,
    /// Whether the process had been asked to end before.
    pub is_late: bool,
    /// The dying process: a forked child's own.
    pub process: i32,
    /// The crashed thread.
    pub thread: i32,
    /// Its name, NULs after it.
    pub thread_name: [u8; 16],
    /// Where it was.
    pub program_counter: Option<u64>,
    /// Whether its stack was used up.
    pub is_stack_overflow: bool,
    /// Where a walk over its stack starts.
    pub registers: Option<Registers>,
}

impl Facts {
    /// Returns the facts of a signal that was just delivered to the calling thread.
    pub fn new(signal: i32, info: Option<&libc::siginfo_t>, context: *const c_void) -> Self {
        let registers = Registers::of_context(context);
        let code = info.map(|info| info.si_code);
        // Kernel codes are positive; zero and below were sent by somebody. Source: sigaction(2).
        let is_kernels = code.is_some_and(|code| code > 0);
        let process = sys::process_id();
        // SAFETY: a sent signal's siginfo has its sender.
        let sender = info
            .filter(|_| !is_kernels)
            .map(|info| unsafe { (info.si_pid(), info.si_uid()) });
        // SAFETY: the kernel's siginfo has an address, but where a limit was reached.
        let address = info
            .filter(|_| is_kernels && signal != libc::SIGXCPU)
            .map(|info| unsafe { info.si_addr() } as u64);
        Self {
            clock: Clock::now(),
            signal,
            code,
            address,
            // SAFETY: of 64-bit Linux's siginfo_t of 128 bytes, where SYS_SECCOMP has it behind the address.
            system_call: info
                .filter(|info| signal == libc::SIGSYS && info.si_code == 1)
                .map(|info| unsafe { (&raw const *info).cast::<i32>().add(6).read() }),
            sender,
            sender_name: sender
                .filter(|sender| sender.0 > 0 && sender.0 != process)
                .map_or([0; 16], |sender| sys::name_of_process(sender.0)),
            is_final: true,
            is_late: termination::is_received(),
            process,
            thread: sys::thread_id(),
            thread_name: sys::thread_name(),
            program_counter: registers.map(|registers| registers.program_counter),
            registers,
            is_stack_overflow: signal == libc::SIGSEGV
                && registers.map(|registers| registers.program_counter) != address
                && address.zip(registers).is_some_and(|(address, registers)| {
                    is_off_stack(address, registers.stack_pointer)
                }),
        }
    }

    /// Returns whether the kernel raised the signal for what the thread did.
    pub fn is_fault(&self) -> bool {
        self.address.is_some()
    }
}

/// Returns the name in a buffer that the kernel filled.
pub fn until_nul(name: &[u8]) -> &[u8] {
    name.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// How far from the stack pointer a function may touch its own frame.
const FRAME_MAX: u64 = 64 * 1024;

/// Returns whether memory around a thread's stack pointer ends at an address that cannot be accessed.
///
/// Below the pointer nothing but the stack's end is without memory. Above it, in a frame that was just made, it is the
/// stack's end only if the pointer itself is behind it too: else it would be an access beyond the stack's beginning.
fn is_off_stack(address: u64, stack_pointer: u64) -> bool {
    if address <= stack_pointer {
        return stack_pointer.wrapping_sub(address) <= FRAME_MAX;
    }
    let mut byte = [0];
    address.wrapping_sub(stack_pointer) <= FRAME_MAX
        && sys::read_memory(stack_pointer, &mut byte).is_err()
}

/// Returns the interrupted stack pointer.
pub fn stack_pointer(context: *const c_void) -> Option<usize> {
    Registers::of_context(context).map(|registers| registers.stack_pointer as usize)
}

/// Makes the return from this signal handler lead where the return from an earlier, interrupted one would have led.
///
/// A handler that was entered again (by a fault of its own, or by the watchdog) abandons its outer frames: it copies
/// the outer context over its own and returns, and the thread stands where the first signal found it.
///
/// # Safety
/// Both must be contexts that the kernel passed to handlers of the calling thread whose frames are still on its stack.
pub unsafe fn return_to(outer: *const c_void, own: *mut c_void) {
    // The kernel's ucontext is shorter than libc's: its signal mask has 64 bits, and what lies behind is not ours.
    // On x86-64 the mask comes last; the floating-point state is behind a pointer into the outer frame, which lives.
    // On AArch64 the machine context comes last and holds everything.
    #[cfg(target_arch = "x86_64")]
    let length = core::mem::offset_of!(libc::ucontext_t, uc_sigmask).wrapping_add(8);
    #[cfg(target_arch = "aarch64")]
    let length = core::mem::size_of::<libc::ucontext_t>();
    if outer.is_null() || own.is_null() || core::ptr::eq(outer, own) {
        return;
    }
    // SAFETY: the caller's promise; the two frames are different, so they do not overlap.
    unsafe { core::ptr::copy_nonoverlapping(outer.cast::<u8>(), own.cast::<u8>(), length) };
}
