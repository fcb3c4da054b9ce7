"""A model of a few ranks that agree, and all its interleavings.

The model runs the real `advance` for every rank against a store in memory. From each
state it branches over everything that can happen next: a rank makes its next call, ends
its loop, fails, leaves, is killed; an operation takes effect; a wait ends or runs out;
the store is lost. What must hold is asserted in every state and at every end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from firstfault.deferred import _protocol
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
from firstfault.deferred._protocol import JOINED, Lost, Phase, State, Stop


@dataclass(frozen=True)
class Scenario:
    """What may happen in a job."""

    loops: tuple[int, ...]
    """How many calls each rank makes."""
    fails: dict[int, int]
    """Ranks that fail, and after how many calls."""
    late: tuple[int, ...] = ()
    """Ranks that join at any time; the others have joined when the model begins."""
    killed: tuple[int, ...] = ()
    """Ranks of which one may be killed at any time."""
    leaves: tuple[int, ...] = ()
    """Ranks that may leave at any time without finishing, as after an exception."""
    store_may_be_lost: bool = False
    timely: bool = True
    """Whether waits run out only where nothing else can happen."""
    lockstep: bool = True
    """Whether a collective before each call keeps the ranks together."""


@dataclass(frozen=True)
class Rank:
    """One rank: its protocol, its two threads, and its program."""

    state: State
    operation: Operation | None = None
    """What the speaker has begun, without effect so far."""
    waits: tuple[Wait, ...] = ()
    """What the listener waits for, and what it is to wait for next."""
    events: tuple[Event, ...] = ()
    """What the speaker will be told when its operation is done."""
    frozen: bool = False
    calls: int = 0
    calling: bool = False
    """Whether it is in a call that waits."""
    stopped_at: int | None = None
    gave_up: bool = False
    finished: bool = False
    failed: bool = False
    closed: bool = False
    killed: bool = False

    @property
    def out(self) -> bool:
        """Whether its loop is over, in whatever way."""
        return self.finished or self.gone or self.stopped_at is not None

    @property
    def gone(self) -> bool:
        """Whether no collective can complete with it any more."""
        return self.gave_up or self.closed or self.killed


@dataclass(frozen=True)
class World:
    """All ranks and the store."""

    ranks: tuple[Rank, ...]
    store: frozenset[tuple[str, str]] = frozenset()
    store_lost: bool = False

    def put(self, rank: Rank) -> World:
        """Return the world with another state of this rank."""
        index = rank.state.rank
        ranks = (*self.ranks[:index], rank, *self.ranks[index + 1 :])
        return replace(self, ranks=ranks)


class Model:
    """The steps that a world can take; a broken protocol is a model with one flaw."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario

    # What a flaw replaces.

    def advance(self, state: State, event: Event) -> tuple[State, Operation | None]:
        """Return what the protocol does."""
        return _protocol.advance(state, event)

    def freeze(self, rank: Rank) -> Rank:
        """Return the rank when it makes no further call."""
        return replace(rank, frozen=True)

    def marks(self, rank: Rank) -> Marks:
        """Return the latest steps, each of which has one call at its end."""
        return tuple((n, n) for n in (rank.calls - 1, rank.calls) if n >= 0)

    def do(self, store: dict[str, str], operation: Operation) -> object:
        """Let an operation take effect and return its result."""
        match operation:
            case Put(entries):
                store.update(entries)
                return None
            case Offer(key, value):
                return store.setdefault(key, value)
            case Look(keys):
                return frozenset(key for key in keys if key in store)
            case Read(keys):
                return tuple(store[key] for key in keys)
            case _:
                raise AssertionError(operation)

    # The steps.

    def first(self) -> World:
        """Return the world in which all have joined that are not late."""
        size = len(self.scenario.loops)
        world = World(tuple(Rank(State(r, tuple(range(size)))) for r in range(size)))
        for rank in range(size):
            if rank not in self.scenario.late:
                world = world.put(self.tell(world.ranks[rank], Start()))
                while world.ranks[rank].operation:
                    world = self.take_effect(world, world.ranks[rank])
        return world

    def tell(self, rank: Rank, event: Event) -> Rank:
        """Tell the protocol of an event, now or when its operation is done."""
        if rank.operation is not None:
            return replace(rank, events=(*rank.events, event))
        events = [event, *rank.events]
        while events:
            state, operation = self.advance(rank.state, events.pop(0))
            rank = replace(rank, state=state, operation=None)
            match operation:
                case None | End():
                    pass
                case Freeze():
                    rank = self.freeze(rank)
                    events.insert(0, Done((rank.calls, self.marks(rank))))
                case Wait():
                    rank = replace(rank, waits=(*rank.waits, operation))
                case _:
                    rank = replace(rank, operation=operation)
                    break
        if state.outcome is not None:
            rank = replace(rank, frozen=True)
        return replace(rank, events=tuple(events))

    def take_effect(self, world: World, rank: Rank) -> World:
        """Return the world after the rank's operation."""
        assert rank.operation is not None
        event: Event = StoreLost("lost")
        if not world.store_lost:
            store = dict(world.store)
            event = Done(self.do(store, rank.operation))
            world = replace(world, store=frozenset(store.items()))
        return world.put(self.tell(replace(rank, operation=None), event))

    def steps(self, world: World) -> list[tuple[str, World]]:
        """Return what can happen next; what needs time only where nothing else can."""
        for rank in world.ranks:
            if self.concerns_nobody(rank):
                return [(f"{rank.operation}", self.take_effect(world, rank))]
        soon = list(self.soon(world))
        if soon and self.scenario.timely:
            return soon
        return soon + list(self.in_time(world))

    def concerns_nobody(self, rank: Rank) -> bool:
        """Return whether its operation commutes with all that others can do.

        Then it makes no difference when it takes effect, and one order stands for all.
        """
        own = {f"asked/{rank.state.rank}", f"told/{rank.state.rank}"}
        match rank.operation:
            case Put(entries) if rank.closed:
                commutes = own.issuperset(key for key, _ in entries)
            case Read():
                commutes = True
            case _:
                commutes = False
        return commutes and not self.scenario.store_may_be_lost

    def soon(self, world: World) -> Iterator[tuple[str, World]]:
        """Yield what can happen at once."""
        scenario = self.scenario
        if scenario.store_may_be_lost and not world.store_lost:
            yield "the store is lost", replace(world, store_lost=True)
        nobody_killed = not any(rank.killed for rank in world.ranks)
        set_keys = {key for key, _ in world.store}
        for number, rank in enumerate(world.ranks):
            if rank.killed:
                continue
            if rank.operation is not None:
                yield f"{number}: {rank.operation}", self.take_effect(world, rank)
            if rank.waits:
                wait, *rest = rank.waits
                waited = replace(rank, waits=tuple(rest))
                if world.store_lost:
                    told = self.tell(waited, StoreLost("lost"))
                    yield f"{number}: lost {wait}", world.put(told)
                elif set_keys.issuperset(wait.keys):
                    yield f"{number}: {wait}", world.put(self.tell(waited, Woken(wait)))
            if rank.state.phase is Phase.NEW:
                yield f"{number}: joins", world.put(self.tell(rank, Start()))
            if number in scenario.killed and nobody_killed and not rank.closed:
                dead = replace(rank, killed=True, operation=None, waits=(), events=())
                yield f"{number}: is killed", world.put(dead)
            if rank.state.phase in JOINED:
                yield from self.program(world, number, rank)

    def program(
        self, world: World, number: int, rank: Rank
    ) -> Iterator[tuple[str, World]]:
        """Yield what the main thread of a rank can do next."""
        peers = [peer for peer in world.ranks if peer is not rank]
        failing = rank.calls == self.scenario.fails.get(number) and not rank.failed
        if not rank.closed and failing:
            failed = replace(rank, frozen=True, failed=True)
            yield f"{number}: fails", world.put(self.tell(failed, Announced()))
        if rank.out:
            if not rank.closed and (rank.gave_up or all(peer.out for peer in peers)):
                closed = replace(rank, closed=True)
                yield f"{number}: closes", world.put(self.tell(closed, Closing()))
            return
        if rank.calling:
            if rank.state.outcome is not None:
                yield f"{number}: returns", world.put(self.call(rank))
            return
        broken = self.scenario.lockstep and any(peer.gone for peer in peers)
        if broken or number in self.scenario.leaves:
            left = replace(rank, closed=True)
            yield f"{number}: leaves", world.put(self.tell(left, Closing()))
        if rank.calls == self.scenario.loops[number]:
            finished = self.tell(replace(rank, finished=True), Finished(rank.calls))
            yield f"{number}: finishes", world.put(finished)
        elif not failing and self.may_call(rank, peers):
            yield f"{number}: calls", world.put(self.call(rank))

    def may_call(self, rank: Rank, peers: list[Rank]) -> bool:
        """Return whether the collective before the next call completes."""
        return not self.scenario.lockstep or all(
            peer.calls >= rank.calls and not peer.gone and peer.state.phase in JOINED
            for peer in peers
        )

    def call(self, rank: Rank) -> Rank:
        """Return the rank after a call of `should_stop`, or in one that waits."""
        call = rank.calls + 1
        if not rank.frozen:
            return replace(rank, calls=call)
        waiting, rank = rank, replace(rank, calling=False)
        match rank.state.outcome:
            case None:
                return replace(waiting, calling=True)
            case Stop() as stop:
                stops = call >= stop.call
                return replace(rank, calls=call, stopped_at=call if stops else None)
            case Lost():
                return replace(rank, gave_up=True)
        raise AssertionError("no other outcome")

    def in_time(self, world: World) -> Iterator[tuple[str, World]]:
        """Yield what happens when time is over."""
        for number, rank in enumerate(world.ranks):
            if rank.waits and rank.waits[0].share is not None and not world.store_lost:
                wait, *rest = rank.waits
                waited = self.tell(replace(rank, waits=tuple(rest)), Missed(wait))
                yield f"{number}: misses {wait}", world.put(waited)
            if rank.closed and rank.state.phase is Phase.COLLECTING:
                abandons = self.tell(rank, Abandoned())
                yield f"{number}: abandons", world.put(abandons)


