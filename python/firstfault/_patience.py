"""Calls on files that may not answer, made so that they can be left."""

from __future__ import annotations

import _thread
import errno
from posix import getpid

from firstfault import _native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    T = TypeVar("T")

SECONDS = 2.0
"""How long a file system may take, as in a crash."""

_out: list[int] = []
"""Has the process while a call has not come back: the next one is not even begun."""


def within(path: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what a function returns that touches this file, in bounded time.

    Nothing interrupts a thread that waits for a file server, so another one waits. It
    is left behind, and ends with the process.

    Raises:
        TimeoutError: The file system does not answer.
    """
    if not _native.may_hang(path):
        return function(*args, **kwargs)
    if getpid() in _out:
        raise _silent(path)
    results: list[tuple[T | None, BaseException | None]] = []
    done = _thread.allocate_lock()
    done.acquire()

    def call() -> None:
        try:
            results.append((function(*args, **kwargs), None))
        except BaseException as error:
            results.append((None, error))
        finally:
            _out.clear()
            done.release()

    _out.append(getpid())
    try:
        _thread.start_new_thread(call, ())
    except RuntimeError:  # No thread can be made: it is done here, or never.
        call()
    if not done.acquire(timeout=SECONDS):
        raise _silent(path)
    result, error = results.pop()
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


def _silent(path: str) -> TimeoutError:
    return TimeoutError(errno.ETIMEDOUT, "the file system does not answer", path)
