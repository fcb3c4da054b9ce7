"""The harness that all tests of process groups rely on."""

import os
import signal
import threading

import pytest

from process_groups import process_ids, run_ranks


def summed(number: int) -> tuple[int, float]:
    """Sum over all ranks."""
    import torch
    import torch.distributed as dist

    tensor = torch.ones(1) * number
    dist.all_reduce(tensor)
    return dist.get_rank(), tensor.item()


@pytest.mark.parametrize("store", ["rank 0", "agent"])
def test_ranks_form_a_group(store: str) -> None:
    ranks = run_ranks(summed, 3, 7, store=store)
    assert [rank.status for rank in ranks] == [0, 0, 0], ranks
    assert [rank.value for rank in ranks] == [(0, 21.0), (1, 21.0), (2, 21.0)]


def leaves_in_its_own_way() -> None:
    """Raise, exit, or be killed."""
    import atexit

    rank = int(os.environ["RANK"])
    atexit.register(print, "at exit", rank)
    match rank:
        case 0:
            raise ValueError("loss is nan")
        case 1:
            raise SystemExit(7)
        case 2:
            os.kill(process_ids()["2"], signal.SIGKILL)


@pytest.mark.parametrize("finalize", [False, True])
def test_each_end_is_told(finalize: bool) -> None:
    ranks = run_ranks(leaves_in_its_own_way, 3, group=False, finalize=finalize)
    assert [rank.status for rank in ranks] == [1, 7, -signal.SIGKILL]
    assert "ValueError: loss is nan" in ranks[0].output
    assert ["at exit" in rank.output for rank in ranks] == [True, True, False]


def hangs_on_one() -> None:
    """Wait for ever on rank 1."""
    if os.environ["RANK"] == "1":
        threading.Event().wait()


def test_a_hang_is_shown_and_ended() -> None:
    with pytest.raises(AssertionError, match=r"(?s)rank 1: hangs.*hangs_on_one"):
        run_ranks(hangs_on_one, 2, group=False, deadline=5)
