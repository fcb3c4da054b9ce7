"""Agreement against the blocking all-reduce, in one run: each step, one failure, scale.

Prints medians and ratios; asserts nothing. Run by `make bench`.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import resource
import socket
import statistics
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from measure import headline, row, timed

if TYPE_CHECKING:
    from firstfault.deferred._agreement import Agreement
    from firstfault.deferred._messages import Marks
    from firstfault.deferred._protocol import Outcome

RANKS = 4
CALLS = 100_000
REDUCTIONS = 300
SAMPLES = 5
FAILURES = 20

SIMULATED = 1024
PROCESSES = 8
AGREEMENTS = 7
PATIENCE = 120.0
"""Seconds after which the simulation is given up."""

_processes = multiprocessing.get_context("forkserver")


def main() -> None:
    """Run all comparisons."""
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # A line for each connection else.
    # At each connection torch asks the name server who 127.0.0.1 is, and waits five
    # seconds for each answer that is lost: no such questions.
    os.environ["RES_OPTIONS"] = "attempts:0"
    _processes.set_forkserver_preload(["torch", "torch.distributed"])
    # Each simulated rank has two connections.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    together(each_step_and_one_failure, RANKS, port)
    at_scale()


def together(work: Callable[..., None], count: int, *more: Any) -> None:
    """Run the work in so many processes, each with its number and the same rest."""
    ranks = [
        _processes.Process(target=work, args=(rank, *more)) for rank in range(count)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
        assert process.exitcode == 0, "a process failed"


def each_step_and_one_failure(rank: int, port: int) -> None:
    """Measure on one of the ranks what a step costs, and then an agreement."""
    import torch.distributed as dist

    from firstfault.deferred import Deferred
    from firstfault.deferred._agreement import Agreement
    from firstfault.deferred._flag import sync_should_stop

    os.environ["OMP_NUM_THREADS"] = "1"
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS
    )
    agreement = Agreement.start()
    deferred = Deferred()

    steps = itertools.count()

    def step() -> None:
        deferred.step(next(steps))

    def scope() -> None:
        with deferred.defer("metrics"):
            pass

    calls: dict[str, tuple[Callable[[], object], int]] = {
        "a blocking all-reduce of a boolean": (lambda: sync_should_stop(False), 0),
        "Agreement.should_stop()": (agreement.should_stop, CALLS),
        "Deferred.should_stop()": (deferred.should_stop, CALLS),
        "with deferred.defer(...): pass": (scope, CALLS),
        "Deferred.step(n) of the next step": (step, CALLS),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(SAMPLES):
        empty = per_call(lambda: None, CALLS)
        for name, (call, count) in calls.items():
            # Only the all-reduce needs the others; for the rest they wait.
            if rank == 0 or not count:
                times[name].append(per_call(call, count or REDUCTIONS) - empty)
            dist.barrier()
    agreement.finished()
    if rank == 0:
        medians = {name: statistics.median(each) for name, each in times.items()}
        blocking = medians["a blocking all-reduce of a boolean"]
        headline(
            f"what a step costs on {RANKS} ranks, microseconds", "of the all-reduce"
        )
        for name, seconds in medians.items():
            row(name, f"{seconds * 1e6:.2f}", f"{seconds / blocking:.4f}")

    took = [one_failure(number % RANKS) for number in range(FAILURES)]
    if rank == 0:
        headline(f"one failure on {RANKS} ranks, milliseconds", "of the all-reduce")
        mine = [seconds for seconds in took if seconds is not None]
        seconds = statistics.median(mine)
        row(
            "from the announcement until all know where to stop",
            f"{seconds * 1e3:.2f}",
            f"{seconds / blocking:.1f}",
        )
    dist.barrier()
    agreement.close()
    with contextlib.suppress(Exception):
        deferred.finish()


def per_call(call: Callable[[], object], count: int) -> float:
    """Return the seconds that a call takes."""

    def many() -> None:
        for _ in range(count):
            call()

    return timed(many)() / count


def one_failure(victim: int) -> float | None:
    """Agree once; return on rank 0 the seconds from the failure to the last to know."""
    import torch
    import torch.distributed as dist

    from firstfault.deferred._agreement import Agreement

    agreement = Agreement.start()
    known = watch(agreement)
    failed = 0.0
    for step in range(10_000):
        dist.all_reduce(torch.ones(1))
        if step == 10 and dist.get_rank() == victim:
            failed = time.monotonic()
            agreement.announce()
        if agreement.should_stop():
            break
    agreement.finished()
    # The clock is the machine's.
    times = torch.tensor([failed, known[0]], dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    agreement.close()
    return float(times[1] - times[0]) if dist.get_rank() == 0 else None


def watch(agreement: Agreement) -> list[float]:
    """Return a list that gets the time at which this rank knows the outcome."""
    known: list[float] = []
    settle = agreement.settle

    def settled(outcome: Outcome) -> None:
        known.append(time.monotonic())
        settle(outcome)

    agreement.settle = settled  # type: ignore[method-assign]
    return known


def at_scale() -> None:
    """Let many ranks agree over one store: the real watchers, without trainers."""
    import torch.distributed as dist

    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=True
    )
    floor = []
    for sample in range(SAMPLES):
        start = time.perf_counter()
        for rank in range(SIMULATED):
            store.set(f"floor/{sample}/{rank}", "")
        for rank in range(SIMULATED):
            store.get(f"floor/{sample}/{rank}")
        floor.append(time.perf_counter() - start)
    barrier = _processes.Barrier(PROCESSES, timeout=PATIENCE)
    times = _processes.SimpleQueue()
    together(agree, PROCESSES, store.port, barrier, times)
    told = [times.get() for _ in range(AGREEMENTS * PROCESSES)]
    took = sorted(
        max(known for at, _, known in told if at == number)
        - max(failed for at, failed, _ in told if at == number)
        for number in range(AGREEMENTS)
    )
    one_by_one = statistics.median(floor)
    headline(
        f"{SIMULATED} simulated ranks on {os.cpu_count()} cores, one TCPStore, "
        "milliseconds",
        "of the floor",
    )
    row("a set and a get for each, one by one", f"{one_by_one * 1e3:.0f}", "1.0")
    rows = {"median": statistics.median(took), "least": took[0], "most": took[-1]}
    for name, seconds in rows.items():
        row(
            f"from the announcement until all know where to stop, {name}",
            f"{seconds * 1e3:.0f}",
            f"{seconds / one_by_one:.1f}",
        )


class Simulated:
    """The main thread's side of one rank: it has made as many calls as its number."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.has_joined = threading.Event()
        self.is_settled = threading.Event()
        self.known = self._frozen_at = 0.0
        self.outcome: Outcome | None = None

    def freeze(self) -> tuple[int, Marks]:
        """Return the number of calls, and no marks."""
        self._frozen_at = self._frozen_at or time.monotonic()
        return self.rank, ()

    def frozen_at(self) -> float:
        """Return the time of the freeze."""
        return self._frozen_at

    def joined(self) -> None:
        """Note that it has joined."""
        self.has_joined.set()

    def settle(self, outcome: Outcome) -> None:
        """Note the outcome and when it came."""
        if self.outcome is None:
            self.outcome, self.known = outcome, time.monotonic()
            self.is_settled.set()


