"""The agreement on a common stop as a pure state machine: event in, operation out.

Every rank calls `should_stop` the same number of times. When one has failed, each
freezes its count of calls, so that no further call returns, and publishes it. The
greatest count plus one is a call that nobody has made yet and that everybody comes to:
there all stop. Ranks that did not call equally often have no such call. It shows where
two of them had made different numbers of calls before one step; then they are lost.

**Who decides.** The coordinator is the rank that first claims the key of that name: the
first to have failed, hence one that lived then. It asks all, collects the answers of
those that have joined, and decides. A rank that has not joined yet made no call, is not
waited for, and finds the decision when it joins: it joins, and then looks whether it
was asked, before its first call.

**What is decided** is what stands in the key `decision`, which only the first writer
sets (compare and set), so that all who read a decision read the same. A coordinator
without all answers in half the deadline decides that the silent ones are lost. A rank
that is not told in three quarters of it, because the coordinator is gone, decides that
the coordinator is lost, and tells the others. The main thread waits for no more than
the deadline, whatever becomes of the store and of its host, be it rank 0, the
coordinator or an agent: then, or as soon as the connection breaks, this rank has lost
the others. So each rank stops at the common call, or knows within the deadline, counted
from its freeze, that there is none for it.

**Keys**, where ``r`` is the rank that a key is about:

===============  =======================================================================
``joined/r``     it takes part: set before its first call
``asked/r``      somebody has failed, it shall answer: set by the coordinator for all
``answer/r``     ``counter n``, ``finished n`` (it has left its loop), or ``dead``;
                 after a counter the marks, each ``step:n``
``coordinator``  the rank that decides
``decision``     the outcome, see `Stop` and `Lost`
``told/r``       the decision stands: set for all by who made it
===============  =======================================================================

What a rank waits for, it can set itself: ``asked/r`` and ``told/r`` of its own, and the
answers, if it coordinates. So it does when it leaves, and no thread is left behind in a
wait. No other operation lasts while the store answers.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from firstfault.deferred._messages import (
    Abandoned,
    Announced,
    Closing,
    Done,
    End,
    Event,
    Finished,
    Freeze,
    Look,
    Marks,
    Missed,
    Offer,
    Operation,
    Put,
    Read,
    Start,
    StoreLost,
    Wait,
    Woken,
)

NAMED = 16
"""Ranks that a decision names at most, so that it stays short with thousands lost."""

COLLECTING_SHARE = 0.5
"""The part of the deadline after which the coordinator gives silent ranks up."""

AWAITING_SHARE = 0.75
"""The part of the deadline after which a rank gives the coordinator up."""


@dataclass(frozen=True)
class Stop:
    """All stop at this call of `should_stop`, counted from 1."""

    call: int
    finished: tuple[tuple[int, int], ...] = ()
    """Ranks that have left their loop, each with its calls: whoever comes to `call`
    made more, so that their loops are of unequal length."""


@dataclass(frozen=True)
class Lost:
    """There is no common call: of these ranks, or of the store, for this reason."""

    ranks: tuple[int, ...]
    reason: str


Outcome = Stop | Lost


def encode(outcome: Outcome, author: int) -> str:
    """Return the text of a decision; different authors write different texts."""
    match outcome:
        case Stop(call, finished):
            value: dict[str, object] = {"stop": call, "finished": finished}
        case Lost(ranks, reason):
            value = {"lost": ranks, "reason": reason}
    return json.dumps(value | {"by": author})


def decode(text: str) -> Outcome:
    """Return the decision that a text says."""
    value = json.loads(text)
    if "stop" in value:
        return Stop(value["stop"], tuple((rank, n) for rank, n in value["finished"]))
    return Lost(tuple(value["lost"]), value["reason"])


class Phase(enum.Enum):
    """What a rank is about: which operation or wait it has begun."""

    NEW = enum.auto()
    JOINING = enum.auto()
    CHECKING = enum.auto()
    LISTENING = enum.auto()
    FINISHING = enum.auto()
    # One that failed or was asked.
    FREEZING = enum.auto()
    CLAIMING = enum.auto()
    # The coordinator.
    ASKING = enum.auto()
    COUNTING = enum.auto()
    COLLECTING = enum.auto()
    MISSING = enum.auto()
    READING = enum.auto()
    DECIDING = enum.auto()
    TELLING = enum.auto()
    # The others.
    ANSWERING = enum.auto()
    AWAITING = enum.auto()
    LEARNING = enum.auto()
    SEEKING = enum.auto()
    # The end.
    SETTLED = enum.auto()
    LEAVING = enum.auto()
    ENDED = enum.auto()


JOINED = frozenset(Phase) - {Phase.NEW, Phase.JOINING, Phase.CHECKING, Phase.FREEZING}
"""Phases in which a rank may make its first call: nobody overlooks it any more."""


@dataclass(frozen=True)
class State:
    """All that a rank knows."""

    rank: int
    members: tuple[int, ...]
    phase: Phase = Phase.NEW
    announced: bool = False
    calls: int = 0
    marks: Marks = ()
    finished: bool = False
    joined: tuple[int, ...] = ()
    offered: str = ""
    closing: bool = False
    outcome: Outcome | None = None


def decide(answers: Iterable[tuple[int, str]]) -> Outcome:
    """Return what follows from the answers of all ranks that have joined."""
    counts: dict[int, int] = {}
    finished: dict[int, int] = {}
    dead = []
    marks: dict[str, tuple[int, str]] = {}
    unequal = None
    for rank, answer in answers:
        state, *said = answer.split(" ")
        if state == "dead":
            dead.append(rank)
            continue
        counts[rank] = int(said[0])
        for mark in said[1:]:
            step, _, calls = mark.partition(":")
            other, theirs = marks.setdefault(step, (rank, calls))
            if calls != theirs:
                text = (
                    f"called should_stop {theirs} and {calls} times before step {step}"
                )
                unequal = unequal or Lost((other, rank), text)
        if state == "finished":
            finished[rank] = counts[rank]
    if dead:
        return Lost(tuple(dead[:NAMED]), "left without finishing its loop")
    if unequal is not None:
        return unequal
    stop = max(counts.values()) + 1
    early = sorted(finished.items(), key=lambda item: item[1])
    return Stop(stop, tuple(early[:NAMED]))


def advance(state: State, event: Event) -> tuple[State, Operation | None]:
    """Return the state after an event, and the operation to begin, if any."""
    me = state.rank
    match state.phase, event:
        case Phase.ENDED, _:
            return state, None
        case _, StoreLost(reason):
            return _store_lost(state, reason)

        # Joining, and then nothing until somebody fails.
        case Phase.NEW, Start():
            return _to(state, Phase.JOINING, Put(((f"joined/{me}", ""),)))
        case Phase.JOINING, Done():
            return _to(state, Phase.CHECKING, Look((f"asked/{me}",)))
        case Phase.CHECKING, Done(frozenset() as asked):
            if asked:
                return _to(state, Phase.FREEZING, Freeze())
            return _to(state, Phase.LISTENING, Wait((f"asked/{me}",)))
        case Phase.LISTENING, Finished(calls):
            state = replace(state, finished=True, calls=calls)
            return _to(state, Phase.FINISHING, _answer(state))
        case Phase.FINISHING, Done():
            return _to(state, Phase.LISTENING, None)
        case Phase.LISTENING, Woken():
            return _to(state, Phase.FREEZING, Freeze())
        case Phase.LISTENING, Announced():
            return _to(replace(state, announced=True), Phase.FREEZING, Freeze())
        case Phase.FREEZING, Done((int() as calls, tuple() as marks)):
            state = replace(state, calls=calls, marks=marks)
            if state.announced:
                return _to(state, Phase.CLAIMING, Offer("coordinator", str(me)))
            return _to(state, Phase.ANSWERING, _answer(state))
        case Phase.CLAIMING, Done(held):
            if held != str(me):
                # It may have died before it asked anybody: this rank asks itself.
                own = (f"asked/{me}", "")
                return _to(state, Phase.ANSWERING, _answer(state, own))
            asks = _all(state, "asked")
            return _to(state, Phase.ASKING, _answer(state, *asks))

        # The coordinator.
        case Phase.ASKING, Done():
            # Looked for after they were asked: one that joins now sees that it was.
            keys = tuple(f"joined/{rank}" for rank in state.members)
            return _to(state, Phase.COUNTING, Look(keys))
        case Phase.COUNTING, Done(frozenset() as joined):
            there = (r for r in state.members if f"joined/{r}" in joined)
            state = replace(state, joined=tuple(there))
            return _to(state, Phase.COLLECTING, _answers(state))
        case Phase.COLLECTING, Woken(wait) if wait == _answers(state):
            return _to(state, Phase.READING, Read(wait.keys))
        case Phase.COLLECTING, Missed(wait):
            return _to(state, Phase.MISSING, Look(wait.keys))
        case Phase.MISSING, Done(frozenset() as answers):
            silent = [r for r in state.joined if f"answer/{r}" not in answers]
            if silent:
                return _decide(state, Lost(tuple(silent[:NAMED]), "did not answer"))
            return _to(state, Phase.READING, Read(_answers(state).keys))
        case Phase.READING, Done(tuple() as answers):
            return _decide(state, decide(zip(state.joined, answers, strict=True)))

        # The others.
        case Phase.ANSWERING, Done():
            return _to(state, Phase.AWAITING, Wait((f"told/{me}",), AWAITING_SHARE))
        case Phase.AWAITING, Woken(Wait((key,))) if key == f"told/{me}":
            return _to(state, Phase.LEARNING, Read(("decision",)))
        case Phase.LEARNING, Done((text,)):
            return _settled(replace(state, outcome=decode(text)))
        case Phase.AWAITING, Missed():
            return _to(state, Phase.SEEKING, Read(("coordinator",)))
        case Phase.SEEKING, Done((rank,)):
            return _decide(state, Lost((int(rank),), "did not decide"))

        # Whoever decides.
        case Phase.DECIDING, Done(str() as text):
            state = replace(state, outcome=decode(text))
            if text != state.offered and not state.closing:
                return _settled(state)
            entries = _all(state, "told") + _all(state, "asked")
            if state.closing:
                # Ends its own wait for answers, which matter no more.
                entries += tuple((f"answer/{rank}", "dead") for rank in state.joined)
            return _to(state, Phase.TELLING, Put(entries))
        case Phase.TELLING, Done():
            return _settled(state)

        # Leaving.
        case Phase.LISTENING, (Closing() | Abandoned()):
            dead = () if state.finished else ((f"answer/{me}", "dead"),)
            return _to(state, Phase.LEAVING, Put((*dead, (f"asked/{me}", ""))))
        case Phase.AWAITING, (Closing() | Abandoned()):
            return _to(state, Phase.LEAVING, Put(((f"told/{me}", ""),)))
        case Phase.COLLECTING, Closing():
            return replace(state, closing=True), None
        case Phase.COLLECTING, Abandoned():
            state = replace(state, closing=True)
            return _decide(state, Lost((me,), "left before it decided"))
        case Phase.SETTLED, (Closing() | Abandoned()):
            return _to(state, Phase.ENDED, End())
        case Phase.LEAVING, Done():
            return _to(state, Phase.ENDED, End())

        # A rank that was asked says no more of itself; a wait that ended late is over.
        case _:
            return state, None


def _to(
    state: State, phase: Phase, operation: Operation | None
) -> tuple[State, Operation | None]:
    return replace(state, phase=phase), operation


def _decide(state: State, outcome: Outcome) -> tuple[State, Operation]:
    text = encode(outcome, state.rank)
    state = replace(state, phase=Phase.DECIDING, offered=text)
    return state, Offer("decision", text)


def _settled(state: State) -> tuple[State, Operation | None]:
    if state.closing:
        return _to(state, Phase.ENDED, End())
    return _to(state, Phase.SETTLED, None)


def _store_lost(state: State, reason: str) -> tuple[State, Operation | None]:
    if state.outcome is None and not state.finished:
        state = replace(state, outcome=Lost((), reason))
    if state.phase is Phase.LEAVING:
        state = replace(state, closing=True)
    return _settled(state)


def _answer(state: State, *more: tuple[str, str]) -> Put:
    said = [f"{'finished' if state.finished else 'counter'} {state.calls}"]
    said += [f"{step}:{calls}" for step, calls in state.marks]
    return Put(((f"answer/{state.rank}", " ".join(said)), *more))


def _all(state: State, name: str) -> tuple[tuple[str, str], ...]:
    return tuple((f"{name}/{rank}", "") for rank in state.members)


def _answers(state: State) -> Wait:
    keys = tuple(f"answer/{rank}" for rank in state.joined)
    return Wait(keys, COLLECTING_SHARE)
