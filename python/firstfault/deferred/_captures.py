"""The deferred errors of one rank: the first is kept, later ones are counted."""

from __future__ import annotations

import atexit
import functools
import inspect
import operator
import threading

from firstfault import _native
from firstfault._exception import headline
from firstfault._notices import ERROR, log
from firstfault.deferred import _record
from firstfault.deferred._may_defer import may_defer
from firstfault.deferred._scope import Scope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")
    D = TypeVar("D")


class Captures:
    """What of a rank's failures is deferred, without any agreement between ranks."""

    def __init__(self, *, group: Any = None, strict: bool = False) -> None:
        self._group = group
        self._strict = strict
        self._captured: _record.Captured | None = None
        self._suppressed = 0
        self._step: int | None = None
        self._watched = 0
        self._undeferrable: BaseException | None = None
        self._is_over = False  # Nothing is raised any more: nothing can be deferred.
        # Reentrant: a signal's handler and a finalizer may capture too.
        self._changed = threading.Condition()

    @property
    def pending(self) -> bool:
        """Whether an error of this rank is deferred."""
        return self._captured is not None

    @property
    def first(self) -> Exception | None:
        """The first deferred error of this rank, the very exception; None without."""
        captured = self._captured
        return None if captured is None else captured.error

    @property
    def suppressed(self) -> int:
        """How many deferred errors came after the first; they are only logged."""
        return self._suppressed

    def step(self, n: int) -> None:
        """Say which step begins: errors and records name it, as `firstfault.step`."""
        self._step = n = operator.index(n)  # As an array's element may be.
        _native.step(n)

    def defer(self, where: str) -> Scope:
        """Return a context manager that defers the error which leaves its block.

        What may not be deferred is raised on: see `may_defer`.

        Args:
            where: What is done, in a word or two; records and reports show it.
        """
        scope = Scope()
        scope._captures = self
        scope._where = where
        return scope

    def call(
        self,
        fn: Callable[..., R],
        *args: Any,
        default: D = None,  # type: ignore[assignment]
        **kwargs: Any,
    ) -> R | D:
        """Return what a function returns, or the default where its error is deferred.

        The function's name says where.
        """
        with self.defer(name_of(fn)):
            return fn(*args, **kwargs)
        return default

    def guard(self, where: str) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
        """Return a decorator: each call of the function is a scope of `defer`.

        A call whose error is deferred returns None. Of a coroutine function it is what
        is awaited that is the scope.
        """

        def decorate(fn: Callable[P, R]) -> Callable[P, R | None]:
            if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
                raise TypeError(
                    f"{name_of(fn)} is a generator, which runs where it is iterated: "
                    "put the scope into it, or around what iterates"
                )
            if inspect.iscoroutinefunction(fn):

                @functools.wraps(fn)
                async def awaiting(*args: P.args, **kwargs: P.kwargs) -> Any:
                    with self.defer(where):
                        return await fn(*args, **kwargs)
                    return None

                return awaiting  # type: ignore[return-value]

            @functools.wraps(fn)
            def guarded(*args: P.args, **kwargs: P.kwargs) -> R | None:
                with self.defer(where):
                    return fn(*args, **kwargs)
                return None

            return guarded

        return decorate

    def capture(self, exc: BaseException, where: str) -> None:
        """Defer an error that was caught elsewhere, as in another thread.

        Returns at once, whatever the store and the peers do.

        Raises:
            BaseException: The error itself, where it may not be deferred.
        """
        if not (may_defer(exc) and self._keep(exc, where)):  # type: ignore[arg-type]
            raise exc

    def watch(self, future: Any, where: str = "future") -> None:
        """Defer the error with which a future ends, now or later.

        Args:
            future: Anything with `add_done_callback`, as `concurrent.futures`,
                ``asyncio`` and ``torch.futures`` have.
            where: What it does.
        """
        with self._changed:
            self._watched += 1
        future.add_done_callback(functools.partial(self._note_done, where))

    def _note_done(self, where: str, future: Any) -> None:
        """Take over the error of a future, in whatever thread it ended."""
        try:
            error = _error_of(future)
            if error is None:
                return
            if may_defer(error) and self._keep(error, where):  # type: ignore[arg-type]
                return
            if self._undeferrable is not None or self._is_over:
                log(ERROR, "%s: %s, which nobody raises", where, headline(error))
            else:
                self._undeferrable = error
        finally:
            with self._changed:
                self._watched -= 1
                self._changed.notify_all()

    def _await_watched(self, timeout: float) -> None:
        """Wait for the watched futures; that one is not done in time is an error too.

        Raises:
            BaseException: The error of one, where it may not be deferred.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._watched, timeout)
            left = self._watched
        self._raise_undeferrable()
        if left:
            text = f"{left} watched futures not done within {timeout:g} s"
            self._keep(TimeoutError(text), "watch")

    def _raise_undeferrable(self) -> None:
        """Raise what a watched future ended with and what may not be deferred."""
        error, self._undeferrable = self._undeferrable, None
        if error is not None:
            raise error

    def _keep(self, error: Exception, where: str) -> bool:
        """Keep the first error, count a later one; both are logged.

        Returns:
            Whether it will be raised, or was at least logged beside one that will.
        """
        with self._changed:
            if self._is_over:
                return False
            captured = None
            if self._captured is None:
                captured = _record.Captured(error, where, self._step)
                self._captured = captured
                _unraised[self] = None
            else:
                self._suppressed += 1
                self._captured.facts["suppressed"] = count = self._suppressed
        if captured is None:
            _record.log_later(error, where, self._step, count)
            return True
        self._announce()
        _record.log_first(captured)
        _record.write(captured)
        return True

    def _taken(self) -> None:
        """Note that what was deferred is being raised."""
        _unraised.pop(self, None)

    def _announce(self) -> None:
        """Tell the peers that something is deferred: here there are none."""


_unraised: dict[Captures, None] = {}
"""Those with an error that nobody has raised yet, in order."""


@atexit.register
def _complain() -> None:
    """Say what a program that ends has forgotten to raise."""
    for captures in tuple(_unraised)[:1]:
        if captures._captured is not None:
            _record.log_forgotten(captures._captured)


def name_of(fn: object) -> str:
    """Return what a callable is called, or its class where it has no name."""
    name = getattr(fn, "__qualname__", None)
    return name if isinstance(name, str) else type(fn).__qualname__


def _error_of(future: Any) -> BaseException | None:
    """Return the error with which a future ended; none where it was cancelled."""
    try:
        if future.cancelled():
            return None
        return future.exception()  # type: ignore[no-any-return]
    except AttributeError:  # A future of torch's has neither method.
        try:
            future.value()
        except Exception as error:
            return error
        return None
