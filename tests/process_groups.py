"""Real gloo groups of a few processes, forked from one server that has torch already.

A group of four starts in a tenth of a second that way. A test hands a function of its
module to `run_ranks`, which runs it on every rank inside an initialized process group
and says how each ended::

    def stops(step: int) -> int:        # at module level: a rank imports it by name
        import torch.distributed as dist
        ...
        return calls                    # whatever pickles

    def test_all_stop() -> None:
        ranks = run_ranks(stops, 3, 17)  # three ranks, each calls stops(17)
        assert [rank.status for rank in ranks] == [0, 0, 0]
        assert {rank.value for rank in ranks} == {18}

A rank ends as a script does: its threads are joined and `atexit` runs. Its status is
the number that `sys.exit` had, 1 after an exception, negative after a signal; what it
printed is in `output`, and the traceback is the last of it. With `finalize=True` the
interpreter is finalized too, which takes most of the time that a rank takes at all.

No rank may ever hang: when the deadline passes, the stacks of all threads of all ranks
are the text of the `AssertionError`, and all are killed. A test that wants a hang
passes `may_hang=True` and looks at `hung`. A rank may do to others what it likes: the
process IDs of all ranks, and of the store's host, are in `process_ids`.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import functools
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

DEADLINE = 100.0
"""Seconds that a job may take where a test does not say; the machine may be busy."""

STACKS = 5.0
"""Seconds that ranks have for the dump of their stacks when the deadline has passed."""


@dataclass(frozen=True)
class Rank:
    """How one rank ended."""

    status: int | None
    """Its exit status; negative the signal; None where it was killed by us."""
    value: Any
    """What its function returned; None where it did not return."""
    output: str
    """What it wrote to stdout and stderr."""

    @property
    def hung(self) -> bool:
        """Whether it was still there at the deadline."""
        return self.status is None


def run_ranks(
    work: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    store: str = "rank 0",
    env: Mapping[str, str] | None = None,
    deadline: float = DEADLINE,
    may_hang: bool = False,
    group: bool = True,
    finalize: bool = False,
    port: int = 0,
) -> list[Rank]:
    """Run `work(*arguments)` on every rank of a new job and return how each ended.

    The store is hosted by "rank 0", as under srun, or by an "agent", a process of its
    own, as under torchrun; by default on any free port. Without `group` no process
    group is made. `env` is set in every rank, before anything of torch.distributed is.
    """
    with tempfile.TemporaryDirectory(prefix="ranks.") as directory:
        plan = {
            "RANKS_DIRECTORY": directory,
            "RANKS_GROUP": str(int(group)),
            "RANKS_FINALIZE": str(int(finalize)),
            **(env or {}),
        }
        job = _Job(Path(directory), world_size, store, plan)
        try:
            job.start(work, arguments, port)
            hung = job.join(deadline)
            stacks = job.stacks(hung) if hung else ""
        finally:
            job.kill()
        if hung and not may_hang:
            raise AssertionError(
                f"ranks {hung} of {world_size} did not end in {deadline} s\n{stacks}"
            )
        return [job.ended(rank, rank in hung) for rank in range(world_size)]


def process_ids() -> dict[str, int]:
    """Return, inside a rank, the process IDs of the job: "0", "1", …, "agent"."""
    directory = Path(os.environ["RANKS_DIRECTORY"])
    return {path.stem: int(path.read_text()) for path in directory.glob("*.pid")}


@functools.cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["torch", "torch.distributed", "pytest", "process_groups"]
    )
    return context


class _Job:
    def __init__(
        self,
        directory: Path,
        world_size: int,
        store: str,
        plan: dict[str, str],
    ) -> None:
        self._directory = directory
        self._world_size = world_size
        self._store = store
        self._plan = plan
        self._ranks: list[Any] = []
        self._agent: Any = None

    def start(
        self, work: Callable[..., Any], arguments: tuple[Any, ...], port: int
    ) -> None:
        # Everybody connects to a socket that listens already, whoever will serve it.
        with socket.create_server(("127.0.0.1", port), backlog=128) as listener:
            port = listener.getsockname()[1]
            if self._store == "agent":
                self._agent = self._process("agent", _serve, listener, port)
            for rank in range(self._world_size):
                serves = listener if self._store == "rank 0" and rank == 0 else None
                job = (serves, port, self._environment(rank), work, arguments)
                self._ranks.append(self._process(str(rank), _rank, *job))

    def _environment(self, rank: int) -> dict[str, str]:
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self._world_size),
            "LOCAL_WORLD_SIZE": str(self._world_size),
            "OMP_NUM_THREADS": "1",
            **self._plan,
        }

    def _process(self, name: str, target: Callable[..., None], *arguments: Any) -> Any:
        process = _context().Process(
            target=target, args=(self._directory / name, *arguments), daemon=True
        )
        process.start()
        (self._directory / f"{name}.pid").write_text(str(process.pid))
        return process

    def join(self, deadline: float) -> list[int]:
        """Wait for the ranks; return those that are still there at the deadline."""
        end = time.monotonic() + deadline
        waiting = {process.sentinel: rank for rank, process in enumerate(self._ranks)}
        while waiting and (left := end - time.monotonic()) > 0:
            for sentinel in wait(list(waiting), timeout=left):
                del waiting[sentinel]
        return sorted(waiting.values())

    def stacks(self, hung: list[int]) -> str:
        """Return the output of all ranks, with the stacks of those that hang."""
        for rank in hung:
            # One that is stopped writes when it is let go.
            for number in signal.SIGUSR1, signal.SIGCONT:
                os.kill(self._ranks[rank].pid, number)
        end = time.monotonic() + STACKS
        while time.monotonic() < end and not all(
            "most recent call first" in self._output(rank) for rank in hung
        ):
            time.sleep(0.05)
        return "\n".join(
            f"--- rank {rank}: {'hangs' if rank in hung else process.exitcode}\n"
            f"{self._output(rank)}"
            for rank, process in enumerate(self._ranks)
        )

    def kill(self) -> None:
        """End whatever is left of the job."""
        for process in [*self._ranks, *([self._agent] if self._agent else [])]:
            process.kill()
            process.join()

    def ended(self, rank: int, hung: bool) -> Rank:
        value = self._directory / f"{rank}.value"
        return Rank(
            None if hung else self._ranks[rank].exitcode,
            pickle.loads(value.read_bytes()) if value.exists() else None,
            self._output(rank),
        )

    def _output(self, rank: int) -> str:
        path = self._directory / f"{rank}.output"
        return path.read_text(errors="replace") if path.exists() else ""


def _own_output(path: Path) -> None:
    """Give this process files of its own, and a signal that dumps its stacks."""
    output = os.open(f"{path}.output", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in 1, 2:
        os.dup2(output, number)
    os.close(output)
    for name in "stdout", "stderr":
        stream = os.fdopen(1, "w", buffering=1, closefd=False, errors="replace")
        setattr(sys, name, stream)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)


def _serve(path: Path, listener: socket.socket, port: int) -> None:
    """Host the job's store until the job is over."""
    _own_output(path)
    store = _store(listener, port)
    signal.pause()
    del store  # It serves as long as it is held.


