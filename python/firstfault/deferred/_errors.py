"""What deferred errors raise in the end, on the rank that failed and on its peers."""

from __future__ import annotations

from firstfault._errors import FirstfaultError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


class DeferredErrors(FirstfaultError, ExceptionGroup[Exception]):
    """Local operations failed; every rank raises this once all have stopped.

    Attributes:
        failures: The first deferred error of each rank that had one. This rank's own is
            the very exception that was deferred, a peer's is a `RemoteDeferredError`.
        stopped_at: The step at which this rank stopped, None where nobody knows.
    """

    failures: dict[int, Exception]
    stopped_at: int | None

    def __new__(
        cls,
        message: str,
        failures: Mapping[int, Exception],
        stopped_at: int | None = None,
    ) -> DeferredErrors:
        """Make the group of these failures, by rank."""
        self = super().__new__(cls, message, list(failures.values()))
        self.failures = dict(failures)
        self.stopped_at = stopped_at
        return self

    @property
    def own(self) -> Exception | None:
        """The error that this rank deferred itself; None where it only stopped."""
        errors = self.failures.values()
        is_remote = RemoteDeferredError
        return next((e for e in errors if not isinstance(e, is_remote)), None)

    def derive(self, excs: Sequence[Any], /) -> Any:
        """Return a group of some of the failures, as ``except*`` splits it."""
        failures = {
            rank: failure
            for rank, failure in self.failures.items()
            if any(failure is part for part in excs)
        }
        if len(failures) < len(excs):  # A part of a failure that is a group itself.
            return ExceptionGroup(self.message, excs)
        return type(self)(self.message, failures, self.stopped_at)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.failures, self.stopped_at)


class RemoteDeferredError(FirstfaultError, RuntimeError):
    """The deferred error of another rank, as texts: its class may not exist here.

    Attributes:
        rank: The rank that failed.
        type: The name of its exception's class.
        message: The text of its exception.
        traceback: The traceback that it had there; may be cut.
        where: What was done, as the rank itself called it.
        step: At which step, None where the program does not say.
    """

    def __init__(
        self,
        rank: int,
        type: str,
        message: str,
        traceback: str = "",
        *,
        where: str = "",
        step: int | None = None,
    ) -> None:
        super().__init__(rank, type, message, traceback)
        self.rank = rank
        self.type = type
        self.message = message
        self.traceback = traceback
        self.where = where
        self.step = step

    def __str__(self) -> str:
        text = f"rank {self.rank}: {self.type}: {self.message}"
        if self.where or self.step is not None:
            text += f" ({deferred_at(self.where, self.step)})"
        if self.traceback:
            indented = self.traceback.rstrip("\n").replace("\n", "\n    ")
            text += f"\n  On rank {self.rank}:\n    {indented}"
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args, self.__dict__


class AgreementError(FirstfaultError, RuntimeError):
    """The ranks could not agree on where to stop: a peer or the store is lost.

    This rank cannot know what its peers do next: it has to leave without them.
    """


class CollectiveInScopeError(FirstfaultError, RuntimeError):
    """A collective was issued inside a deferring scope, with ``strict=True``.

    An error in such a scope lets the program go on, with fewer collectives than its
    peers: they would wait for ever.
    """

    help_text = (
        "Move the collective out of the scope: errors of collectives cannot be "
        "deferred. What needs a collective before and after goes into two scopes."
    )


def deferred_at(where: str, step: int | None) -> str:
    """Return ``deferred at step 17 in "metadata"``, as far as it is known."""
    at = "" if step is None else f" at step {step}"
    place = f' in "{where}"' if where else ""
    return f"deferred{at}{place}"
