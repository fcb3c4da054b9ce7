"""One rank of a small training job, with planted faults; the launcher gives the plan.

Stages follow one another as in any training: configuration, process group, model,
data, steps, a checkpoint by rank 0, the end. A plant names a fault, its ranks and the
stage. What is planted is noted in `truth` when it happens, so that the label does not
depend on how torchrun numbers its nodes.
"""

import json
import os
import socket
from datetime import timedelta
from pathlib import Path

TRUTH = Path("/srv/truth")
PLAN = json.loads((TRUTH / "plan.json").read_text())
RANK = int(os.environ["RANK"])
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def note(fault):
    """Write down who is about to fail, for the label."""
    truth = {
        "fault": fault,
        "rank": RANK,
        "local_rank": int(os.environ["LOCAL_RANK"]),
        "node": socket.gethostname(),
        "attempt": ATTEMPT,
    }
    new = TRUTH / f"{fault}.{RANK}.{ATTEMPT}.new"
    new.write_text(json.dumps(truth))
    new.rename(new.with_suffix(".json"))


def plant(stage):
    """Let what is planted at this stage happen; return what the fault returns."""
    for fault, ranks, where, attempts in PLAN["plants"]:
        concerned = ranks == "all" or RANK in ranks
        if concerned and where == stage and (attempts == "all" or ATTEMPT in attempts):
            import faults_leaving
            import faults_settings
            import faults_waiting

            import faults

            note(fault)
            modules = faults_leaving, faults_settings, faults_waiting, faults
            [found] = [vars(each)[fault] for each in modules if fault in vars(each)]
            return found()
    return None


plant("import")

import torch  # noqa: E402, TID253
import torch.distributed as dist  # noqa: E402, TID253
from torch.utils.data import DataLoader, Dataset  # noqa: E402, TID253

if PLAN["recorder"] == "firstfault":
    from firstfault import record
elif PLAN["recorder"] == "torch":
    from torch.distributed.elastic.multiprocessing.errors import record
else:

    def record(function):
        """Return the function: nothing is recorded."""
        return function


class Samples(Dataset):
    """Pairs of numbers, read by DataLoader workers where the plan has them."""

    def __len__(self):
        """Return how many there are."""
        return 256

    def __getitem__(self, index):
        """Return one sample and its target."""
        if index >= 40:
            plant("data")
        generator = torch.Generator().manual_seed(index)
        return torch.randn(8, generator=generator), torch.randn(1, generator=generator)


def train(model, loader):
    """Go through the steps; a checkpoint is written after every fourth."""
    for step, (inputs, targets) in enumerate(loader):
        outcome = plant(f"step {step}")
        if outcome == "leave":
            return
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        average(model, outcome)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
        if RANK == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step % 4 == 3:
            save(model, step)
        if step + 1 == PLAN["steps"]:
            return


def average(model, outcome):
    """Average the gradients over all ranks, unless this rank does something else."""
    parameters = list(model.parameters())
    if outcome == "swapped":
        parameters.reverse()
    for number, parameter in enumerate(parameters):
        first = number == 0
        if first and outcome == "skip":
            continue
        if first and outcome == "broadcast":
            dist.broadcast(parameter.grad, src=0)
            continue
        if first and outcome == "shape":
            dist.all_reduce(parameter.grad.repeat(100, 1))
            continue
        if first and outcome == "gather":
            dist.all_gather_object([None] * dist.get_world_size(), {"step": number})
        if first and outcome == "receive":
            dist.recv(parameter.grad, src=0)
        if first and outcome == "twice":
            dist.all_reduce(parameter.grad)
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def save(model, step):
    """Let rank 0 write a checkpoint, and the others wait for it."""
    if PLAN.get("sharded"):
        import torch.distributed.checkpoint as dcp

        plant("checkpoint")
        dcp.save(
            {"model": model.state_dict(), "rank": torch.ones(2000) * RANK},
            checkpoint_id="/srv/scratch/sharded",
        )
        return
    if RANK == 0:
        plant("checkpoint")
        torch.save(model.state_dict(), f"/srv/ckpt-{step}.pt")
    dist.barrier()


@record
def main():
    """Train, in the stages that faults are planted at."""
    plant("config")
    timeout = timedelta(seconds=PLAN["timeout"])
    dist.init_process_group("gloo", timeout=timeout)
    plant("init")
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
    model = torch.nn.Sequential(*layers)
    loader = DataLoader(
        Samples(),
        batch_size=8,
        num_workers=PLAN.get("data_workers", 0),
        timeout=PLAN.get("data_timeout", 0),
    )
    plant("build")
    train(model, loader)
    plant("end")
    dist.barrier()
    dist.destroy_process_group()
    plant("teardown")


if __name__ == "__main__":
    if "catch" in PLAN:
        import faults_leaving

        faults_leaving.caught(main, PLAN["catch"])
    else:
        main()
