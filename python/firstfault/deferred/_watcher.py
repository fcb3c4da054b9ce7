"""The threads that run the protocol over a store; nobody else calls the store.

Two threads, because a wait blocks its connection: the *speaker* runs the protocol and
does its short operations, the *listener* does its waits. Each has a clone of the store.
The speaker makes both before it joins: connecting to a host that is gone takes minutes,
while a connection that breaks is noticed at once.

Both are daemons, lest they hold up an interpreter that ends without closing; but a
daemon that wakes from a wait while the interpreter is finalized aborts the process,
hence `Watcher.close`.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, Protocol

from firstfault.deferred._messages import (
    Abandoned,
    Closing,
    Done,
    End,
    Event,
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
from firstfault.deferred._protocol import JOINED, Outcome, State, advance

FOREVER = timedelta(days=20)
"""The longest wait: the store's client counts milliseconds in 32 bits, to 24 days.

A wait that times out prints warnings, so that short ones in turns are no way out.
"""


class Main(Protocol):
    """What the watcher does to the side of the main thread; none of it blocks."""

    def freeze(self) -> tuple[int, Marks]:
        """Let no further call return; return how many have, and the latest marks."""

    def frozen_at(self) -> float:
        """Return the time of the freeze on the monotonic clock."""

    def joined(self) -> None:
        """Let the first call be made."""

    def settle(self, outcome: Outcome) -> None:
        """Let frozen calls return; the first outcome is kept."""


class Watcher:
    """One rank's part in the agreement.

    Args:
        store: The store to clone. It is not used itself.
        prefix: What all keys of this agreement begin with, alike on all ranks.
        rank: This rank, one of `members`.
        members: The ranks that agree.
        deadline: Seconds from a freeze to the end of all waits.
        main: The side of the main thread.
    """

    def __init__(
        self,
        store: Any,
        prefix: str,
        rank: int,
        members: tuple[int, ...],
        deadline: float,
        main: Main,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._deadline = deadline
        self._main = main
        self._state = State(rank, members)
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._waits: SimpleQueue[Wait | None] = SimpleQueue()
        self._listeners_store: Any = None
        self._speaker = threading.Thread(
            target=self._speak, name="firstfault-agreement", daemon=True
        )
        self._listener = threading.Thread(
            target=self._listen, name="firstfault-agreement-wait", daemon=True
        )

    def start(self) -> None:
        """Start the threads and take part."""
        self._events.put(Start())
        self._speaker.start()
        self._listener.start()

    def post(self, event: Event) -> None:
        """Tell the protocol of an event; from any thread, never blocks."""
        self._events.put(event)

    def close(self, deadline: float) -> bool:
        """Leave, and return whether both threads have ended in time.

        A coordinator gets its answers in the first half of the time, if they come.
        """
        end = time.monotonic() + deadline
        for event in Closing(), Abandoned():
            self._events.put(event)
            half = (end - time.monotonic()) / 2
            self._speaker.join(half if isinstance(event, Closing) else 2 * half)
            if not self._speaker.is_alive():
                break
        self._listener.join(max(end - time.monotonic(), 0))
        return not (self._speaker.is_alive() or self._listener.is_alive())

    # The speaker.

    def _speak(self) -> None:
        store: Any = None
        ended = False
        while not ended:
            event: Event | None = self._events.get()
            while event is not None:
                self._state, operation = advance(self._state, event)
                self._publish()
                match operation:
                    case None:
                        event = None
                    case Wait():
                        self._waits.put(operation)
                        event = None
                    case End():
                        self._waits.put(None)
                        event, ended = None, True
                    case Freeze():
                        event = Done(self._main.freeze())
                    case _:
                        try:
                            if store is None:
                                self._listeners_store = self._connect()
                                store = self._connect()
                            event = Done(_do(store, operation))
                        except Exception as error:
                            event = StoreLost(_reason(error))

    def _publish(self) -> None:
        if self._state.outcome is not None:
            self._main.settle(self._state.outcome)
        if self._state.phase in JOINED:
            self._main.joined()

    # The listener.

    def _listen(self) -> None:
        while (wait := self._waits.get()) is not None:
            event: Event
            try:
                event = Woken(wait) if self._wait(wait) else Missed(wait)
            except Exception as error:
                event = StoreLost(_reason(error))
            self._events.put(event)

    def _wait(self, wait: Wait) -> bool:
        """Return whether the keys were set in time."""
        end = None
        if wait.share is not None:
            end = self._main.frozen_at() + wait.share * self._deadline
        while True:
            left = FOREVER
            if end is not None:
                # The store takes no time of zero; and keys may be set already.
                left = timedelta(seconds=max(end - time.monotonic(), 0.1))
            started = time.monotonic()
            try:
                self._listeners_store.wait(list(wait.keys), left)
            except Exception:
                # A store tells by its text alone whether it was the time that failed.
                if time.monotonic() - started < 0.9 * left.total_seconds():
                    raise
                if end is not None:
                    return False
            else:
                return True

    def _connect(self) -> Any:
        from torch.distributed.distributed_c10d import PrefixStore

        return PrefixStore(self._prefix, self._store.clone())


def _do(store: Any, operation: Operation) -> object:
    """Do one short operation; return its result."""
    match operation:
        case Put(entries):
            keys, values = zip(*entries, strict=True)
            store.multi_set(list(keys), list(values))
            return None
        case Offer(key, value):
            return store.compare_set(key, "", value).decode()
        case Look(keys):
            return frozenset(_present(store, list(keys)))
        case Read(keys):
            return tuple(value.decode() for value in store.multi_get(list(keys)))
        case _:
            raise AssertionError(operation)


def _present(store: Any, keys: list[str]) -> list[str]:
    """Return the keys that are set; one round trip where all are, as they mostly are.

    Where few of many are missing, halving finds them in few more.
    """
    if store.check(keys):
        return keys
    if len(keys) == 1:
        return []
    half = len(keys) // 2
    return _present(store, keys[:half]) + _present(store, keys[half:])


def _reason(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    return f"the store is lost: {type(error).__name__}: {text}"
