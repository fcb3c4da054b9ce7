"""A rank or the store is lost while ranks agree: nobody waits for ever or goes on.

Each rank calls `should_stop` until that stops or raises, without a collective: those
would notice a lost rank too, and it is the agreement that is to notice it.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from firstfault.deferred import _watcher
from firstfault.deferred._agreement import Agreement, _silent_store
from firstfault.deferred._errors import AgreementError
from firstfault.deferred._messages import Operation
from process_groups import process_ids, run_ranks
from test_agreement import agreement_threads, awaits, happens

DEADLINE = 3.0
"""Of the agreement, all of which passes in some tests."""

TOLD = "Read(keys=('decision'"
"""What a rank does when it has been told."""

SLACK = 5.0
"""Seconds that a busy machine may add to it."""


def calls_until_it_ends(agreement: Agreement) -> tuple[int, str | None, bool]:
    """Return the call it stopped at, or the error that it raised, and if in time."""
    error = None
    while True:
        started = time.monotonic()
        try:
            if agreement.should_stop():
                break
        except AgreementError as lost:
            error = str(lost)
            # It is as sticky as a stop.
            with pytest.raises(AgreementError):
                agreement.should_stop()
            break
        time.sleep(0.001)
    return agreement.calls, error, time.monotonic() - started < DEADLINE + SLACK


def leave(agreement: Agreement, *peers: int) -> None:
    """Leave when these peers are out of their loops too."""
    happens(f"{agreement.rank} is out")
    for peer in peers:
        awaits(f"{peer} is out")
    agreement.close()
    assert not agreement_threads()


def dies_doing(victim: int, what: str) -> tuple[int, str | None, bool]:
    """Let rank 1 of four fail, and this victim die instead of this operation.

    Where rank 1 dies, rank 2 fails too, and finds that another claims to coordinate.
    Where the victim has been told, nobody has to wait for anything.
    """
    import torch.distributed as dist

    deadline = 30.0 if what == TOLD else DEADLINE
    agreement = Agreement.start(deadline=deadline)
    rank = dist.get_rank()
    do = _watcher._do

    def killed(store: Any, operation: Operation) -> object:
        if rank == victim and what in str(operation):
            happens("the victim is dead")
            os.kill(os.getpid(), signal.SIGKILL)
        return do(store, operation)

    _watcher._do = killed
    dist.barrier()
    if rank == 2 and victim == 1:
        awaits("the victim is dead")
        agreement.announce()
    if rank == 1:
        agreement.announce()
    ended = calls_until_it_ends(agreement)
    leave(agreement, *({0, 1, 2, 3} - {victim}))
    return ended


@pytest.mark.parametrize(
    ("victim", "what"),
    [
        (1, "asked/0"),  # has claimed to coordinate
        (1, "joined/0"),  # has asked
        (1, "Read(keys=('answer/0'"),  # has all answers
        (1, "Offer(key='decision'"),  # knows the decision
        (1, "told/0"),  # has decided
        (3, "answer/3"),  # was asked
        (3, TOLD),
    ],
)
def test_a_rank_is_killed_while_they_agree(victim: int, what: str) -> None:
    ranks = run_ranks(dies_doing, 4, victim, what, store="agent")
    assert ranks[victim].status == -signal.SIGKILL
    survivors = [rank for number, rank in enumerate(ranks) if number != victim]
    assert [rank.status for rank in survivors] == [0, 0, 0], ranks
    calls, errors, in_time = zip(*(rank.value for rank in survivors), strict=True)
    assert all(in_time)
    if what in ("told/0", TOLD):
        # It was decided when the rank died: all others stop there.
        assert errors == (None, None, None)
        assert len(set(calls)) == 1
    else:
        reason = "did not answer" if victim == 3 else "did not decide"
        assert errors == (f"rank {victim} {reason}",) * 3


def exits_early(status: int) -> tuple[int, str | None, bool]:
    """Let rank 0 leave by SystemExit in its loop, and rank 1 fail after that."""
    import torch.distributed as dist

    agreement = Agreement.start(deadline=DEADLINE)
    if dist.get_rank() == 0:
        agreement.should_stop()
        raise SystemExit(status)
    if dist.get_rank() == 1:
        while os.path.exists(f"/proc/{process_ids()['0']}/fd/1"):
            time.sleep(0.01)
        agreement.announce()
    ended = calls_until_it_ends(agreement)
    leave(agreement, 1, 2)
    return ended


@pytest.mark.parametrize("status", [0, 3])
def test_a_rank_exits_in_its_loop(status: int) -> None:
    first, *others = run_ranks(exits_early, 3, status, store="agent")
    assert first.status == status
    errors = [(rank.status, rank.value[1]) for rank in others]
    assert errors == [(0, "rank 0 left without finishing its loop")] * 2, others


def stop(process: int) -> None:
    """Stop a process, and return when all of its threads stand still."""
    os.kill(process, signal.SIGSTOP)
    for status in Path(f"/proc/{process}/task").glob("*/stat"):
        while status.read_text().rpartition(") ")[2][0] != "T":
            time.sleep(0.005)


def stops_the_host() -> Any:
    """Let rank 1 stop the store's host and fail."""
    import torch.distributed as dist

    agreement = Agreement.start(deadline=DEADLINE)
    dist.barrier()
    if dist.get_rank() == 0:
        awaits("1 is out")
        return None
    stop(process_ids()["agent"])
    agreement.announce()
    ended = calls_until_it_ends(agreement)
    started = time.monotonic()
    agreement.close(deadline=0.5)
    happens("1 is out")
    return *ended, time.monotonic() - started < 0.5 + SLACK


