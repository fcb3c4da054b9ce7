"""FSDP2 with checkpoints that are complete or absent, tracked by MLflow if it is there.

``torchrun deferred_checkpoint.py DIRECTORY``: a checkpoint every fourth step and at the
end, by ``torch.distributed.checkpoint``; a failed save leaves the one before it.

The environment says what fails, for tests: ``FAIL=phase:rank:step``. With ``TRACK``,
the address of an MLflow store, the run is tracked.
"""

import json
import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from firstfault import record
from firstfault.deferred import Deferred, commit, prepare, purge, training_run

STEPS, EVERY = 20, 4


def fail_at(phase: str, step: int) -> None:
    """Fail if this is the phase, the rank and the step that were asked for."""
    wanted = os.environ.get("FAIL", "::").split(":")
    if [phase, str(dist.get_rank()), str(step)] == wanted:
        raise OSError(28, "No space left on device", f"{phase}.json")


class Full(dcp.FileSystemWriter):
    """A writer of state whose disk is full at the step that was asked for."""

    def __init__(self, path: Path, step: int) -> None:
        super().__init__(path)
        self._at = step

    def write_data(self, plan: object, planner: object) -> object:
        """Write this rank's shards."""
        fail_at("state", self._at)
        return super().write_data(plan, planner)


def save(
    errs: Deferred,
    root: Path,
    step: int,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Save one step; every rank takes the same way through it."""
    final, tmp = root / f"step_{step}", root / f"step_{step}.tmp"
    if not prepare(errs, tmp):
        return
    # Collective: what fails here fails on every rank, and is raised at once.
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, storage_writer=Full(tmp, step))
    if dist.get_rank() == 0:
        with errs.defer("metadata"):
            fail_at("metadata", step)
            (tmp / "run.json").write_text(json.dumps({"step": step}))
    if commit(errs, tmp, final):
        purge(errs, [path for path in root.glob("step_*") if path != final])


def train(errs: Deferred, root: Path) -> None:
    """Train with sharded parameters."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    step = 0
    while step < STEPS:
        step += 1
        errs.step(step)
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % EVERY == 1 or step == STEPS:
            save(errs, root, step, model, optimizer)
        if errs.should_stop():
            break
    (root / f"stopped_{dist.get_rank()}").write_text(str(step))


def track() -> AbstractContextManager[object]:
    """Return the tracker's context; only rank 0 calls this."""
    import mlflow

    from firstfault.integrations.mlflow import run

    mlflow.set_tracking_uri(os.environ["TRACK"])
    return run()


@record
def main(directory: str) -> None:
    """Run this rank."""
    dist.init_process_group("gloo")
    with training_run(tracker=track if "TRACK" in os.environ else None) as errs:
        train(errs, Path(directory))


if __name__ == "__main__":
    main(*sys.argv[1:])
