"""Programs that use deferred errors oddly: no error is lost, and none hangs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from firstfault.deferred import (
    AgreementError,
    Deferred,
    DeferredErrors,
    commit,
    prepare,
)
from firstfault.deferred._collectives import open_scopes
from process_groups import run_ranks

DEADLINE = 5.0
"""Seconds after which a rank counts as lost: no test here is to need them."""


def all_reduce() -> None:
    """Do what a training step does."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(8))


# Values of the program's own that travel to the peers.


class Silent:
    """What cannot even be printed."""

    def __str__(self) -> str:
        raise KeyError("no text")


def fails_with(which: str) -> tuple[str, Any]:
    """Let rank 1 fail in step 2, with something odd; return what this rank is told."""
    with pytest.raises(DeferredErrors) as raised:
        train_oddly(which)
    error: Any = raised.value.failures[1]
    return getattr(error, "where", ""), getattr(error, "step", None)


def train_oddly(which: str) -> None:
    import torch

    odd = {"path": Path("here"), "silent": Silent()}
    where: Any = odd.get(which, "x")
    number: Any = torch.tensor if which == "tensor" else int
    cls = type("E" * 10_000, (ValueError,), {}) if which == "name" else ValueError
    with Deferred(deadline=DEADLINE) as errs:
        for step in range(5):
            errs.step(number(step))
            all_reduce()
            if os.environ["RANK"] == "1" and step == 2:
                with errs.defer(where):
                    raise cls("odd")
            if errs.should_stop():
                break


@pytest.mark.parametrize("which", ["tensor", "path", "silent", "name"])
def test_odd_values_of_the_program_reach_the_peers(which: str) -> None:
    told, own = run_ranks(fails_with, 2, which)
    assert [told.status, own.status] == [0, 0], (told.output, own.output)
    wheres = {"path": "here", "silent": "<str() raised KeyError>"}
    assert told.value == (wheres.get(which, "x"), 2)


class Sealed(RuntimeError):
    """An error to which no note can be added."""

    __notes__ = ("sealed",)


def test_an_error_that_takes_no_note_is_still_what_is_raised() -> None:
    def leave() -> None:
        with Deferred() as errs:
            with errs.defer("metrics"):
                raise OSError("disk full")
            raise Sealed

    with pytest.raises(Sealed):
        leave()


# Errors when nobody would raise them any more.


def test_after_the_end_an_error_is_raised_at_once() -> None:
    with Deferred() as errs:
        pass
    with pytest.raises(OSError, match="in a scope"), errs.defer("late"):
        raise OSError("in a scope")
    with pytest.raises(OSError, match="captured"):
        errs.capture(OSError("captured"), "late")
    with pytest.raises(OSError, match="called"):
        errs.call(os.stat, "/called/but/not/there")
    assert not errs.pending


def test_after_a_failed_end_an_error_does_not_hide_it() -> None:
    errs = Deferred()
    with pytest.raises(DeferredErrors), errs, errs.defer("metrics"):
        raise OSError("disk full")
    with errs.defer("cleanup"):
        raise OSError("disk full again")
    assert errs.suppressed == 1


def test_a_future_that_fails_after_the_end_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from concurrent.futures import Future

    future: Future[None] = Future()
    with Deferred() as errs:
        pass
    errs.watch(future, "upload")
    future.set_exception(OSError("disk full"))
    assert "upload: OSError: disk full, which nobody raises" in caplog.text


def test_a_finished_one_is_not_used_again() -> None:
    errs = Deferred()
    with errs:
        pass
    with pytest.raises(RuntimeError, match="needs one of its own"), errs:
        raise AssertionError("entered")


FORGETS = {
    "object": "errs = Deferred()\nerrs.call(open, '/not/there')",
    "function": "try_or_defer(open, '/not/there')",
}


