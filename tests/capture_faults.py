"""The faults of the capture matrix, and how a record names each."""

import platform
import sys
from dataclasses import dataclass
from signal import (
    SIGABRT,
    SIGBUS,
    SIGFPE,
    SIGILL,
    SIGSEGV,
    SIGSYS,
    SIGTRAP,
    SIGXCPU,
    Signals,
)

ON_X86 = platform.machine() == "x86_64"


@dataclass(frozen=True)
class Fault:
    """A step of `contexts.py` or `crash.py`, and how a record names it."""

    step: str
    signal: Signals
    # What its name begins with: a used-up stack ends at a guard page or at nothing.
    code: str = "SI_TKILL"
    # A part of the first line of the message.
    reason: str = "raised by the process itself"
    # The fault address; "0x" is one of the moment.
    address: str | None = None
    # Steps before the process is activated.
    before: tuple[str, ...] = ()
    # A function of C: it can happen in a thread without Python.
    native: bool = True
    # Sent to the process: the kernel prefers the main thread for it.
    to_process: bool = False
    # Python functions of the crashed thread, where not those of the context.
    stack: tuple[str, ...] | None = None


def sent(way: str, number: Signals, code: str) -> Fault:
    """Return a fault that is a signal which somebody sends."""
    to_process = way != "raise_signal" and code != "SI_TKILL"
    step = f"{way}:{number:d}"
    return Fault(step, number, code, native=False, to_process=to_process)


# No step: the process waits, and the test sends the signal.
PARENT_KILLS = ""

FAULTS = {
    "read of a null pointer": Fault(
        "read_null", SIGSEGV, "SEGV_MAPERR", "null pointer at 0x10", address="0x10"
    ),
    "the same with the GIL held": Fault(
        "held.read_null", SIGSEGV, "SEGV_MAPERR", "null pointer at 0x10"
    ),
    "write to a null pointer": Fault(
        "write_null", SIGSEGV, "SEGV_MAPERR", "null pointer at 0x10", address="0x10"
    ),
    "ctypes.string_at(0)": Fault(
        "string_at_null",
        SIGSEGV,
        "SEGV_MAPERR",
        "null pointer at 0x0",
        native=False,
    ),
    "read of an unmapped address": Fault(
        "read_unmapped",
        SIGSEGV,
        "SEGV_MAPERR",
        "unmapped address at 0x7ffffffff123",
        address="0x7ffffffff123",
    ),
    "read after munmap": Fault(
        "read_after_unmap", SIGSEGV, "SEGV_MAPERR", "unmapped address at 0x66660000"
    ),
    "write to read-only memory": Fault(
        "write_read_only",
        SIGSEGV,
        "SEGV_ACCERR",
        "forbidden access at 0x",
        address="0x",
    ),
    "call through a null pointer": Fault(
        "call_null",
        SIGSEGV,
        "SEGV_MAPERR",
        "call through a null pointer at 0x0",
        address="0x0",
    ),
    "jump into nowhere": Fault(
        "jump_unmapped", SIGSEGV, "SEGV_MAPERR", "at 0x66660000"
    ),
    "execution of data": Fault(
        "execute_data", SIGSEGV, "SEGV_ACCERR", "executing data at 0x", address="0x"
    ),
    "free of no block": Fault(
        "bad_free", SIGSEGV, "SEGV_MAPERR", "unmapped address at 0x6666", native=False
    ),
    "fault inside malloc": Fault(
        "fault_in_malloc", SIGSEGV, "SEGV_MAPERR", "unmapped address at 0x6666"
    ),
    "stack overflow": Fault("overflow", SIGSEGV, "SEGV_", "stack overflow at 0x"),
    "stack overflow by large frames": Fault(
        "overflow_by_large_frames", SIGSEGV, "SEGV_", "stack overflow at 0x"
    ),
    "smashed stack": Fault(
        "smashed_stack",
        SIGILL,
        "ILL_ILLOPN" if ON_X86 else "ILL_ILLOPC",
        "illegal instruction at 0x",
    ),
    "read past the end of a mapped file": Fault(
        "read_past_end_of_file",
        SIGBUS,
        "BUS_ADRERR",
        "no memory behind the address",
        address="0x",
    ),
    "illegal instruction": Fault(
        "illegal_instruction",
        SIGILL,
        "ILL_ILLOPN" if ON_X86 else "ILL_ILLOPC",
        "illegal instruction at 0x",
        address="0x",
    ),
    "breakpoint": Fault(
        "breakpoint",
        SIGTRAP,
        "SI_KERNEL" if ON_X86 else "TRAP_BRKPT",
        "breakpoint",
        address="0x0" if ON_X86 else "0x",
    ),
    "system call that seccomp forbids": Fault(
        "forbidden_system_call",
        SIGSYS,
        "SYS_SECCOMP",
        f"system call {163 if ON_X86 else 89} forbidden by seccomp",
        address="0x",
    ),
    "limit of processor time": Fault(
        "use_up_time", SIGXCPU, "SI_KERNEL", "limit of the process reached"
    ),
    "os.abort": Fault("os_abort", SIGABRT, native=False),
    "abort": Fault("c_abort", SIGABRT),
    "assert": Fault(
        "libc:__assert_fail", SIGABRT, reason="Assertion `loss < inf'", native=False
    ),
    "free of a free block": Fault(
        "free_twice", SIGABRT, reason="double free", native=False
    ),
    "stack protector": Fault(
        "libc:__stack_chk_fail", SIGABRT, reason="stack smashing", native=False
    ),
    # It frees what CPython's dumper needs before it aborts.
    "Py_FatalError": Fault("fatal_error", SIGABRT, native=False, stack=()),
    "panic of Rust": Fault("rust_panic", SIGABRT),
    "std::terminate": Fault(
        "terminate", SIGABRT, reason="std::terminate", before=("load_cpp",)
    ),
    "C++ exception": Fault(
        "throw_runtime_error",
        SIGABRT,
        reason="uncaught C++ exception std::runtime_error: rank 3 lost its peer",
        before=("load_cpp",),
    ),
    "C++ exception of a plain type": Fault(
        "throw_int", SIGABRT, reason="uncaught C++ exception int", before=("load_cpp",)
    ),
    "kill by itself": sent("kill", SIGSEGV, "SI_USER"),
    "raise": sent("raise_signal", SIGBUS, "SI_TKILL"),
    "tgkill": sent("signal_own_thread", SIGFPE, "SI_TKILL"),
    "sigqueue": sent("queue_signal", SIGILL, "SI_QUEUE"),
    "tgkill by another thread": sent("thread_kills", SIGTRAP, "SI_TKILL"),
    "kill by the parent": Fault(
        PARENT_KILLS,
        SIGSYS,
        "SI_USER",
        "sent by process ",
        native=False,
        to_process=True,
    ),
}

# From Python 3.12 on it is a RecursionError.
if sys.version_info < (3, 12):
    FAULTS |= {
        "recursion through C": Fault(
            "c_recursion",
            SIGSEGV,
            "SEGV_",
            "stack overflow at 0x",
            native=False,
            # CPython's dumper stops at a hundred frames.
            stack=("deeper", "deeper"),
        ),
    }
if ON_X86:
    FAULTS |= {
        "read of a non-canonical address": Fault(
            "read_non_canonical",
            SIGSEGV,
            "SI_KERNEL",
            "protection fault, address unknown",
            address="0x0",
        ),
        "integer division by zero": Fault(
            "divide_by_zero",
            SIGFPE,
            "FPE_INTDIV",
            "integer division by zero",
            address="0x",
        ),
    }
