"""The protocol of the agreement, checked over all interleavings of a few ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agreement_model import Model, Rank, Scenario, check
from firstfault.deferred import _protocol
from firstfault.deferred._messages import (
    Done,
    Event,
    Marks,
    Missed,
    Offer,
    Operation,
    Put,
)
from firstfault.deferred._protocol import Phase, State, Stop

SMALL = {
    "nobody fails": Scenario((2, 2, 2), {}),
    "one fails": Scenario((2, 2, 2), {1: 1}),
    "before the first call": Scenario((2, 2, 2), {0: 0}),
    "after the last call": Scenario((1, 1), {0: 1}),
    "two fail": Scenario((2, 2, 2), {0: 1, 2: 1}),
    "all fail": Scenario((1, 1, 1), {0: 0, 1: 0, 2: 0}),
    "late": Scenario((1, 1, 1), {0: 0}, late=(2,), lockstep=False),
    "late and failing": Scenario((1, 1, 1), {2: 0}, late=(2,), lockstep=False),
    "shorter loop": Scenario((1, 2, 2), {1: 1}, lockstep=False),
    "the failing one is killed": Scenario((1, 1, 1), {1: 0}, killed=(1,)),
    "another is killed": Scenario((1, 1, 1), {1: 0}, killed=(2,)),
    "leaves": Scenario((1, 1, 1), {1: 0}, leaves=(0,)),
    "the coordinator leaves": Scenario((1, 1), {1: 0}, killed=(0,), leaves=(1,)),
    "store lost": Scenario((1, 1), {1: 1}, store_may_be_lost=True),
    "waits run out": Scenario((1, 1), {1: 1}, timely=False),
}

LARGE = {
    "one of two failing is killed": Scenario((1, 1, 1), {0: 0, 1: 0}, killed=(1,)),
    "last call": Scenario((2, 2, 2), {0: 2}),
    "two fail apart": Scenario((3, 3, 3), {0: 1, 2: 2}),
    "late": Scenario((3, 3, 3), {0: 1}, late=(1, 2), lockstep=False),
    "late, failing": Scenario((2, 2, 2), {0: 1, 2: 1}, late=(2,), lockstep=False),
    "loops of three lengths": Scenario((1, 2, 3), {1: 1}, lockstep=False),
    "killed": Scenario((2, 2, 2), {1: 1}, killed=(0, 1, 2)),
    "killed, two fail": Scenario((2, 2, 2), {0: 1, 1: 1}, killed=(0, 1, 2)),
    "killed, late": Scenario((1, 1, 1), {0: 0}, (2,), (0, 1, 2), lockstep=False),
    "leaves": Scenario((2, 2, 2), {1: 1}, leaves=(0, 1)),
    "store lost": Scenario((2, 2, 2), {1: 1}, store_may_be_lost=True),
    "waits run out": Scenario((1, 1, 1), {1: 0}, timely=False),
}


@pytest.mark.parametrize("scenario", SMALL.values(), ids=SMALL)
def test_all_interleavings(scenario: Scenario) -> None:
    check(Model(scenario))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("scenario", LARGE.values(), ids=LARGE)
def test_all_interleavings_of_larger_jobs(scenario: Scenario) -> None:
    check(Model(scenario))


class MaximumItself(Model):
    """Stops at the greatest count, a call that one rank has made already."""

    def advance(self, state: State, event: Event) -> tuple[State, Operation | None]:
        after, operation = super().advance(state, event)
        match operation:
            case Offer("decision", text):
                stop = _protocol.decode(text)
                assert isinstance(stop, Stop)
                text = _protocol.encode(Stop(stop.call - 1), state.rank)
                return replace(after, offered=text), Offer("decision", text)
        return after, operation


class CountsOn(Model):
    """Publishes its count without freezing it."""

    def freeze(self, rank: Rank) -> Rank:
        return rank


class LastDecisionCounts(Model):
    """Sets the decision, whether there is one or not."""

    def do(self, store: dict[str, str], operation: Operation) -> object:
        match operation:
            case Offer("decision" as key, value):
                store[key] = value
                return value
        return super().do(store, operation)


class DoesNotLook(Model):
    """Joins without looking whether it was asked."""

    def advance(self, state: State, event: Event) -> tuple[State, Operation | None]:
        if state.phase is Phase.CHECKING:
            event = Done(frozenset())
        return super().advance(state, event)


class TrustsTheCoordinator(Model):
    """Waits until it is told."""

    def advance(self, state: State, event: Event) -> tuple[State, Operation | None]:
        if state.phase is Phase.AWAITING and isinstance(event, Missed):
            return state, None
        return super().advance(state, event)


class TrustsTheClaim(Model):
    """Lets the coordinator ask it, though that one may have died before it did."""

    def advance(self, state: State, event: Event) -> tuple[State, Operation | None]:
        after, operation = super().advance(state, event)
        if state.phase is Phase.CLAIMING and after.phase is Phase.ANSWERING:
            assert isinstance(operation, Put)
            operation = Put(operation.entries[:1])
        return after, operation


class LeavesItsListener(Model):
    """Abandons the answers that its listener waits for."""

    def do(self, store: dict[str, str], operation: Operation) -> object:
        match operation:
            case Put(entries):
                dead = [entry for entry in entries if entry[1] == "dead"]
                if len(dead) > 1:
                    operation = Put(tuple(e for e in entries if e not in dead))
        return super().do(store, operation)


class CallsTwice(Model):
    """Calls twice in each step of rank 1: a mistake of the program, to be noticed."""

    def marks(self, rank: Rank) -> Marks:
        return tuple(
            (step, calls * (1 + (rank.state.rank == 1)))
            for step, calls in super().marks(rank)
        )


FLAWS = [
    (CallsTwice, "one fails", "gave up though all were there"),
    (MaximumItself, "one fails", "past the common call"),
    (CountsOn, "one fails", "past the common call|different calls"),
    (LastDecisionCounts, "waits run out", "two outcomes"),
    (DoesNotLook, "late", "past the common call|different calls"),
    (TrustsTheCoordinator, "the failing one is killed", "waits for ever"),
    (TrustsTheClaim, "one of two failing is killed", "left behind|waits"),
    (LeavesItsListener, "the coordinator leaves", "is left behind"),
]


@pytest.mark.parametrize(("flawed", "name", "wrong"), FLAWS)
def test_a_flaw_is_found(flawed: type[Model], name: str, wrong: str) -> None:
    with pytest.raises(AssertionError, match=wrong):
        check(flawed((SMALL | LARGE)[name]))
