"""The planted faults: each ends, or stalls, the rank that calls it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable


def segfault() -> None:
    """Rank 2 reads through a null pointer inside a C function."""
    ctypes.string_at(0)


def abort() -> None:
    """Rank 2 calls abort(), as C++ does for an exception that nobody catches."""
    os.abort()


def exception() -> None:
    """Rank 2 raises an exception."""
    try:
        open("/data/shard-0007.tar").close()
    except OSError as e:
        raise RuntimeError("cannot read the next training shard") from e


def exit_text() -> None:
    """Rank 2 gives up with sys.exit() and a text, which torch does not record."""
    sys.exit("config: model.hidden_size is missing")


def exit_silently() -> None:
    """Rank 2 vanishes by os._exit(17), with nothing on its log."""
    os._exit(17)


def kill() -> None:
    """Rank 2 is killed by SIGKILL, as by the kernel's out-of-memory killer."""
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    """Rank 2 gets stuck; the others wait for it in the next collective."""
    time.sleep(3600)


FAULTS: dict[str, Callable[[], None]] = {
    "segfault": segfault,
    "abort": abort,
    "exception": exception,
    "exit": exit_text,
    "_exit": exit_silently,
    "kill": kill,
    "hang": hang,
}