@pytest.mark.parametrize(
    "finalize", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_the_host_of_the_store_is_stopped(finalize: bool) -> None:
    ranks = run_ranks(stops_the_host, 2, store="agent", finalize=finalize)
    assert [rank.status for rank in ranks] == [0, 0], ranks
    error = f"the store did not answer in {DEADLINE:g} s"
    assert ranks[1].value == (0, error, True, True)


def kills_the_host(host: str) -> Any:
    """Let the store's host die while nobody fails."""
    import torch
    import torch.distributed as dist

    agreement = Agreement.start(deadline=DEADLINE)
    dist.barrier()
    # The third rank may still be in the barrier, and would miss the host there.
    word = torch.zeros(1)
    if dist.get_rank() == 2:
        dist.send(word, 1)
    elif dist.get_rank() == 1:
        dist.recv(word, 2)
        os.kill(process_ids()[host], signal.SIGKILL)
    ended = calls_until_it_ends(agreement)
    leave(agreement)
    return ended


@pytest.mark.parametrize("host", ["0", pytest.param("agent", marks=pytest.mark.slow)])
def test_the_host_of_the_store_is_killed(host: str) -> None:
    store = "agent" if host == "agent" else "rank 0"
    ranks = run_ranks(kills_the_host, 3, host, store=store, finalize=True)
    if host == "0":
        assert ranks.pop(0).status == -signal.SIGKILL
    assert [rank.status for rank in ranks] == [0] * len(ranks), ranks
    for rank in ranks:
        _, error, in_time = rank.value
        assert error.startswith("the store is lost: Dist"), error
        assert in_time


def kill_and_wait(process: int) -> None:
    """Return when it is gone, and with it its connections; it need be no child."""
    descriptor = os.pidfd_open(process)
    os.kill(process, signal.SIGKILL)
    select.select([descriptor], [], [])
    os.close(descriptor)


def kills_the_host_while_they_agree(host: str) -> tuple[int, str | None, bool]:
    """Let rank 1 fail, and the store's host die before rank 2 can answer."""
    import torch.distributed as dist

    rank, do = dist.get_rank(), _watcher._do

    def killing(store: Any, operation: Operation) -> object:
        if rank == 2 and "answer/2" in str(operation):
            kill_and_wait(process_ids()[host])
        return do(store, operation)

    # The watcher may have to answer as soon as it is there.
    _watcher._do = killing
    agreement = Agreement.start(deadline=DEADLINE)
    # Whoever comes later is not asked.
    dist.barrier()
    if rank == 1:
        agreement.announce()
    ended = calls_until_it_ends(agreement)
    leave(agreement)
    return ended


@pytest.mark.parametrize("host", ["0", "agent"])
def test_the_host_of_the_store_is_killed_while_they_agree(host: str) -> None:
    store = "agent" if host == "agent" else "rank 0"
    ranks = run_ranks(kills_the_host_while_they_agree, 3, host, store=store)
    if host == "0":
        assert ranks.pop(0).status == -signal.SIGKILL
    assert [rank.status for rank in ranks] == [0] * len(ranks), ranks
    for rank in ranks:
        _, error, in_time = rank.value
        assert error.startswith("the store is lost: Dist"), error
        assert in_time


def starts_without_a_store() -> str:
    """Let the store's host be stopped before this rank joins."""
    import torch.distributed as dist

    # The other may not have made its group yet.
    dist.barrier()
    stop(process_ids()["agent"])
    with pytest.raises(AgreementError) as raised:
        Agreement.start(deadline=0.5)
    return str(raised.value)


def test_joining_does_not_wait_for_ever() -> None:
    [_, rank] = run_ranks(starts_without_a_store, 2, store="agent")
    assert rank.status == 0
    assert rank.value == "the store did not answer in 0.5 s"


def test_too_many_ranks_for_the_open_files_are_named() -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    few, many = _silent_store(1, 2), _silent_store(1, limit)
    assert few.reason == "the store did not answer in 1 s"
    assert f"{limit} ranks have {3 * limit} connections" in many.reason
    assert "ulimit -n" in many.reason