@pytest.mark.parametrize("style", FORGETS)
def test_a_program_that_forgets_to_finish_hears_of_it(style: str) -> None:
    program = f"from firstfault.deferred import *\n{FORGETS[style]}"
    said = subprocess.run(
        [sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, check=True
    ).stderr
    assert said.count("a deferred error was never raised") == 1
    assert "FileNotFoundError" in said.splitlines()[-1]


def asks_after_the_end(fails: bool) -> bool:
    errs = Deferred(deadline=DEADLINE)
    if fails and os.environ["RANK"] == "0":
        errs.capture(OSError("disk full"), "metrics")
    with contextlib.suppress(DeferredErrors):
        errs.finish()
    return errs.should_stop()


def test_should_stop_after_the_end_waits_for_nobody() -> None:
    assert [one.value for one in run_ranks(asks_after_the_end, 2, False)] == [False] * 2
    assert run_ranks(asks_after_the_end, 2, True)[0].value is True


def test_a_generator_cannot_be_guarded() -> None:
    def batches() -> Iterator[int]:
        yield 1

    async def later() -> AsyncIterator[int]:
        yield 1

    for function in batches, later:
        with pytest.raises(TypeError, match="is a generator, which runs where"):
            Deferred().guard("batches")(function)


# Ranks that do not count alike.


def asks_twice(names_steps: bool) -> str:
    """Call should_stop once more in each step of rank 1, and let rank 0 fail."""
    import torch
    import torch.distributed as dist

    try:
        with Deferred(deadline=DEADLINE) as errs:
            for step in range(20):
                if names_steps:
                    errs.step(step)
                all_reduce()
                if dist.get_rank() == 0 and step == 7:
                    errs.capture(OSError("disk full"), "metrics")
                if dist.get_rank() == 1:
                    errs.should_stop()
                if errs.should_stop():
                    break
            dist.all_reduce(torch.ones(1))  # To which the other one never comes.
    except (AgreementError, RuntimeError) as error:
        return f"{type(error).__name__}: {error} {getattr(error, '__notes__', '')}"
    return ""


def test_unequal_calls_are_noticed_before_the_closing_collective() -> None:
    told = run_ranks(asks_twice, 2, True, deadline=60)
    assert [one.status for one in told] == [0, 0], told
    reason = r"ranks 0, 1 called should_stop \d+ and \d+ times before step \d"
    assert any(re.search(f"AgreementError: {reason}", one.value) for one in told)
    assert "disk full" in told[0].value


def epochs(each: int) -> tuple[bool, list[int]]:
    """Number the steps of each epoch anew, or name each twice, and fail late."""
    import torch.distributed as dist

    errs = Deferred(deadline=DEADLINE)
    for count in range(40):
        errs.step(count % each if each else count // 2)
        all_reduce()
        if dist.get_rank() == 0 and count == 25:
            errs.capture(OSError("disk full"), "metrics")
        if errs.should_stop():
            break
    with pytest.raises(DeferredErrors) as raised:
        errs.finish()
    return count in (25, 26), sorted(raised.value.failures)


@pytest.mark.parametrize("each", [0, 1, 2, 10])
def test_any_numbering_of_steps_will_do(each: int) -> None:
    for one in run_ranks(epochs, 3, each):
        assert one.value == (True, [0]), one.output


# Forked children.


def forks(leaves_by: str) -> bool:
    """Fork in the block; let the child leave it, and train on."""
    import torch.distributed as dist

    child = -1
    with Deferred(deadline=DEADLINE) as errs:
        for step in range(5):
            all_reduce()
            if dist.get_rank() == 0 and step == 2:
                child = os.fork()
                if child == 0:
                    if leaves_by == "exit":
                        sys.exit(0)
                    break
                assert os.waitpid(child, 0)[1] == 0
            assert not errs.should_stop()
    if child == 0:
        # The group is the parent's: the child has left it alone.
        os._exit(0 if dist.is_initialized() else 1)
    return dist.is_initialized()


@pytest.mark.parametrize("leaves_by", ["exit", "break"])
def test_a_forked_child_takes_no_part_in_the_end(leaves_by: str) -> None:
    ranks = run_ranks(forks, 2, leaves_by, deadline=30)
    assert [rank.status for rank in ranks] == [0, 0], ranks
    assert [rank.value for rank in ranks] == [False, False]
    assert "could not be aborted" not in ranks[0].output


# A `Deferred` that is older than the process group.


def begins_before_the_group(directory: str) -> tuple[bool, bool]:
    import torch.distributed as dist

    errs = Deferred(deadline=DEADLINE)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(f"{directory}/store", world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    prepare(errs, f"{directory}/step.tmp")
    if rank == 1:
        with errs.defer("metadata"):
            raise OSError("disk full")
    saved = commit(errs, f"{directory}/step.tmp", f"{directory}/step")
    stops = errs.should_stop()
    with pytest.raises(DeferredErrors):
        errs.finish()
    return saved, stops


def test_one_older_than_the_group_stops_after_a_failed_commit(tmp_path: Path) -> None:
    ranks = run_ranks(begins_before_the_group, 2, str(tmp_path), group=False)
    assert [rank.value for rank in ranks] == [(False, True)] * 2, ranks


# Scopes that never all end.


def test_scopes_of_tasks_that_overlap_for_ever_are_not_kept() -> None:
    async def overlap(errs: Deferred) -> int:
        before = asyncio.Event()
        before.set()

        async def task(start: asyncio.Event, end: asyncio.Event) -> None:
            with errs.defer("task"):
                start.set()
                await end.wait()

        tasks = []
        ends = [asyncio.Event() for _ in range(101)]
        for number in range(101):
            started = asyncio.Event()
            tasks.append(asyncio.create_task(task(started, ends[number])))
            await started.wait()
            if number:
                ends[number - 1].set()
                await tasks[number - 1]
        scope: Any = next(iter(open_scopes.values()))
        depth = 0
        while scope is not None:
            scope, depth = scope._outer, depth + 1
        ends[-1].set()
        await tasks[-1]
        return depth

    assert asyncio.run(overlap(Deferred())) == 1
    assert not open_scopes
