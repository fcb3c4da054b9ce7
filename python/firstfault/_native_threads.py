"""Threads that Python did not start: room to record their own stack overflow."""

from __future__ import annotations

from firstfault import _native
from firstfault._error_handler import is_disabled
from firstfault._notices import warn


def protect_native_threads() -> int:
    """Let the native threads that run now record it when they use up their stacks.

    The main thread and those of ``threading`` are recorded anyway. A thread that a
    library started has no alternate signal stack to do it on, and dies without a word;
    this gives each one. Call it when the libraries' threads are there: after
    ``init_process_group`` and the first step. A thread that starts later is not
    protected until the next call, and one that has an alternate signal stack keeps it.

    Each thread is interrupted once, by a real-time signal: a system call that signals
    end, such as ``poll`` or ``nanosleep``, returns EINTR in it. It costs 260 KiB of
    address space a thread, and memory in a crash only; what a thread had that has ended
    is given back at the next call.

    Returns:
        How many threads were given an alternate signal stack. A thread that blocks all
        signals, or that answers none within 50 ms, is passed over.
    """
    if is_disabled():
        return 0
    try:
        return _native.protect_native_threads()
    except Exception as error:
        warn(f"native threads are not protected: {error}")
        return 0


protect_native_threads.__module__ = "firstfault"
