"""How real ranks leave by the emergency way, and what they do about lost peers."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from conftest import Run
from firstfault.deferred import (
    AgreementError,
    Deferred,
)
from process_groups import process_ids, run_ranks
from test_agreement import awaits, happens
from test_agreement_lost import stop
from test_deferred_finish import (
    all_reduce,
    has_no_leftover_threads,
    is_initialized,
    rank,
)

PATIENCE = 3.0
"""Seconds after which a rank counts as lost in tests where one is."""


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


def leaves_badly() -> None:
    """Leave by an error, while all that is done on the way fails too."""
    import torch.distributed as dist

    c10d = dist.distributed_c10d
    errs = Deferred()

    def failing(act: Callable[..., object]) -> Callable[..., None]:
        def fail(*arguments: object) -> None:
            act(*arguments)
            raise RuntimeError(f"not this: {act.__name__}")

        return fail

    assert errs._agreement is not None
    errs._agreement.close = failing(errs._agreement.close)
    c10d._abort_process_group = failing(c10d._abort_process_group)
    with errs:
        raise LookupError("broken")


def test_what_fails_on_the_way_out_is_only_logged() -> None:
    for one in run_ranks(leaves_badly, 2):
        assert one.status == 1
        error = one.output.rstrip().rpartition("\n")[2]
        assert error == "LookupError: broken", one.output
        for what, act in [
            ("the agreement", "close"),
            ("the process group", "_abort_process_group"),
        ]:
            text = f"suppressed while leaving: {what}: RuntimeError: not this: {act}"
            assert text in one.output


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


def is_lost(culprit: int, phase: str, how: int) -> None:
    """Fail on rank 2, and lose this one on the way to the end."""
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
    with pytest.raises(AgreementError):
        errs.finish()
    assert not is_initialized()
    happens(f"{rank()} is out")
    if how == signal.SIGSTOP:
        first, second = {0, 1, 2} - {culprit}
        awaits(f"{first} is out")
        awaits(f"{second} is out")
        os.kill(process_ids()[str(culprit)], signal.SIGKILL)


@pytest.mark.parametrize("phase", ["before", "texts", "barrier"])
@pytest.mark.parametrize("culprit", [0, 2])
def test_a_rank_killed_during_finish_leaves_nobody_waiting(
    culprit: int, phase: str
) -> None:
    ended = run_ranks(is_lost, 3, culprit, phase, signal.SIGKILL)
    for number, one in enumerate(ended):
        assert one.status == (-9 if number == culprit else 0), one.output


# Before, a peer may be busy: see `test_a_rank_that_comes_late_is_waited_for`.
@pytest.mark.parametrize(
    ("culprit", "phase"),
    [
        (0, "texts"),
        (1, "barrier"),
        pytest.param(0, "barrier", marks=pytest.mark.slow),
        pytest.param(1, "texts", marks=pytest.mark.slow),
    ],
)
def test_a_rank_stopped_during_finish_keeps_nobody(culprit: int, phase: str) -> None:
    # Long before the group's own timeout, which is 300 s.
    ended = run_ranks(is_lost, 3, culprit, phase, signal.SIGSTOP, deadline=60)
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


def captures_without_a_store(host: str) -> None:
    """Stop the store's host, and fail on rank 1; the host goes on when that is over."""
    import torch.distributed as dist

    with Deferred(deadline=PATIENCE) as errs:
        dist.barrier()
        # Which others may still be in.
        happens(f"{rank()} is in")
        if rank() == 1:
            awaits("0 is in")
            awaits("2 is in")
            stop(process_ids()[host])
            # Until the deadline of the job, were it to wait for the store.
            errs.capture(OSError("disk full"), "metadata")
            print("captured", flush=True)
        try:
            while not errs.should_stop():
                # A stopped rank is waited for by a collective, as long as that can be.
                time.sleep(0.001) if host == "0" else all_reduce()
        finally:
            if rank() == 1:
                os.kill(process_ids()[host], signal.SIGCONT)


@pytest.mark.parametrize("host", ["0", "agent"])
def test_no_capture_waits_for_the_store(host: str) -> None:
    store = "agent" if host == "agent" else "rank 0"
    ended = run_ranks(captures_without_a_store, 3, host, store=store, deadline=60)
    assert [one.status for one in ended] == [1, 1, 1], ended
    assert "captured" in ended[1].output
    assert f"AgreementError: the store did not answer in {PATIENCE:g} s" in (
        ended[1].output
    )


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
