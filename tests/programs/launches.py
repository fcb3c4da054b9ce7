"""A parent and its workers: ``launches.py STYLE DIRECTORY [ENDING]``.

The styles are torchelastic's ``start_processes`` with functions (``spawn``, ``fork``)
and with a program (``binary``), its ``elastic_launch`` of a function (``elastic``),
and ``torch.multiprocessing`` (``mp_spawn``, ``mp_fork``). Rank 1 ends by ENDING. The
parent is decorated and passes its children's failure on.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from firstfault import ChildFailedError, record


@record
def worker(rank: int, ending: str) -> str:
    """End this rank."""
    if rank == 0:
        return "fine"
    if ending == "raise":
        try:
            raise FileNotFoundError("shard 7")
        except FileNotFoundError as e:
            raise ValueError("no data") from e
    if ending == "exit":
        sys.exit(7)
    if ending == "text":
        sys.exit("config file is missing")
    if ending == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    if ending == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return "fine"


def start(style: str, directory: str, ending: str) -> dict[int, str]:
    """Run two workers by torchelastic, and raise their failure."""
    from torch.distributed.elastic.multiprocessing import (
        DefaultLogsSpecs,
        start_processes,
    )

    arguments: dict[int, tuple[Any, ...]] = {rank: (rank, ending) for rank in (0, 1)}
    entrypoint: Any = worker
    if style == "binary":
        entrypoint = sys.executable
        arguments = {r: (__file__, "worker", str(r), ending) for r in (0, 1)}
    context = start_processes(
        "worker",
        entrypoint,
        arguments,
        {rank: {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in (0, 1)},
        DefaultLogsSpecs(log_dir=directory),
        start_method="spawn" if style == "binary" else style,
    )
    try:
        result = context.wait(timeout=60, period=0.05)
    finally:
        context.close()
    if result.is_failed():
        raise ChildFailedError("worker", result.failures)
    values: dict[int, str] = result.return_values
    return values


def launch(directory: str, ending: str) -> dict[int, str]:
    """Run two workers by an agent in this process, as a notebook or an API does."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id="job",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        start_method="fork",
        logs_specs=DefaultLogsSpecs(log_dir=directory),
    )
    values: dict[int, str] = elastic_launch(config, worker_of_agent)(ending)
    return values


def worker_of_agent(ending: str) -> str | None:
    """Do as `worker`, as the rank that the agent assigned."""
    return worker(int(os.environ["RANK"]), ending)


@record
def main(style: str, directory: str, ending: str = "raise") -> None:
    """Run the workers."""
    if style == "elastic":
        print(launch(directory, ending))
    elif style.startswith("mp_"):
        import torch.multiprocessing as mp

        mp.start_processes(
            worker_of_rank, args=(ending,), nprocs=2, start_method=style[3:]
        )
    else:
        print(start(style, directory, ending))


def worker_of_rank(rank: int, ending: str) -> None:
    """Do as `worker`, after rank 0; some such programs set the rank, some do not."""
    if "SET_RANK" in os.environ:
        os.environ["RANK"] = str(rank)
    time.sleep(0.2 * rank)
    worker(rank, ending)


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        worker(int(sys.argv[2]), sys.argv[3])
    elif sys.argv[1] == "agent":
        # What torchrun is: torch's own decorator around a launcher of workers.
        from torch.distributed.elastic.multiprocessing.errors import (
            record as torch_record,
        )

        torch_record(start)("binary", *sys.argv[2:])
    elif sys.argv[1] == "launcher":
        import subprocess

        from firstfault import ProcessFailure

        @record
        def launcher(directory: str, ending: str) -> None:
            """Run an agent with an error file of its own."""
            path = str(Path(directory) / "agent.json")
            agent = subprocess.run(
                [sys.executable, __file__, "agent", directory, ending],
                env=os.environ | {"TORCHELASTIC_ERROR_FILE": path},
                check=False,
            )
            failure = ProcessFailure(0, 1, agent.returncode, path)
            raise ChildFailedError("agent", {0: failure})

        launcher(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
