"""How a run ends on real ranks: in order with every rank, or by the emergency way."""

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from conftest import Run
from firstfault.deferred import (
    AgreementError,
    Deferred,
    DeferredErrors,
    RemoteDeferredError,
)
from process_groups import process_ids, run_ranks

PATIENCE = 3.0
"""Seconds after which a rank counts as lost in tests where one is."""


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


# In order.


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


# The emergency way.


def leaves(culprit: int, error: Callable[[], BaseException], deferred: bool) -> None:
    with Deferred(deadline=PATIENCE) as errs:
        for step in range(3):
            errs.step(step)
            if rank() == culprit and step == 1:
                if deferred:
                    errs.capture(OSError("disk full"), "metadata")
                raise error()
            all_reduce()
            all_reduce()


@pytest.mark.parametrize("culprit", [0, 1, 2])
@pytest.mark.parametrize("deferred", [False, True])
def test_an_error_of_the_trunk_leaves_nobody_waiting(
    culprit: int, deferred: bool
) -> None:
    ended = run_ranks(leaves, 3, culprit, broken, deferred)
    assert [one.status for one in ended] == [1, 1, 1]
    output = ended[culprit].output
    assert "LookupError: broken" in output
    assert "AgreementError" not in output
    told = 'Before that, deferred at step 1 in "metadata": OSError: disk full'
    assert (told in output) == deferred


def leaves_and_lives_on() -> tuple[bool, bool]:
    with pytest.raises(LookupError), Deferred():
        raise LookupError("broken")
    return is_initialized(), has_no_leftover_threads()


def test_the_emergency_way_leaves_no_group_and_no_thread() -> None:
    ended = run_ranks(leaves_and_lives_on, 2)
    assert [one.value for one in ended] == [(False, True)] * 2, ended


def broken() -> BaseException:
    return LookupError("broken")


def interrupted() -> BaseException:
    return KeyboardInterrupt()


def stopping() -> BaseException:
    return SystemExit(0)


@pytest.mark.parametrize("deferred", [False, True])
def test_a_rank_that_exits_leaves_nobody_waiting(deferred: bool) -> None:
    ended = run_ranks(leaves, 3, 1, stopping, deferred)
    # What was deferred is not lost in an exit as of a success.
    assert [one.status for one in ended] == [1, int(deferred), 1]
    assert ("DeferredErrors: rank 1 failed: OSError" in ended[1].output) == deferred


def test_an_interrupted_rank_leaves_nobody_waiting() -> None:
    ended = run_ranks(leaves, 2, 0, interrupted, True)
    assert [one.status for one in ended] == [1, 1]
    assert "KeyboardInterrupt" in ended[0].output


def records_first() -> None:
    import json

    import torch.distributed as dist

    path = os.environ["TORCHELASTIC_ERROR_FILE"] = f"{os.environ['RANKS_DIRECTORY']}/e"

    def show_and_hang(*_: object) -> None:
        with open(path) as file:
            print("THERE:", json.load(file)["message"]["message"], flush=True)
        signal.pause()

    dist.distributed_c10d._abort_process_group = show_and_hang
    with Deferred(deadline=1):
        raise LookupError("broken")


def test_the_record_is_there_before_anything_can_hang() -> None:
    (one,) = run_ranks(records_first, 1)
    assert "THERE: LookupError: broken" in one.output
    assert one.status == 1


# Peers that are lost on the way.


def is_lost(culprit: int, phase: str, how: int) -> float:
    from firstfault.deferred._exchange import Exchange

    def lost(*_: object) -> None:
        os.kill(os.getpid(), how)
        time.sleep(100)

    errs = Deferred(deadline=PATIENCE)
    if rank() == 2:
        errs.capture(ValueError("x"), "here")
    all_reduce()
    if rank() == culprit:
        if phase == "before":
            lost()
        elif phase == "texts":
            reduce, calls = Exchange._reduce, []

            def first_only(*arguments: Any) -> Any:
                calls.append(1)
                return reduce(*arguments) if len(calls) == 1 else lost()

            Exchange._reduce = first_only  # type: ignore[method-assign]
        else:
            Exchange.barrier = lost  # type: ignore[method-assign]
    start = time.monotonic()
    with pytest.raises(AgreementError):
        errs.finish()
    assert not is_initialized()
    return time.monotonic() - start


@pytest.mark.parametrize("phase", ["before", "texts", "barrier"])
@pytest.mark.parametrize("culprit", [0, 2])
def test_a_rank_killed_during_finish_leaves_nobody_waiting(
    culprit: int, phase: str
) -> None:
    ended = run_ranks(is_lost, 3, culprit, phase, signal.SIGKILL)
    for number, one in enumerate(ended):
        assert one.status == (-9 if number == culprit else 0), one.output


def stops_forever() -> float:
    """Stop rank 1; the others end meanwhile, and rank 0 lets it go."""
    from datetime import timedelta

    import torch.distributed as dist

    group = dist.new_group(timeout=timedelta(seconds=PATIENCE))
    errs = Deferred(group=group)
    if rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(AgreementError, match="a peer is gone or did not come in time"):
        errs.finish()
    took = time.monotonic() - start
    if rank() == 0:
        os.kill(process_ids()["1"], signal.SIGCONT)
    return took


def comes_late() -> float:
    """Come to the end later than the deadline, on one rank."""
    errs = Deferred(deadline=0.5)
    if rank() == 0:
        time.sleep(1.5)
    start = time.monotonic()
    errs.finish()
    return time.monotonic() - start


def test_a_rank_that_comes_late_is_waited_for() -> None:
    first, second = run_ranks(comes_late, 2)
    assert (first.status, second.status) == (0, 0), second.output
    assert second.value > 1


def test_a_stopped_rank_is_waited_for_as_by_any_collective() -> None:
    for one in run_ranks(stops_forever, 3):
        assert one.status == 0, one.output
        assert one.value < 5 * PATIENCE


def leaves_early(numbers: int) -> None:
    """Leave the loop one step before rank 0 does: a mistake of the program."""
    import torch
    import torch.distributed as dist

    with Deferred(deadline=PATIENCE):
        for _ in range(3 - rank()):
            dist.all_reduce(torch.ones(numbers))


@pytest.mark.parametrize("numbers", [1, 8])
def test_loops_of_unequal_length_leave_nobody_waiting(numbers: int) -> None:
    for one in run_ranks(leaves_early, 2, numbers):
        assert one.status in {1, -signal.SIGABRT}, one.output


# Processes that do not die.


LIVES_ON = """
import ctypes, signal, threading
from firstfault.deferred import Deferred

libc = ctypes.CDLL(None)
with Deferred(hard_exit_after=3):
    {}
    raise LookupError("broken")
"""


def test_a_thread_that_does_not_end_is_shown_and_ended(run: Run) -> None:
    stubborn = "threading.Thread(target=signal.pause).start()"
    ended = run(LIVES_ON.format(stubborn))
    assert ended.status == 1
    assert "LookupError: broken" in ended.stderr
    assert "Timeout (0:00:03)!" in ended.stderr
    assert "in _shutdown" in ended.stderr


def test_a_destructor_that_does_not_end_is_ended(run: Run) -> None:
    ended = run(LIVES_ON.format("libc.__cxa_atexit(libc.pause, None, None)"))
    assert ended.status == -signal.SIGALRM
    assert "LookupError: broken" in ended.stderr
