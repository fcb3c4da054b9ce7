"""What activation puts into Python itself, once in a process."""

from __future__ import annotations

import os
import threading

from firstfault import _native

_installed: list[bool] = []


def install() -> None:
    """Install what is not installed yet."""
    if _installed:
        return
    _installed.append(True)
    os.register_at_fork(after_in_child=_native.after_fork)
    _give_threads_alternate_stacks()


def _give_threads_alternate_stacks() -> None:
    """Let each thread that starts from now on have room to record its own overflow.

    `_set_native_id` is the first of its own methods that a thread calls, and returns
    before the thread's work begins: no frame of ours is in its stacks. The system takes
    the room back as the thread ends.
    """
    cls = threading.Thread
    original = cls._set_native_id  # type: ignore[attr-defined]
    give = _native.give_alternate_stack

    def _set_native_id(self: threading.Thread) -> None:
        original(self)
        try:
            give()
        except Exception:
            return  # The thread is worth more than the record of its end.

    cls._set_native_id = _set_native_id  # type: ignore[attr-defined]
