"""Agreement on the call of `should_stop` at which all stop: the main thread's side.

Nothing is sent until a rank has failed. Until then a call takes a lock and counts.
"""

from __future__ import annotations

import atexit
import os
import resource
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from firstfault import _notices
from firstfault.deferred._errors import AgreementError
from firstfault.deferred._messages import Announced, Finished, Marks
from firstfault.deferred._protocol import Lost, Outcome, Stop
from firstfault.deferred._watcher import Watcher

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

DEADLINE = 30.0
"""Seconds in which ranks agree, or know that they cannot."""

CONNECTIONS = 3
"""Those of each rank to the store: torch's own, and two of the agreement."""

CLOSING = 5.0
"""Seconds that leaving may take at the end of the interpreter."""


class Agreement:
    """One rank's view of the agreement; make it by `Agreement.start`, on every rank.

    All ranks of the group call `should_stop` equally often, as in a training loop of
    equal length. When one announces a failure, all get True at the same call: the first
    that none of them has made yet.
    """

    def __init__(self, rank: int, deadline: float) -> None:
        self.rank = rank
        self.deadline = deadline
        self._calls = 0
        self._marks: Marks = ()
        self._is_comparable = True
        self._open = True  # Calls return at once and are counted.
        self._announced = False
        self._finished = False
        self._joined = False
        self._outcome: Outcome | None = None
        self._frozen_at = 0.0
        self._watcher: Watcher | None = None
        self._new_lock()

    @classmethod
    def start(
        cls, group: ProcessGroup | None = None, *, deadline: float = DEADLINE
    ) -> Agreement:
        """Join the agreement of a group, and return it once this rank has joined.

        Peers need not be there yet. Where there is no process group, or this rank is
        alone in it, the agreement is local: no thread, no store.

        Every rank of a group makes the same agreements in the same order.

        Args:
            group: The ranks that agree; the default group where None.
            deadline: Seconds from the first failure in which every rank has stopped or
                raised. A rank that is silent for half of it is lost.

        Raises:
            AgreementError: The store of the process group did not answer in time.
        """
        place = _place(group)
        if place is None:
            return cls(0, deadline)
        store, prefix, rank, members = place
        self = cls(rank, deadline)
        if len(members) == 1:
            return self
        self._watcher = Watcher(store, prefix, rank, members, deadline, self)
        self._watcher.start()
        _running.add(self)
        with self._changed:
            self._changed.wait_for(lambda: self._joined or self._outcome, deadline)
            if not self._joined:
                self.settle(_silent_store(deadline, len(members)))
                assert isinstance(self._outcome, Lost)
                raise _error(self._outcome.ranks, self._outcome.reason)
        return self

    def announce(self) -> None:
        """Say that this rank has failed; from any thread, never blocks."""
        with self._changed:
            if self._announced:
                return
            self._announced = True
            self._freeze()
            if self._watcher is None:
                self._outcome = self._outcome or Stop(self._calls + 1)
            else:
                self._watcher.post(Announced())

    def should_stop(self) -> bool:
        """Return whether all ranks stop at this call; once true, always true.

        While nobody has failed it returns at once. A call that waits for an agreement
        returns or raises within the deadline, counted from when this rank learned of
        the failure.

        Raises:
            AgreementError: There is no agreement: a peer or the store is lost. This
                rank stops too, but cannot know where the others do.
        """
        with self._lock:
            if self._open:
                self._calls += 1
                return False
            return self._frozen_call()

    def mark(self, step: int) -> None:
        """Note that a step begins: all ranks have made equally many calls by then.

        Of a step that is named again the first time counts; steps that go back, as
        where each epoch begins anew, are not compared at all.
        """
        marks = self._marks
        if not self._is_comparable or (marks and step == marks[-1][0]):
            return
        self._is_comparable = not marks or step > marks[-1][0]
        # Ranks that meet in each step are one step apart at most.
        self._marks = (*marks[-1:], (step, self._calls)) if self._is_comparable else ()

    @property
    def calls(self) -> int:
        """How many calls of `should_stop` have returned."""
        return self._calls

    @property
    def stop_step(self) -> int | None:
        """The agreed call, counted from 1; None where there is none (yet).

        A failure after the last call agrees on a call that no rank makes.
        """
        return self._outcome.call if isinstance(self._outcome, Stop) else None

    @property
    def peers_lost(self) -> tuple[int, ...]:
        """The ranks that were lost, as far as they are known; at most 16 are named."""
        return self._outcome.ranks if isinstance(self._outcome, Lost) else ()

    def finished(self) -> None:
        """Say that this rank has left its loop; never blocks.

        Later calls of `should_stop` are not counted and wait for nobody: they say
        whether this rank announced a failure or knows of an agreed stop.
        """
        with self._changed:
            if self._finished:
                return
            self._finished = True
            self._open = False
            if self._watcher is not None:
                self._watcher.post(Finished(self._calls))

    def close(self, deadline: float = CLOSING) -> None:
        """Leave the agreement: the threads end, in at most so many seconds.

        Without `finished` before it, this rank counts as lost from then on. It is
        called at the end of the interpreter too.
        """
        with self._changed:
            watcher, self._watcher = self._watcher, None
        if watcher is None:
            return
        _running.discard(self)
        if not watcher.close(deadline):
            text = "the store did not answer in %g s: a thread of it is left behind"
            _notices.log(_notices.WARNING, text, deadline)
        if not self._finished:
            self.settle(Lost((), "this rank has left the agreement"))

    def _new_lock(self) -> None:
        # Reentrant: a signal handler may announce while the same thread counts a call.
        # A call takes it directly, which is three times as fast as by the condition.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    # Under the lock.

    def _frozen_call(self) -> bool:
        if self._finished:
            return self._announced or isinstance(self._outcome, Stop)
        left = max(self._frozen_at + self.deadline - time.monotonic(), 0)
        if not self._changed.wait_for(lambda: self._outcome, left):
            self.settle(_silent_store(self.deadline))
        match self._outcome:
            case Stop(call, finished):
                self._calls += 1
                if self._calls == call and finished:
                    _unequal(self.rank, call, finished)
                return self._calls >= call
            case Lost(ranks, reason):
                raise _error(ranks, reason)
        raise AssertionError("no outcome")

    def _freeze(self) -> None:
        self._open = False
        self._frozen_at = self._frozen_at or time.monotonic()

    # The watcher's: see `Main`.

    def freeze(self) -> tuple[int, Marks]:
        """Let no further call return; return how many have, and the latest marks."""
        with self._changed:
            self._freeze()
            return self._calls, self._marks

    def frozen_at(self) -> float:
        """Return the time of the freeze on the monotonic clock."""
        return self._frozen_at

    def joined(self) -> None:
        """Let the first call be made."""
        with self._changed:
            self._joined = True
            self._changed.notify_all()

    def settle(self, outcome: Outcome) -> None:
        """Let frozen calls return; the first outcome is kept."""
        with self._changed:
            self._freeze()
            self._outcome = self._outcome or outcome
            self._changed.notify_all()

    # A forked child's.

    def orphan(self) -> None:
        """Go on alone: a forked child is no rank and has no threads."""
        self._new_lock()
        self._watcher = None
        if self._outcome is None and self._announced:
            self._outcome = Stop(self._calls + 1)


