"""A seccomp filter that refuses system calls, as a container's profile does."""

import ctypes
import platform
import struct
from collections.abc import Callable
from errno import EPERM

# By architecture: its number (linux/audit.h) and those of the calls.
X86_64 = (
    0xC000_003E,
    {
        "adjtimex": 159,
        "timer_create": 222,
        "linkat": 265,
        "process_vm_readv": 310,
        "memfd_create": 319,
        "clone3": 435,
    },
)
AARCH64 = (
    0xC000_00B7,
    {
        "adjtimex": 171,
        "timer_create": 107,
        "linkat": 37,
        "process_vm_readv": 270,
        "memfd_create": 279,
        "clone3": 435,
    },
)

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, MODE_FILTER = 22, 38, 2
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF_0000, 0x0005_0000 | EPERM


def refuse(name: str) -> Callable[[], None]:
    """Return a function that refuses a system call to its process with EPERM."""
    architecture, calls = AARCH64 if platform.machine() == "aarch64" else X86_64
    instructions = [
        (LOAD, 0, 0, 4),
        (JUMP_IF_EQUAL, 0, 2, architecture),
        (LOAD, 0, 0, 0),
        (JUMP_IF_EQUAL, 1, 0, calls[name]),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, REFUSE),
    ]
    program = b"".join(struct.pack("HBBI", *step) for step in instructions)
    room = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: the number of instructions and where they are.
    header = struct.pack("HxxxxxxP", len(instructions), ctypes.addressof(room))
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def install() -> None:
        zero = ctypes.c_ulong(0)
        one = ctypes.c_ulong(1)
        assert room
        assert prctl(PR_SET_NO_NEW_PRIVS, one, zero, zero, zero) == 0
        assert prctl(PR_SET_SECCOMP, ctypes.c_ulong(MODE_FILTER), header, 0, 0) == 0

    return install
