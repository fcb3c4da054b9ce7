"""Medians of interleaved runs, and the tables they are printed in."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable


def interleaved(runs: dict[str, Callable[[], float]], count: int) -> dict[str, float]:
    """Return the median seconds of each, run in turns so that noise hits all alike."""
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(count):
        for name, once in runs.items():
            samples[name].append(once())
    return {name: statistics.median(seconds) for name, seconds in samples.items()}


def timed(work: Callable[[], None]) -> Callable[[], float]:
    """Return a function that does the work and returns the seconds it took."""

    def once() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return once


def run(command: list[str]) -> float:
    """Return the seconds of a process from its start to its end."""
    return timed(lambda: subprocess.run(command, check=True) and None)()


def forked(work: Callable[[], None]) -> Callable[[], float]:
    """Return a function that does the work in a forked child of this process.

    The child leaves without finalization: that of torch takes most of a second, in
    which nothing of ours could be seen. What a normal exit costs shows in the table of
    whole interpreters.
    """

    def once() -> float:
        start = time.perf_counter()
        pid = os.fork()
        if pid == 0:
            work()
            os._exit(0)
        os.waitpid(pid, 0)
        return time.perf_counter() - start

    return once


def headline(title: str, ratio: str) -> None:
    """Print the title of a table."""
    print(f"\n{title:<70}{'':>10}  {ratio}", flush=True)


def row(name: str, value: str, ratio: str) -> None:
    """Print one line of a table."""
    print(f"  {name:<68}{value:>10}  {ratio}", flush=True)