_running: set[Agreement] = set()
_generations: Counter[str] = Counter()


def _close_all() -> None:
    for agreement in tuple(_running):
        agreement.close()


def _orphan_all() -> None:
    for agreement in _running:
        agreement.orphan()
    _running.clear()


# After torch's own, which were registered when it was imported: ours run first.
atexit.register(_close_all)
os.register_at_fork(after_in_child=_orphan_all)


def _place(group: ProcessGroup | None) -> tuple[Any, str, int, tuple[int, ...]] | None:
    """Return store, prefix of all keys, rank and members; None without a group."""
    # A program without torch.distributed has no group, and need not have torch.
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    from torch.distributed.distributed_c10d import _get_default_store

    group = group or dist.group.WORLD
    members = tuple(dist.get_process_group_ranks(group))
    rank = dist.get_rank()
    if rank not in members:
        raise ValueError(f"rank {rank} is not in the group of ranks {members}")
    # One store may outlive attempts, and groups and agreements come and go within one:
    # none may see what another left.
    name = group.group_name
    generation = _generations[name]
    _generations[name] += 1
    run = os.environ.get("TORCHELASTIC_RUN_ID", "")
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefix = f"firstfault/{run}/{attempt}/{name}/{generation}"
    return _get_default_store(), prefix, rank, members


def _silent_store(deadline: float, joining: int = 0) -> Lost:
    """Return that there is no answer, and why where so many ranks may be too many."""
    text = f"the store did not answer in {deadline:g} s"
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # The host of the store has a limit of its own, mostly the same.
    if limit != resource.RLIM_INFINITY and joining * CONNECTIONS > limit:
        text += (
            f": {joining} ranks have {joining * CONNECTIONS} connections to it, and "
            f"its host may have no more than {limit} files open (`ulimit -n` here)"
        )
    return Lost((), text)


def _error(ranks: tuple[int, ...], reason: str) -> AgreementError:
    if not ranks:
        return AgreementError(reason)
    noun = "rank" if len(ranks) == 1 else "ranks"
    return AgreementError(f"{noun} {', '.join(map(str, ranks))} {reason}")


def _unequal(rank: int, call: int, finished: tuple[tuple[int, int], ...]) -> None:
    left = ", ".join(f"rank {other} left its loop after {n}" for other, n in finished)
    text = "loops of unequal length: rank %d is in call %d of should_stop, but %s"
    _notices.log(_notices.ERROR, text, rank, call, left)
