"""The decorator: whatever ends the decorated function is recorded as it leaves it."""

from __future__ import annotations

import sys
from _contextvars import ContextVar
from _thread import get_native_id
from os import getpid

from firstfault import _native
from firstfault._error_handler import is_disabled, leaving
from firstfault._exception import class_name, exit_status, headline
from firstfault._notices import ERROR, INFO, log, warn
from firstfault._wrapping import wraps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, ParamSpec, TypeVar

    from firstfault._error_handler import ErrorHandler

    P = ParamSpec("P")
    R = TypeVar("R")

_CHILD_FAILED = {
    ("firstfault", "ChildFailedError"),
    ("torch.distributed.elastic.multiprocessing.errors", "ChildFailedError"),
}
_NOT_AVAILABLE = "<N/A>"

_running: ContextVar[tuple[int, int]] = ContextVar("firstfault.running", default=(0, 0))
"""A process, and how many decorated functions run in it here, one inside the other.

A forked child inherits the value of its parent, whose functions it need not return to.
"""


def record(
    fn: Callable[P, R], error_handler: ErrorHandler | None = None
) -> Callable[P, R | None]:
    """Return the function so wrapped that its failure leaves an error file.

    Use it on the main function of a program::

        @record
        def main() -> None: ...

    Whatever leaves the function is recorded and raised on, unchanged: every exception,
    `KeyboardInterrupt`, and `SystemExit` with an exit status other than 0.
    ``SystemExit(0)`` returns None. A `ChildFailedError` is not recorded itself: the
    root-cause child's error file becomes this process's own.

    A record is final where it ends the process: on the main thread, and on leaving the
    outermost decorated function. On other threads, and further inside, the program may
    go on, and the record is provisional. A coroutine function is recorded when it is
    awaited; its cancellation is provisional.

    Args:
        fn: The function, or any other callable.
        error_handler: Who records; by default whoever `get_error_handler` returns when
            the function is called. Any object with the methods of torch's
            ``ErrorHandler`` will do.
    """
    if _is_coroutine_function(fn):

        @wraps(fn)
        async def awaiting(*args: Any, **kwargs: Any) -> Any:
            with _Recording(fn, error_handler):
                return await fn(*args, **kwargs)  # type: ignore[misc]
            return None

        return awaiting  # type: ignore[return-value]

    @wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R | None:
        with _Recording(fn, error_handler):
            return fn(*args, **kwargs)
        return None

    return wrapper


class _Recording:
    """What surrounds one call: a context manager, as that adds no frame of its own."""

    __slots__ = ("disabled", "fn", "handler")

    def __init__(self, fn: object, handler: ErrorHandler | None) -> None:
        self.fn = fn
        self.handler: Any = handler
        self.disabled = is_disabled()

    def __enter__(self) -> None:
        if self.disabled:
            return
        if not self.handler:
            self.handler = sys.modules["firstfault"].get_error_handler()
        # Not a method of handlers that are older than it.
        set_name = getattr(self.handler, "set_entrypoint_fn_name", None)
        if set_name is not None:
            set_name(getattr(self.fn, "__qualname__", None))
        self.handler.initialize()
        _running.set((getpid(), _depth() + 1))

    def __exit__(
        self,
        cls: type[BaseException] | None,
        e: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if self.disabled:
            return False
        _running.set((getpid(), max(_depth() - 1, 0)))
        try:
            return self._leave(e)
        finally:
            self._note_leaving(e)

    def _leave(self, e: BaseException | None) -> bool:
        if e is None:
            record_success = getattr(self.handler, "record_success", None)
            if record_success is not None:
                record_success()
            return False
        if isinstance(e, SystemExit):
            if _is_zero(e.code):
                return True
            if exit_status(e) == 0:
                return False
        try:
            self._record(e)
        except Exception as error:
            # A handler of the user's own; his program's failure is the one that counts.
            warn(f"Unable to record {class_name(type(e))}. {headline(error)}")
        return False

    def _note_leaving(self, e: BaseException | None) -> None:
        """Tell the black box; nothing may come between the failure and its way out."""
        try:
            name = getattr(self.fn, "__qualname__", "")
            how = "" if e is None else f": {class_name(type(e))}"
            _native.breadcrumb("leave", f"{name}{how}")
            if _depth() == 0 and get_native_id() == getpid():
                _native.exiting()
        except Exception:
            return  # The function's name is a property of the user's own.

    def _record(self, e: BaseException) -> None:
        if _is_child_failed(e):
            self._pass_on(e)
            return
        token = leaving.set(_ends_the_process(e))
        try:
            self.handler.record_exception(e)
        finally:
            leaving.reset(token)

    def _pass_on(self, e: Any) -> None:
        rank, failure = e.get_first_failure()
        if failure.error_file == _NOT_AVAILABLE:
            log(
                INFO,
                "local_rank %s FAILED with no error file."
                " Decorate your entrypoint fn with @record for traceback info."
                " See: https://pytorch.org/docs/stable/elastic/errors.html",
                rank,
            )
            return
        try:
            self.handler.dump_error_file(failure.error_file, failure.exitcode)
        except Exception as error:
            log(
                ERROR,
                "cannot take over the child's error file (%s): %s",
                failure.error_file,
                headline(error),
            )


def _depth() -> int:
    pid, depth = _running.get()
    return depth if pid == getpid() else 0


def _ends_the_process(e: BaseException) -> bool:
    if _depth() > 0 or get_native_id() != getpid():
        return False
    asyncio = sys.modules.get("asyncio")
    return asyncio is None or not isinstance(e, asyncio.CancelledError)


def _is_zero(code: object) -> bool:
    try:
        return bool(code == 0)
    except Exception:
        return False


def _is_child_failed(e: BaseException) -> bool:
    """Return whether this is a `ChildFailedError`, ours or torch's."""
    try:
        return any(
            (cls.__module__, cls.__name__) in _CHILD_FAILED for cls in type(e).__mro__
        )
    except Exception:  # A metaclass can make anything of a class's name.
        return False


def _is_coroutine_function(fn: object) -> bool:
    functools = sys.modules.get("functools")
    while functools is not None and isinstance(fn, functools.partial):
        fn = fn.func
    code = getattr(getattr(fn, "__func__", fn), "__code__", None)
    return bool(getattr(code, "co_flags", 0) & 0x80)  # inspect.CO_COROUTINE


record.__module__ = "firstfault"
