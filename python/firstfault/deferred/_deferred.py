"""`Deferred`: one rank's errors, and the agreement of all ranks on where to stop."""

from __future__ import annotations

import os

from firstfault.deferred import _record
from firstfault.deferred._captures import Captures
from firstfault.deferred._exchange import has_peers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from firstfault.deferred._agreement import Agreement


class Deferred(Captures):
    """Defers the errors of local operations until all ranks have stopped together.

    As a context manager it ends what it surrounds: `finish` on the normal way out, the
    emergency way when an error leaves the block. Without a process group, and in one of
    a single rank, there is nobody to agree with, and all else is the same.

    Args:
        group: The process group whose ranks agree; by default all.
        deadline: Seconds after which a peer that does not answer counts as lost.
        strict: Whether a collective in a deferring scope is an error, not a warning.
        hard_exit_after: Seconds after which a process that leaves by the emergency way
            is ended, with the stacks of its threads on stderr; by default never.
    """

    def __init__(
        self,
        *,
        group: Any = None,
        deadline: float = 30.0,
        strict: bool = False,
        hard_exit_after: float | None = None,
    ) -> None:
        super().__init__(group=group, strict=strict)
        self._deadline = deadline
        self._hard_exit_after = hard_exit_after
        self._agreement: Agreement | None = None
        self._is_stopped = False
        self._is_finished = False
        self._known_failures = 0
        self._process = os.getpid()
        self._stopped_at: int | None = None
        self._join()

    @property
    def stopped_at(self) -> int | None:
        """The step at which `should_stop` said so first; None before that.

        Where no step was named, it is the number of that call, counted from 1; None in
        a run without peers.
        """
        return self._stopped_at

    def step(self, n: int) -> None:
        """Say which step begins: errors and records name it, as `firstfault.step`.

        By it the ranks notice, when one has failed, that they have called `should_stop`
        unequally often. Steps have to grow for that.
        """
        super().step(n)
        if self._agreement is not None and self._step is not None:
            self._agreement.mark(self._step)

    def should_stop(self) -> bool:
        """Return whether all ranks are to stop here; call it equally often everywhere.

        No rank waits for another until one has deferred an error; then all return True
        at the same call, and at every later one.

        Raises:
            AgreementError: A peer or the store was lost meanwhile.
        """
        if self._undeferrable is not None:
            self._raise_undeferrable()
        if self._agreement is None and not self._join():
            stop = self._captured is not None
        else:
            stop = self._agreement.should_stop()  # type: ignore[union-attr]
        if stop and not self._is_stopped:
            self._stopped()
        return stop

    def finish(self) -> None:
        """End the agreement and the process group; raise if any rank deferred an error.

        Every rank calls it, after its last collective. Calling it again does nothing.
        An error of a scope that comes after it is raised at once.

        Raises:
            DeferredErrors: A rank deferred an error.
        """
        from firstfault.deferred import _finish

        _finish.finish(self)

    def __enter__(self) -> Deferred:
        if self._is_finished:
            raise RuntimeError(
                "this Deferred is finished: each run needs one of its own"
            )
        return self

    def __exit__(
        self,
        cls: type[BaseException] | None,
        e: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        from firstfault.deferred import _finish

        if e is None:
            _finish.finish(self)
        else:
            _finish.emergency(self, e)

    def _join(self) -> bool:
        """Start to agree with the peers, if there are any by now."""
        if self._is_forked() or not has_peers(self._group):
            return False
        from firstfault.deferred._agreement import Agreement

        self._agreement = Agreement.start(self._group, deadline=self._deadline)
        if self._captured is not None:
            self._agreement.announce()
        return True

    def _is_forked(self) -> bool:
        """Return whether this process is a child, which is no rank of the group."""
        return self._process != os.getpid()

    def _announce(self) -> None:
        if self._agreement is not None:
            self._agreement.announce()

    def _stopped(self) -> None:
        """Note where this rank stopped, in the record of its error too."""
        self._is_stopped = True
        self._stopped_at = self._step
        if self._step is None and self._agreement is not None:
            self._stopped_at = self._agreement.stop_step
        if self._captured is not None and self._stopped_at is not None:
            self._captured.facts["stopped_at"] = self._stopped_at
            _record.write(self._captured)
