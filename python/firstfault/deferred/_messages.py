"""What the protocol wants done, and what it is told of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Marks = tuple[tuple[int, int], ...]
"""The latest steps, each with the calls of `should_stop` that were made before it."""


@dataclass(frozen=True)
class Freeze:
    """Let no further call of `should_stop` return.

    The result is how many have, and the marks of this rank.
    """


@dataclass(frozen=True)
class Put:
    """Set these keys to these values, all at once."""

    entries: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Offer:
    """Set the key if nobody has; the result is the value it has then."""

    key: str
    value: str


@dataclass(frozen=True)
class Look:
    """The result is the set of those of these keys that are set."""

    keys: tuple[str, ...]


@dataclass(frozen=True)
class Read:
    """The result is the values of these keys, all of which are set."""

    keys: tuple[str, ...]


@dataclass(frozen=True)
class Wait:
    """Begin to wait for all these keys; ends as Woken or Missed.

    `share` is the part of the deadline it may take, counted from the freeze.
    """

    keys: tuple[str, ...]
    share: float | None = None


@dataclass(frozen=True)
class End:
    """There is nothing more to do, for ever."""


Operation = Freeze | Put | Offer | Look | Read | Wait | End


@dataclass(frozen=True)
class Start:
    """The rank takes part from now on."""


@dataclass(frozen=True)
class Done:
    """The last operation has been done, with this result."""

    result: Any = None


@dataclass(frozen=True)
class Woken:
    """All keys of this wait are set."""

    wait: Wait


@dataclass(frozen=True)
class Missed:
    """The time of this wait is over."""

    wait: Wait


@dataclass(frozen=True)
class Announced:
    """This rank has failed."""


@dataclass(frozen=True)
class Finished:
    """This rank has left its loop, after so many calls."""

    calls: int


@dataclass(frozen=True)
class Closing:
    """This rank leaves; a coordinator may first get its answers."""


@dataclass(frozen=True)
class Abandoned:
    """This rank leaves at once."""


@dataclass(frozen=True)
class StoreLost:
    """An operation or a wait failed for this reason."""

    reason: str


Event = (
    Start
    | Done
    | Woken
    | Missed
    | Announced
    | Finished
    | Closing
    | Abandoned
    | StoreLost
)