def agree(shard: int, port: int, barrier: Any, times: Any) -> None:
    """Let the ranks of one process agree with those of the others, a few times.

    Each has its own watcher, with its threads and connections, as in a process of its
    own. Tells of each agreement when it began, in the first process, and when the last
    of these ranks knew its outcome; the clock is the machine's.
    """
    import torch.distributed as dist

    from firstfault.deferred._messages import Announced, Closing
    from firstfault.deferred._protocol import Stop
    from firstfault.deferred._watcher import Watcher

    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    members = tuple(range(SIMULATED))
    for number in range(AGREEMENTS):
        ranks = [Simulated(rank) for rank in members[shard::PROCESSES]]
        watchers = [
            Watcher(store, f"bench/{number}", main.rank, members, PATIENCE, main)
            for main in ranks
        ]
        for watcher in watchers:
            watcher.start()
        for main in ranks:
            assert main.has_joined.wait(PATIENCE), "a rank did not join"
        # Connected, and in their waits.
        time.sleep(0.5)
        barrier.wait()
        failed = time.monotonic() if shard == 0 else 0.0
        if shard == 0:
            watchers[0].post(Announced())
        for main in ranks:
            assert main.is_settled.wait(PATIENCE), "a rank was not told"
            assert main.outcome == Stop(SIMULATED), main.outcome
        times.put((number, failed, max(main.known for main in ranks)))
        barrier.wait()
        for watcher in watchers:
            watcher.post(Closing())
        for watcher in watchers:
            watcher.close(10)


if __name__ == "__main__":
    main()
