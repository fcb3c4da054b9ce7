"""How a run ends in order on real ranks: all know who failed, and raise."""

import os
import signal
import threading
import time
from typing import Any

import pytest

from firstfault.deferred import (
    Deferred,
    DeferredErrors,
    RemoteDeferredError,
)
from process_groups import run_ranks


def rank() -> int:
    """Return this process's rank."""
    return int(os.environ["RANK"])


def all_reduce() -> None:
    """Do what a training step does."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(8))


def is_initialized() -> bool:
    """Return whether there is a process group."""
    import torch.distributed as dist

    return dist.is_initialized()


def has_no_leftover_threads() -> bool:
    """Return whether what finish started has ended."""
    return not any("firstfault" in thread.name for thread in threading.enumerate())


def succeeds() -> tuple[bool, bool]:
    with Deferred() as errs:
        all_reduce()
        assert not errs.should_stop()
    return is_initialized(), has_no_leftover_threads()


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_good_run_ends_the_group_and_raises_nothing(ranks: int) -> None:
    ended = run_ranks(succeeds, ranks, finalize=True)
    assert [one.status for one in ended] == [0] * ranks
    assert {one.value for one in ended} == {(False, True)}


def fails(culprits: tuple[int, ...]) -> tuple[Any, ...]:
    mine = ValueError(f"metrics of rank {rank()}")
    try:
        with Deferred() as errs:
            errs.step(17)
            if rank() in culprits:
                with errs.defer("metrics"):
                    raise mine
            all_reduce()
            while not errs.should_stop():
                all_reduce()
    except DeferredErrors as error:
        own = [r for r, e in error.failures.items() if e is mine]
        others = {
            r: (e.rank, e.type, e.message, e.where, e.step, e.traceback)
            for r, e in error.failures.items()
            if isinstance(e, RemoteDeferredError)
        }
        return own, others, error.message, is_initialized()
    return ()


@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_every_rank_raises_the_error_of_the_one(culprit: int) -> None:
    for number, one in enumerate(run_ranks(fails, 3, (culprit,))):
        assert one.status == 0, one.output
        own, others, message, is_initialized = one.value
        assert own == ([culprit] if number == culprit else [])
        assert list(others) == ([] if number == culprit else [culprit])
        assert f"ValueError: metrics of rank {culprit}" in message
        assert 'deferred at step 17 in "metrics"' in message
        assert not is_initialized
        if others:
            *facts, traceback = others[culprit]
            text = f"metrics of rank {culprit}"
            assert facts == [culprit, "ValueError", text, "metrics", 17]
            assert "raise mine" in traceback


def test_two_ranks_that_fail_alike_are_told_by_one_text() -> None:
    for number, one in enumerate(run_ranks(fails, 4, (1, 3))):
        own, others, _, _ = one.value
        assert sorted([*own, *others]) == [1, 3], one.output
        if number != 1:
            assert others[1][2] == "metrics of rank 1"
            assert "raise mine" in others[1][-1]
        if number != 3:
            assert others[3][2] == "metrics of rank 1 (as rank 1 said it)"
            assert others[3][-1] == ""


def stops_in_nameless_steps() -> tuple[int | None, int, int | None]:
    """Fail before the third call; return where this rank says that it stopped."""
    errs = Deferred()
    calls = 0
    stopped = False
    while not stopped:
        all_reduce()
        if rank() == 1 and calls == 2:
            errs.capture(ValueError("x"), "here")
        stopped = errs.should_stop()
        calls += 1
    with pytest.raises(DeferredErrors) as raised:
        errs.finish()
    return errs.stopped_at, calls, raised.value.stopped_at


def test_where_no_step_is_named_the_call_says_where_they_stopped() -> None:
    first, second = run_ranks(stops_in_nameless_steps, 2)
    assert first.value == second.value, (first, second)
    stopped_at, calls, raised = first.value
    assert stopped_at == calls == raised
    assert calls in (3, 4)
    # Alone nobody counts.
    (alone,) = run_ranks(stops_alone, 1)
    assert alone.value == (None, 7), alone


def stops_alone() -> tuple[int | None, int | None]:
    """Return where this rank stops without a step, and with one."""
    places = []
    for step in None, 7:
        errs = Deferred()
        if step is not None:
            errs.step(step)
        errs.capture(ValueError("x"), "here")
        assert errs.should_stop()
        with pytest.raises(DeferredErrors):
            errs.finish()
        places.append(errs.stopped_at)
    first, second = places
    return first, second


def fails_differently(slots: int) -> dict[int, str]:
    from firstfault.deferred import _exchange

    _exchange.SLOTS = slots
    errs = Deferred()
    errs.capture(ValueError("abcd"[rank()]), "here")
    with pytest.raises(DeferredErrors) as caught:
        errs.finish()
    return {r: getattr(e, "message", str(e)) for r, e in caught.value.failures.items()}


def test_no_more_texts_are_sent_than_have_a_place() -> None:
    for number, one in enumerate(run_ranks(fails_differently, 4, 2)):
        untold = "its text was not sent: too many others differed from it"
        expected = {0: "a", 1: "b", 2: untold, 3: untold} | {number: "abcd"[number]}
        assert one.value == expected, one.output


class Awkward(Exception):
    """An error that cannot be pickled, whose text is huge and is no UTF-8."""

    def __init__(self) -> None:
        super().__init__("x\udcff\0\n" + "é" * 1_000_000)
        self.held = threading.Lock()


def fails_awkwardly() -> tuple[str, int]:
    errs = Deferred()
    if rank() == 1:
        with errs.defer("\udcfe" * 10_000):
            raise Awkward
    with pytest.raises(DeferredErrors) as caught:
        errs.finish()
    error = caught.value.failures[1]
    return str(getattr(error, "message", "own")), len(
        str(error).encode(errors="replace")
    )


def test_any_text_arrives_cut() -> None:
    first, second = run_ranks(fails_awkwardly, 2)
    assert second.value[0] == "own", second.output
    message, size = first.value
    assert message.startswith("x\\udcff\0\né")
    assert "bytes cut" in message
    assert size < 16 * 1024


def finishes_twice() -> bool:
    errs = Deferred()
    errs.capture(ValueError("x"), "here")
    with pytest.raises(DeferredErrors), errs:
        errs.finish()
    errs.finish()
    return is_initialized()


def test_the_end_comes_once() -> None:
    assert [one.value for one in run_ranks(finishes_twice, 2)] == [False, False]


def captures_late() -> None:
    """Defer an error on rank 0 when the ranks have agreed already that none failed."""
    from firstfault.deferred._exchange import Exchange

    barrier = Exchange.barrier
    errs = Deferred()

    def late(*arguments: Any) -> None:
        if rank() == 0:
            errs.capture(ValueError("x"), "upload")
        barrier(*arguments)

    Exchange.barrier = late  # type: ignore[method-assign]
    errs.finish()


def test_an_error_that_comes_too_late_for_the_peers_is_not_lost() -> None:
    first, second = run_ranks(captures_late, 2)
    assert (first.status, second.status) == (1, 0), second.output
    assert "DeferredErrors: rank 0 failed: ValueError: x" in first.output


def destroys_itself() -> None:
    import torch.distributed as dist

    with Deferred() as errs:
        if rank() == 0:
            errs.capture(ValueError("x"), "here")
        while not errs.should_stop():
            all_reduce()
        dist.destroy_process_group()


def test_a_group_that_the_program_destroyed_leaves_nobody_successful() -> None:
    first, second = run_ranks(destroys_itself, 2)
    assert (first.status, second.status) == (1, 1)
    assert "DeferredErrors" in first.output
    assert "AgreementError: a peer deferred an error" in second.output


def alone(culprit: bool) -> bool:
    with Deferred() as errs:
        if culprit:
            errs.capture(ValueError("x"), "here")
        assert errs.should_stop() == culprit
    return True


@pytest.mark.parametrize("group", [True, False])
def test_a_rank_of_its_own_needs_nobody(group: bool) -> None:
    (good,) = run_ranks(alone, 1, False, group=group)
    assert good.status == 0, good.output
    (bad,) = run_ranks(alone, 1, True, group=group)
    assert bad.status == 1
    assert "DeferredErrors: rank 0 failed: ValueError: x" in bad.output


def destroys_slowly() -> float:
    import torch.distributed as dist

    dist.destroy_process_group = lambda *_: signal.pause()
    start = time.monotonic()
    with pytest.raises(DeferredErrors), Deferred(deadline=1) as errs:
        errs.capture(ValueError("x"), "here")
    return time.monotonic() - start


def test_a_group_that_cannot_be_destroyed_keeps_nobody() -> None:
    for one in run_ranks(destroys_slowly, 2):
        assert one.status == 0, one.output
        assert one.value < 10