def check(model: Model) -> int:
    """Visit all worlds, assert what must hold, and return how many there are."""
    first = model.first()
    came_from: dict[World, tuple[World | None, str]] = {first: (None, "begin")}
    stack = [first]
    while stack:
        world = stack.pop()
        steps = model.steps(world)
        wrong = always(world) or (not steps and at_the_end(world, model.scenario))
        if wrong:
            raise AssertionError(f"{wrong}\n{story(world, came_from)}")
        for label, after in steps:
            if after not in came_from:
                came_from[after] = world, label
                stack.append(after)
    return len(came_from)


def story(world: World, came_from: dict[World, tuple[World | None, str]]) -> str:
    """Return how a world came about."""
    lines = [str(rank) for rank in world.ranks]
    at: World | None = world
    while at is not None:
        at, label = came_from[at]
        lines.insert(0, label)
    return "\n".join(lines)


def always(world: World) -> str:
    """Return what is wrong in a world that may never be so."""
    stops = {rank.stopped_at for rank in world.ranks} - {None}
    if len(stops) > 1:
        return f"two ranks stopped at different calls: {stops}"
    for rank in world.ranks:
        if stops and rank.stopped_at is None and rank.calls >= min(stops):
            return f"rank {rank.state.rank} went past the common call {stops}"
        if rank.state.phase is Phase.ENDED and not world.store_lost:
            keys = {key for wait in rank.waits for key in wait.keys}
            if not keys.issubset(key for key, _ in world.store):
                return f"a thread of rank {rank.state.rank} is left behind"
    outcomes = {rank.state.outcome for rank in world.ranks} - {None}
    if len(outcomes) > 1 and not world.store_lost:
        return f"two outcomes: {outcomes}"
    return ""


def at_the_end(world: World, scenario: Scenario) -> str:
    """Return what is wrong in a world in which nothing can happen any more."""
    living = [rank for rank in world.ranks if not rank.killed]
    for rank in living:
        if rank.calling:
            return f"rank {rank.state.rank} waits for ever"
        if rank.closed and (rank.state.phase is not Phase.ENDED or rank.waits):
            return f"the threads of rank {rank.state.rank} go on"
    harmed = scenario.killed or scenario.leaves or scenario.store_may_be_lost
    if scenario.timely and not harmed:
        if not all(rank.closed for rank in living):
            return "not all ranks came to the end"
        if any(rank.gave_up for rank in living):
            return "a rank gave up though all were there"
        if not all(isinstance(r.state.outcome, Stop) for r in living if r.failed):
            return "a failure led to no stop"
    return ""
