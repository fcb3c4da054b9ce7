"""A training loop with deferred errors: ``torchrun deferred_training.py DIRECTORY``.

Each step does local work before and after its collectives. When some of it fails on one
rank, all ranks stop at the end of the same step, walk through the closing code, which
has a collective in it, and raise the same error.

The environment says what fails, for tests: ``FAIL=where:rank:step``.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from firstfault import record
from firstfault.deferred import Deferred, training_run

EPOCHS, STEPS = 3, 10


def fail_at(where: str, step: int) -> None:
    """Fail if this is the place, the rank and the step that were asked for."""
    wanted = os.environ.get("FAIL", "::").split(":")
    if [where, str(dist.get_rank()), str(step)] == wanted:
        raise OSError(28, "No space left on device", f"{where}.json")


def train(errs: Deferred, directory: Path) -> None:
    """Train; every way out of the loops leads through the closing code."""
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step, losses = 0, torch.zeros(1)
    for _epoch in range(EPOCHS):
        for _ in range(STEPS):
            step += 1
            errs.step(step)
            # Before the collectives of this step: a rank that fails here takes part
            # in them all the same.
            with errs.defer("augment"):
                fail_at("augment", step)
            loss = model(torch.randn(4, 8)).square().mean()
            loss.backward()  # all-reduces the gradients
            optimizer.step()
            optimizer.zero_grad()
            losses += loss.detach()
            # After them: rank 0 alone writes and uploads.
            if dist.get_rank() == 0:
                with errs.defer("metrics"):
                    fail_at("metrics", step)
                    (directory / "metrics").write_text(f"{step} {loss.item()}\n")
            if errs.should_stop():
                break
        # The outer loop has to stop too; from then on this is always True.
        if errs.should_stop():
            break
    # Closing code: no rank returned early, so all of them get here.
    dist.all_reduce(losses)
    with errs.defer("summary"):
        fail_at("summary", step)
        if dist.get_rank() == 0:
            (directory / "summary").write_text(f"{step} {losses.item()}\n")
    (directory / f"stopped_{dist.get_rank()}").write_text(str(step))


@record
def main(directory: str) -> None:
    """Run this rank."""
    dist.init_process_group("gloo")
    with training_run() as errs:
        train(errs, Path(directory))


if __name__ == "__main__":
    main(*sys.argv[1:])
