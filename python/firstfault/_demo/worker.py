"""The demo's training script: what a user's own looks like, with one fault planted."""

from __future__ import annotations

import sys
from datetime import timedelta

import firstfault
from firstfault import record
from firstfault._demo.faults import FAULTS

FAULTY_RANK = 2
FAULTY_STEP = 3
STEPS = 10


def train_step(rank: int, step: int, fault: str) -> None:
    """Do one step: something local, then a collective that all ranks take part in."""
    import torch
    import torch.distributed as dist

    firstfault.step(step)
    if rank == FAULTY_RANK and step == FAULTY_STEP:
        FAULTS[fault]()
    dist.all_reduce(torch.ones(1024))


@record
def main() -> None:
    """Train for a few steps on gloo."""
    import torch.distributed as dist

    # Short, so that the demo of a rank that hangs ends soon.
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    for step in range(STEPS):
        train_step(dist.get_rank(), step, sys.argv[1])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
