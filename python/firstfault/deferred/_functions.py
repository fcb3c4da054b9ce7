"""The function style: what is deferred belongs to the process, and no rank agrees."""

from __future__ import annotations

from firstfault._exception import headline
from firstfault._notices import WARNING, log
from firstfault.deferred import _flag
from firstfault.deferred._captures import Captures, name_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    R = TypeVar("R")

_captures = Captures()


def try_or_defer(fn: Callable[..., R], *args: Any, **kwargs: Any) -> R | None:
    """Return what a function returns; None where its error is deferred."""
    return _captures.call(fn, *args, **kwargs)


def has_deferred_error() -> bool:
    """Return whether an error of this rank is deferred."""
    return _captures.pending


def raise_if_deferred_error() -> None:
    """Raise the first deferred error of this rank, which is then no longer pending.

    On the ranks that deferred nothing it raises nothing: they leave normally. Every
    rank calls it, when no collective is left; `sync_should_stop` forgets on all of them
    that it was true.
    """
    global _captures
    _flag.reset()
    captures, first = _captures, _captures.first
    if first is None:
        return
    _captures = Captures()
    captures._taken()
    if captures.suppressed:
        first.add_note(f"{captures.suppressed} more deferred errors are in the log")
    raise first


def suppress_errors(fn: Callable[..., R], *args: Any, **kwargs: Any) -> R | None:
    """Return what a function returns; None where it raises, which is only logged.

    For secondary operations on the way out of a failure, whose errors would hide it.
    """
    try:
        return fn(*args, **kwargs)
    except Exception as error:
        log(WARNING, "suppressed in %s: %s", name_of(fn), headline(error))
        return None
