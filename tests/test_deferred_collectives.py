"""Collectives in a deferring scope, on real ranks: noticed, and never deferred."""

import os
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from firstfault.deferred import CollectiveInScopeError, Deferred, try_or_defer
from process_groups import process_ids, run_ranks

HERE = Path(__file__).name


def all_reduce(size: int = 8) -> None:
    """Do what a training step does."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(size))


def warned(errs: Deferred, act: Any, where: str = "metrics") -> list[str]:
    """Return the warnings of three scopes in which the same is done."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            with errs.defer(where):
                act()
    return [str(warning.message) for warning in caught]


def by_function() -> dict[str, list[str]]:
    """Issue collectives, and what is none, by the functions of torch.distributed."""
    import torch
    import torch.distributed as dist

    errs = Deferred()
    other: Any = dist.new_group()

    def gather() -> None:
        objects: list[Any] = [None, None]
        dist.all_gather_object(objects, "x")

    def on_other_group() -> None:
        dist.all_reduce(torch.ones(1), group=other)

    def none() -> None:
        dist.get_rank()
        dist.get_world_size()
        dist.get_backend()

    acts = {
        "all_reduce": all_reduce,
        "all_gather_object": gather,
        "other group": on_other_group,
        "none": none,
        "barrier": dist.barrier,
    }
    found = {name: warned(errs, act, name) for name, act in acts.items()}
    assert not errs.pending
    return found


def test_a_collective_in_a_scope_is_warned_of_once_with_its_place() -> None:
    for rank in run_ranks(by_function, 2):
        assert rank.status == 0, rank.output
        found = rank.value
        assert found.pop("none") == []
        for name, (warning,) in found.items():
            assert f'in the deferring scope "{name}", ' in warning
            assert f"{HERE}:" in warning
        assert found["all_reduce"][0].startswith("all_reduce in the ")
        assert " in all_reduce: " in found["all_reduce"][0]
        assert found["all_gather_object"][0].startswith("all_gather_object in ")
        assert found["other group"][0].startswith("all_reduce in the ")


def in_native_code() -> list[str]:
    """Issue collectives as DistributedDataParallel does, from C++."""
    import torch

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    errs = Deferred()
    return warned(errs, lambda: model(torch.ones(2, 4)).sum().backward())


def test_a_collective_of_native_code_is_seen_by_the_groups_number() -> None:
    for rank in run_ranks(in_native_code, 2):
        assert rank.status == 0, rank.output
        (warning,) = rank.value
        assert warning.startswith('a collective was issued in the deferring scope "met')
        assert f"{HERE}:" in warning
        assert " in warned: " in warning


def with_threads() -> bool:
    """Issue collectives on the main thread while another has a scope open."""
    errs = Deferred()
    opened, done = threading.Event(), threading.Event()

    def save() -> None:
        with errs.defer("save"):
            opened.set()
            done.wait()
            raise ValueError("disk")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        thread = threading.Thread(target=save)
        thread.start()
        opened.wait()
        all_reduce()
        done.set()
        thread.join()
    return isinstance(errs.first, ValueError)


def test_the_trunks_collectives_are_not_those_of_a_scope_in_a_thread() -> None:
    assert [rank.value for rank in run_ranks(with_threads, 2)] == [True, True]


def strictly() -> list[str]:
    """Issue collectives where that is an error, and meet the peer afterwards."""
    import torch
    import torch.distributed as dist

    errs = Deferred(strict=True)
    texts = []
    group: Any = dist.group.WORLD
    for act in (all_reduce, lambda: group.allreduce([torch.ones(1)]).wait()):
        with pytest.raises(CollectiveInScopeError) as raised, errs.defer("metrics"):
            act()
        texts.append(str(raised.value))
    assert not errs.pending
    before = group._get_sequence_number_for_group()
    with pytest.raises(CollectiveInScopeError), errs.defer("metrics"):
        all_reduce()
    assert group._get_sequence_number_for_group() == before, "it was issued"
    all_reduce()
    return texts


def test_with_strict_it_is_an_error_before_anything_is_issued() -> None:
    for rank in run_ranks(strictly, 2):
        assert rank.status == 0, rank.output
        by_function, by_method = rank.value
        assert by_function.startswith('all_reduce in the deferring scope "metrics"')
        assert by_method.startswith("a collective was issued in the deferring scope")


def meets_a_peer_that_dies() -> str:
    """Lose the peer in a collective of a scope: gloo raises a plain RuntimeError."""
    import signal

    errs = Deferred()
    all_reduce()
    if os.environ["RANK"] == "1":
        os.kill(process_ids()["1"], signal.SIGKILL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError) as raised, errs.defer("metrics"):
            all_reduce()
        assert type(raised.value) is RuntimeError
        with pytest.raises(RuntimeError):
            try_or_defer(all_reduce)
    assert not errs.pending
    return str(raised.value)


def test_the_error_of_a_collective_is_raised_at_once() -> None:
    alive, dead = run_ranks(meets_a_peer_that_dies, 2)
    assert dead.status == -9
    assert "peer" in alive.value or "pipe" in alive.value, alive.output


def all_reduce_and_fail(group: Any = None) -> None:
    """Fail by an error of one's own, after a collective."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(1), group=group)
    raise ZeroDivisionError


def fails_of_itself() -> bool:
    """Fail in a scope by an error of one's own, after a collective in it."""
    import torch.distributed as dist

    errs = Deferred()
    other = dist.new_group()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for group in None, other:
            with pytest.raises(ZeroDivisionError), errs.defer("metrics"):
                all_reduce_and_fail(group)
    with errs.defer("metrics"):
        raise ValueError("without a collective")
    return errs.suppressed == 0 and errs.pending


def test_whatever_fails_after_a_collective_in_the_scope_is_raised_at_once() -> None:
    # On both ranks alike: nobody is left waiting.
    assert [rank.value for rank in run_ranks(fails_of_itself, 2)] == [True, True]


def in_a_group_of_one() -> tuple[bool, bool, bool]:
    """Stop alone, and finish."""
    errs = Deferred()
    before = errs.should_stop()
    with errs.defer("metadata"):
        raise ValueError("disk")
    after = errs.should_stop()
    with pytest.raises(ExceptionGroup) as raised:
        errs.finish()
    return before, after, raised.value.exceptions == (errs.first,)


def test_a_world_of_one_rank_stops_alone() -> None:
    (rank,) = run_ranks(in_a_group_of_one, 1)
    assert rank.value == (False, True, True), rank.output


def leaves_well() -> None:
    """Leave by ``SystemExit(0)`` from a scope, with nothing pending."""
    errs = Deferred()
    with errs.defer("metadata"):
        raise SystemExit(0)


def test_an_exit_from_a_scope_leaves_at_once() -> None:
    assert [rank.status for rank in run_ranks(leaves_well, 2)] == [0, 0]
