"""What is said of a deferred error: to the peers, in one line, in the group raised."""

import pickle
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest

from firstfault.deferred import (
    Deferred,
    DeferredErrors,
    RemoteDeferredError,
    suppress_errors,
)
from firstfault.deferred._exchange import Deadline, Exchange
from firstfault.deferred._record import NAMED_RANKS, Captured, remote, summary
from process_groups import run_ranks
from test_deferred_capture import FULL, raises


class Unpicklable(Exception):
    """Its text cannot be made, nor can it be pickled."""

    def __str__(self) -> str:
        raise KeyError("no text")

    def __reduce__(self) -> str:
        raise TypeError("no pickle")


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (Unpicklable(), "<str() raised KeyError>"),
        (ValueError("é\N{PARTY POPPER}" * 100_000), "bytes cut"),
        (ValueError(b"\xff\xfe".decode("utf-8", "surrogateescape")), "\\udcff\\udcfe"),
        (ValueError("a\nb\x00c"), "a\nb\x00c"),
    ],
    ids=["unpicklable", "huge", "not UTF-8", "control"],
)
def test_whatever_an_error_says_its_peers_get_bounded_text(
    errs: Deferred, error: Exception, part: str
) -> None:
    errs.step(17)
    with errs.defer("w\udcff" * 1000):
        raise error
    captured = errs._captured
    assert captured is not None
    texts = captured.texts()
    assert part in texts["message"]
    texts["message"].encode()
    assert len(pickle.dumps(texts)) < 8 * 1024
    peer = remote(3, texts)
    assert (peer.rank, peer.step, peer.type) == (3, 17, type(error).__name__)
    assert part in str(peer)
    line = summary({0: error}, captured)
    assert "\n" not in line
    assert len(line.encode()) < 2048


def test_the_summary_names_the_ranks_and_the_first_of_the_errors() -> None:
    captured = Captured(FULL, "metadata", 17)
    peers = {
        rank: RemoteDeferredError(rank, "E", "x", where="hook") for rank in range(1, 30)
    }
    own = (
        'OSError: [Errno 28] No space left on device, deferred at step 17 in "metadata"'
    )
    assert summary({0: FULL}, captured) == f"rank 0 failed: {own}"
    assert summary({4: peers[4]}, None) == 'rank 4 failed: E: x, deferred in "hook"'
    several = summary({0: FULL} | peers, captured)
    assert several.startswith("ranks 0, 1, 2, ")
    assert several.endswith(f"15 and 14 more failed: first of them {own}")


def test_the_group_is_split_matched_and_pickled_with_its_ranks() -> None:
    peer = RemoteDeferredError(1, "OSError", "x", "tb", where="metadata", step=17)
    errors = DeferredErrors("two ranks failed", {0: FULL, 1: peer}, 18)
    assert errors.own is FULL
    copy = pickle.loads(pickle.dumps(errors))
    assert (copy.message, copy.stopped_at) == (errors.message, 18)
    assert (copy.failures[1].step, str(copy.failures[1])) == (17, str(peer))
    handled = []

    def handle() -> None:
        try:
            raise errors
        except* OSError as group:
            handled.append(group)

    with pytest.raises(DeferredErrors) as left:
        handle()
    assert isinstance(handled[0], DeferredErrors)
    assert (handled[0].failures, left.value.failures) == ({0: FULL}, {1: peer})
    assert left.value.stopped_at == 18


RANKS = 1000


class OneOfMany(Exchange):
    """A rank of a thousand; waits for what has not been reduced yet by raising."""

    def __init__(self, rank: int, reduced: list[list[int]]) -> None:
        self._group = SimpleNamespace(rank=lambda: rank)
        self._ranks = list(range(RANKS))
        self._reduced = iter(reduced)
        self.sent: list[Any] = []
        self.sent_bytes = 0

    def _reduce(self, values: Any, dtype: Any, op: Any, deadline: Any) -> Any:
        self.sent = list(values)
        self.sent_bytes += len(values) * dtype.itemsize
        result = next(self._reduced, None)
        if result is None:
            raise TimeoutError
        return result


def thousand_disks_are_full() -> tuple[list[int], list[dict[int, Exception]]]:
    """Return what the first and the last rank send, and what they know of all."""
    errors = [OSError(28, FULL.strerror, f"/data/{rank}") for rank in range(RANKS)]
    captured = [Captured(error, "metadata", 17) for error in errors]
    reduced: list[list[int]] = []
    for _ in range(2):
        sent = []
        for rank, own in enumerate(captured):
            exchange = OneOfMany(rank, reduced)
            with pytest.raises(TimeoutError):
                exchange.failures(own, Deadline(1.0))
            if any(exchange.sent):
                sent.append(exchange.sent)
        reduced.append([sum(column) for column in zip(*sent, strict=True)])
    sent_bytes, known = [], []
    for rank in 0, RANKS - 1:
        exchange = OneOfMany(rank, reduced)
        failures = exchange.failures(captured[rank], Deadline(1.0))
        assert f"and {RANKS - NAMED_RANKS} more" in summary(failures, captured[rank])
        sent_bytes.append(exchange.sent_bytes)
        known.append(failures)
    return sent_bytes, known


def test_a_thousand_full_disks_move_kilobytes_with_a_count() -> None:
    # Where torch is loaded already.
    (one,) = run_ranks(thousand_disks_are_full, 1, group=False)
    assert one.status == 0, one.output
    sent, (first, last) = one.value
    assert max(sent) < 64 * 1024
    assert list(first) == list(last) == list(range(RANKS))
    said = "[Errno 28] No space left on device: '/data/0'"
    assert str(first[0]) == last[0].message == said
    for rank in range(1, RANKS - 1):
        assert first[rank].message == last[rank].message
        assert last[rank].message == f"{said} (as rank 0 said it)"
        assert (last[rank].where, last[rank].step) == ("metadata", 17)


HUGE = 50_000_000
"""Letters of a text each pass over which takes long; a pass makes a copy."""


def tells(length: int, letter: str) -> int:
    """Do all that is done with an error that says so much; return the bytes it took."""
    said = letter * length
    error = ExceptionGroup("two", [ValueError(said), OSError(said)])
    error.__cause__ = OSError(said)
    error.__cause__.__context__ = ValueError(said)
    error.add_note(said)
    errs = Deferred()
    tracemalloc.start()
    try:
        for first in ValueError(said), error:
            with errs.defer("save"):
                raise first
            captured = Captured(first, "save", 17)
            remote(1, captured.texts())
            summary({0: first}, captured)
            suppress_errors(raises, first)
        with pytest.raises(DeferredErrors):
            errs.finish()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("letter", ["x", "\n", "é", "\N{PARTY POPPER}", "\udcff"])
def test_a_huge_text_is_nowhere_copied_whole(letter: str) -> None:
    tells(1, letter)  # What is loaded and cached at the first time.
    # Some clipped to 64 Ki letters, and what is made of them.
    assert tells(HUGE, letter) < HUGE / 2
