"""The first deferred error of a rank: its log, its record, its texts for the peers."""

from __future__ import annotations

import sys

from firstfault._exception import (
    callstack,
    class_name,
    headline,
    text_of,
)
from firstfault._notices import ERROR, log
from firstfault._text import cut, printable
from firstfault.deferred._errors import RemoteDeferredError, deferred_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

TYPE_BYTES = 256
WHERE_BYTES = 256
MESSAGE_BYTES = 1024
TRACEBACK_BYTES = 4096
"""Limits of the texts that are sent to the peers."""

NAMED_RANKS = 16


class Captured:
    """The first deferred error of a rank.

    Attributes:
        error: The exception itself.
        where: What was done, as the program calls it.
        step: At which step, None where the program does not say.
    """

    __slots__ = ("error", "facts", "step", "where")

    def __init__(self, error: Exception, where: str, step: int | None) -> None:
        self.error = error
        self.where = _one_line(text_of(where), WHERE_BYTES)
        self.step = step
        self.facts: dict[str, object] = {"where": self.where, "suppressed": 0}
        if step is not None:
            self.facts["step"] = step

    def texts(self) -> dict[str, Any]:
        """Return what the peers are told: `RemoteDeferredError`'s arguments, bounded.

        All are texts, but for `step`, an integer or None.
        """
        stack = callstack(self.error, {})
        return {
            "type": cut(class_name(type(self.error)), TYPE_BYTES)[0],
            "message": cut(text_of(self.error), MESSAGE_BYTES)[0],
            "traceback": cut(stack, TRACEBACK_BYTES, head=0.25)[0],
            "where": self.where,
            "step": self.step,
        }


def remote(rank: int, texts: dict[str, Any]) -> RemoteDeferredError:
    """Return the error of a peer, from the texts that it sent."""
    return RemoteDeferredError(rank, **texts)


def log_first(captured: Captured) -> None:
    """Log the first deferred error, with its traceback."""
    at = deferred_at(captured.where, captured.step)
    log(ERROR, "%s: %s", at, callstack(captured.error, {}).rstrip("\n"))


def log_later(error: BaseException, where: str, step: int | None, count: int) -> None:
    """Log an error that is dropped, because another one was deferred before it."""
    at = deferred_at(_one_line(text_of(where), WHERE_BYTES), step)
    text = cut(headline(error), MESSAGE_BYTES)[0]
    log(ERROR, "%s: %s (number %d after the first)", at, text, count)


def log_forgotten(captured: Captured) -> None:
    """Log that the program ends without having raised a deferred error."""
    text = _one_line(headline(captured.error), MESSAGE_BYTES)
    log(ERROR, "a deferred error was never raised, for want of `finish`: %s", text)


def write(captured: Captured) -> None:
    """Write the record of a deferred error; called again, bring it up to date."""
    handler = sys.modules["firstfault"].get_error_handler()
    record = getattr(handler, "_record_deferred", None)
    if record is not None:
        record(captured.error, captured.facts)


def summary(failures: Mapping[int, Exception], captured: Captured | None) -> str:
    """Return the message of the errors that all ranks raise, in one line.

    Args:
        failures: The first error of each rank that deferred one, as far as known.
        captured: This rank's own.
    """
    ranks = sorted(failures)
    names = ", ".join(map(str, ranks[:NAMED_RANKS]))
    more = f" and {len(ranks) - NAMED_RANKS} more" if ranks[NAMED_RANKS:] else ""
    first = failures[ranks[0]]
    if isinstance(first, RemoteDeferredError):
        text, at = f"{first.type}: {first.message}", (first.where, first.step)
    else:
        text = headline(first)
        at = ("", None) if captured is None else (captured.where, captured.step)
    said = f"{_one_line(text, MESSAGE_BYTES)}, {deferred_at(*at)}"
    if len(ranks) == 1:
        return f"rank {names} failed: {said}"
    return f"ranks {names}{more} failed: first of them {said}"


def _one_line(text: str, limit: int) -> str:
    """Return the first line of a text, its end cut off above so many bytes of UTF-8."""
    line = printable(text).partition("\n")[0]
    data = line.encode()
    if len(data) <= limit:
        return line
    return data[: limit - 3].decode(errors="ignore") + "..."
