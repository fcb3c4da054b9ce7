"""A rank of a training job whose local work fails: ``deferring.py WHAT``.

Of 24 steps, step 17 is the one in which rank 0 cannot write its metadata, because the
disk is full. WHAT is ``full``; ``both`` (rank 2 too); ``crash`` (rank 0 dies of a
segmentation fault before anybody has stopped); ``kill`` (of SIGKILL); ``leave`` (it
leaves main by an error of its own).
"""

import ctypes
import os
import signal
import sys

from firstfault import record
from firstfault.deferred import Deferred

STEPS = 24
FAILING = 17


def write_metadata(step: int) -> None:
    """Write to a disk that is full at one step."""
    with open("/dev/full" if step == FAILING else os.devnull, "w") as file:
        file.write(f"step {step}")


def fail_otherwise(what: str) -> None:
    """End this rank as it is told to."""
    if what == "crash":
        ctypes.string_at(0)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "leave":
        raise ValueError("loss is nan")


@record
def main() -> None:
    """Train."""
    import torch
    import torch.distributed as dist

    what = sys.argv[1]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with Deferred(deadline=8.0) as errs:
        for step in range(STEPS):
            errs.step(step)
            if rank == 0 or (rank == 2 and what == "both"):
                with errs.defer("metadata"):
                    write_metadata(step)
            if rank == 0 and step == FAILING:
                fail_otherwise(what)
            dist.all_reduce(torch.ones(8))
            if errs.should_stop():
                print(f"stopped at step {step}", flush=True)
                break


if __name__ == "__main__":
    main()
