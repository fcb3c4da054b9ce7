"""The flag that a collective reduces at each call of `sync_should_stop`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from firstfault.deferred import (
    _flag,
    has_deferred_error,
    raise_if_deferred_error,
    sync_should_stop,
    try_or_defer,
)
from process_groups import run_ranks

CALLS = 6


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    _flag.reset()
    yield
    _flag.reset()


def flags(raised: list[tuple[int, int]], every: int) -> list[bool]:
    """Return what each call returns; these ranks raise the flag at these calls only."""
    import torch.distributed as dist

    _flag.reset()
    rank = dist.get_rank()
    return [
        sync_should_stop((rank, call) in raised, every=every) for call in range(CALLS)
    ]


def all_flags(jobs: list[tuple[list[tuple[int, int]], int]]) -> list[list[bool]]:
    """Return the flags of several loops."""
    return [flags(raised, every) for raised, every in jobs]


def test_it_is_a_boolean_all_reduce_at_that_call() -> None:
    jobs = [([(rank, call)], 1) for rank in range(3) for call in range(CALLS)]
    jobs += [([], 1), ([(0, 2), (1, 2)], 1), ([(0, 4), (1, 3)], 1)]
    for rank in run_ranks(all_flags, 3, jobs):
        assert rank.status == 0, rank
        for (raised, _), stops in zip(jobs, rank.value, strict=True):
            first = min((call for _, call in raised), default=CALLS)
            # That very call, and sticky from there.
            assert stops == [call >= first for call in range(CALLS)], raised


@pytest.mark.parametrize(("call", "first"), [(0, 2), (1, 2), (2, 2), (3, 5), (5, 5)])
def test_every_third_call_reduces_and_no_flag_is_lost(call: int, first: int) -> None:
    for rank in run_ranks(flags, 2, [(1, call)], 3):
        assert rank.value == [number >= first for number in range(CALLS)]


def by_group() -> tuple[bool, bool, bool]:
    """Raise the flag in a subgroup only, and after its group is gone."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _get_default_store

    rank, size, store = dist.get_rank(), dist.get_world_size(), _get_default_store()
    part = dist.new_group([0, 1])
    raised = rank < 2 and sync_should_stop(rank == 0, group=part)
    everywhere = sync_should_stop(False)
    sync_should_stop(True)
    dist.destroy_process_group()
    again = dist.PrefixStore("again", store)
    dist.init_process_group("gloo", store=again, rank=rank, world_size=size)
    return raised, everywhere, sync_should_stop(False)


def test_groups_have_flags_of_their_own() -> None:
    ranks = run_ranks(by_group, 3, store="agent")
    assert [rank.value for rank in ranks] == [
        (True, False, False),
        (True, False, False),
        (False, False, False),
    ], ranks


def trains_by_functions(culprit: int, at: int) -> None:
    """Train in the function style; one rank fails in this step."""
    import torch
    import torch.distributed as dist

    for step in range(CALLS):
        dist.all_reduce(torch.ones(1))
        if dist.get_rank() == culprit and step == at:
            try_or_defer(open, "/nowhere/metadata.json", "w")
        if sync_should_stop(has_deferred_error()):
            print("stopped at", step)
            break
    dist.destroy_process_group()
    raise_if_deferred_error()
    assert not sync_should_stop(False)


@pytest.mark.parametrize(("culprit", "at"), [(0, 0), (1, 2), (2, CALLS - 1)])
def test_the_function_style_raises_only_where_it_failed(culprit: int, at: int) -> None:
    for rank, one in enumerate(run_ranks(trains_by_functions, 3, culprit, at)):
        assert f"stopped at {at}\n" in one.output
        assert one.status == int(rank == culprit)
        error = "FileNotFoundError: [Errno 2] No such file or directory"
        last = one.output.rstrip().rpartition("\n")[2]
        assert last.startswith(error) == (rank == culprit), one.output


def test_alone_in_a_group_it_is_the_local_flag() -> None:
    [rank] = run_ranks(flags, 1, [(0, 2)], 1)
    assert rank.value == [False, False, True, True, True, True]


def test_without_a_group_it_is_the_local_flag() -> None:
    assert not sync_should_stop(False)
    assert sync_should_stop(True, every=5)
    assert sync_should_stop(False), "sticky"
    _flag.reset()
    assert not sync_should_stop(False)


def test_every_is_a_positive_number() -> None:
    with pytest.raises(ValueError, match="every is 0"):
        sync_should_stop(False, every=0)
