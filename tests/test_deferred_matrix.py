"""Each way in which each rank can fail at each step: nobody hangs, nobody succeeds."""

from __future__ import annotations

import itertools
import os
import re
import signal
from typing import Any

import pytest

from firstfault.deferred import Deferred, _watcher
from firstfault.deferred._messages import Operation
from process_groups import run_ranks
from test_deferred_finish import all_reduce, rank

RANKS, STEPS = 3, 4

PATIENCE = 3.0
"""Seconds after which a rank counts as lost where one is killed."""


def trains(way: str, culprit: int, at: int) -> None:
    """Train, with one failure; where one is killed, it is while they agree."""
    killed = way == "kill"
    with Deferred(deadline=PATIENCE if killed else 30.0) as errs:
        if killed and rank() == culprit:
            die_when_asked()
        for step in range(STEPS):
            errs.step(step)
            all_reduce()
            if step == at and rank() == (culprit + killed) % RANKS:
                fail(way, errs)
            if errs.should_stop():
                print("stopped at", step, flush=True)
                break
        all_reduce()


def fail(way: str, errs: Deferred) -> None:
    """Fail in one of the ways; who is killed is so by the failure of another."""
    match way:
        case "deferred" | "kill":
            errs.capture(OSError("disk full"), "metadata")
        case "trunk":
            raise LookupError("broken")
        case "exit":
            raise SystemExit(0)


def die_when_asked() -> None:
    """Let this process be killed when a peer has failed and waits for its answer."""
    do = _watcher._do

    def killed(store: Any, operation: Operation) -> object:
        if f"answer/{rank()}" in str(operation):
            os.kill(os.getpid(), signal.SIGKILL)
        return do(store, operation)

    _watcher._do = killed


def cases() -> list[Any]:
    """Return all cases; those of every day have each way, rank, step and store."""
    ways, stores = ("deferred", "trunk", "exit", "kill"), ("rank 0", "agent")
    found = []
    for case in itertools.product(ways, range(RANKS), range(STEPS), stores):
        _, culprit, at, store = case
        daily = culprit == at % RANKS and store == stores[at % 2]
        found.append(pytest.param(*case, marks=[] if daily else [pytest.mark.slow]))
    return found


@pytest.mark.parametrize(("way", "culprit", "at", "store"), cases())
def test_nobody_hangs_and_nobody_succeeds(
    way: str, culprit: int, at: int, store: str
) -> None:
    ranks = run_ranks(trains, RANKS, way, culprit, at, store=store, deadline=60)
    expected = [1] * RANKS
    # Its own exit, and its own death.
    expected[culprit] = {"exit": 0, "kill": -signal.SIGKILL}.get(way, 1)
    assert [one.status for one in ranks] == expected, [one.output for one in ranks]
    if way == "deferred":
        first, *others = (re.findall(r"stopped at (\d)", one.output) for one in ranks)
        assert others == [first, first]
        # Peers may have made the next call already, which in the last step is none.
        assert first in ([str(at)], [str(at + 1)] if at + 1 < STEPS else [])
