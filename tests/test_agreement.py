"""Ranks of a real process group agree on the call at which all stop."""

from __future__ import annotations

from process_groups import run_ranks

LOOP = 6


def train(failing: dict[int, int]) -> tuple[int, int | None]:
    """Loop with a collective; these ranks fail in these steps. Return calls and stop."""
    import torch
    import torch.distributed as dist

    from firstfault.deferred._agreement import Agreement

    agreement = Agreement.start()
    rank = dist.get_rank()
    for step in range(1, LOOP + 1):
        dist.all_reduce(torch.ones(1))
        if failing.get(rank) == step:
            agreement.announce()
        if agreement.should_stop():
            assert agreement.should_stop(), "sticky"
            break
    agreement.finished()
    dist.barrier()
    agreement.close()
    dist.destroy_process_group()
    return step, agreement.stop_step


def test_smoke() -> None:
    ranks = run_ranks(train, 3, {1: 3})
    print(ranks)
    assert [rank.status for rank in ranks] == [0, 0, 0]