def _store(listener: socket.socket | None, port: int) -> Any:
    from datetime import timedelta

    import torch.distributed as dist

    return dist.TCPStore(
        "127.0.0.1",
        port,
        is_master=listener is not None,
        master_listen_fd=listener.detach() if listener is not None else None,
        wait_for_workers=False,
        timeout=timedelta(seconds=300),
    )


def _rank(
    path: Path,
    listener: socket.socket | None,
    port: int,
    plan: dict[str, str],
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    _own_output(path)
    os.environ.update(plan)
    status = 1
    try:
        if plan["RANKS_GROUP"] == "1":
            _join_group(listener, port)
        value = work(*arguments)
        Path(f"{path}.value").write_bytes(pickle.dumps(value))
        status = 0
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else bool(leaving.code)
    except BaseException:
        traceback.print_exc()
    # multiprocessing would leave by `os._exit` alone.
    if plan["RANKS_FINALIZE"] == "1":
        ctypes.pythonapi.Py_Exit(status)
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in sys.stdout, sys.stderr:
        stream.flush()
    os._exit(status)


def _join_group(listener: socket.socket | None, port: int) -> None:
    from datetime import timedelta

    import torch.distributed as dist

    dist.init_process_group(
        "gloo",
        store=_store(listener, port),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=300),
    )
