"""What a crash costs: its parent, stage by stage, and where a handler repairs it.

Prints medians and ratios; asserts nothing. Run by `make bench`.
"""

from __future__ import annotations

import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import headline, interleaved, row

FAULTS = 10_000
SAMPLES = 15
THREAD_STARTS = 2_000


def main() -> None:
    """Run all comparisons."""
    for threads in 1, 50, 500:
        until_the_parent_knows(threads)
    stages()
    thread_starts()
    recovered_faults()


CRASH = """
import ctypes, faulthandler, os, struct, sys, threading, time
how, count, pipe = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def crash():
    started, never = threading.Semaphore(0), threading.Event()
    def wait():
        started.release()
        never.wait()
    for _ in range(count - 1):
        threading.Thread(target=wait, daemon=True).start()
    for _ in range(count - 1):
        started.acquire()
    os.write(pipe, struct.pack("q", time.monotonic_ns()))
    ctypes.string_at(0)
if how == "ours":
    from firstfault import record
    crash = record(crash)
elif how == "faulthandler":
    # Open for as long as the process lives, as faulthandler demands.
    dump = open(os.environ["TORCHELASTIC_ERROR_FILE"], "w")
    faulthandler.enable(file=dump, all_threads=True)
crash()
"""


def until_the_parent_knows(threads: int) -> None:
    """Compare the time from the fault to the end of the parent's wait."""
    names = {
        "none": "no handler",
        "faulthandler": "faulthandler to a file",
        "ours": "ours, every thread's stacks in the file",
    }
    runs = {
        name: (lambda how=how: crashed(how, threads)[0]) for how, name in names.items()
    }
    times = interleaved(runs, SAMPLES)
    headline(
        f"from a fault to the parent's wait, {threads} threads, milliseconds",
        "over no handler, ratio",
    )
    floor = times[names["none"]]
    for name, seconds in times.items():
        more = f"+{(seconds - floor) * 1e3:.2f}"
        row(name, f"{seconds * 1e3:.2f}", f"{more}, {seconds / floor:.2f}")


def crashed(how: str, threads: int) -> tuple[float, bytes]:
    """Return the seconds from a fault to the end of the wait, and what it left."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "error.json")
        reading, writing = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-c", CRASH, how, str(threads), str(writing)],
            env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(path)},
            stderr=subprocess.DEVNULL,
            pass_fds=[writing],
        )
        os.close(writing)
        process.wait()
        ended = time.monotonic_ns()
        (fault,) = struct.unpack("q", os.read(reading, 8))
        os.close(reading)
        left = path.read_bytes() if path.exists() else b""
    return (ended - fault) / 1e9, left


def stages() -> None:
    """Show what the stages of a crash take with few and with many threads."""
    headline(
        "stages of a crash, milliseconds",
        "first file, own native, others' native, names",
    )
    for threads in 1, 50, 500:
        taken: dict[str, list[float]] = {}
        firsts = []
        for _ in range(SAMPLES):
            section = json.loads(crashed("ours", threads)[1])["firstfault"]
            first = 0.0
            for stage in section["stages"]:
                taken.setdefault(stage["name"], []).append(stage["us"] / 1e3)
                first += stage["us"] / 1e3
                if stage["name"] == "minimal":
                    firsts.append(first)
        middle = {name: statistics.median(times) for name, times in taken.items()}
        own, others = middle["own_native_stack"], middle["other_native_stacks"]
        names = middle["symbols"]
        first = statistics.median(firsts)
        row(
            f"{threads} threads, all stages",
            f"{sum(middle.values()):.2f}",
            f"{first:.2f}, {own:.2f}, {others:.2f}, {names:.2f}",
        )


STARTS = """
import sys, threading, time
if sys.argv[1] == "ours":
    from firstfault import _hooks, _native
    _hooks.install()
    _native.activate(error_file=None, entrypoint=None, argv=[])
def nothing():
    pass
def start():
    thread = threading.Thread(target=nothing)
    thread.start()
    thread.join()
start()
before = time.perf_counter()
for _ in range(int(sys.argv[2])):
    start()
print((time.perf_counter() - before) / int(sys.argv[2]))
"""


def thread_starts() -> None:
    """Compare the start and end of a Python thread, which gets a stack of ours."""

    def one(how: str) -> float:
        command = [sys.executable, "-c", STARTS, how, str(THREAD_STARTS)]
        return float(subprocess.run(command, check=True, capture_output=True).stdout)

    names = {"none": "without us", "ours": "with an alternate signal stack"}
    runs = {name: (lambda how=how: one(how)) for how, name in names.items()}
    times = interleaved(runs, SAMPLES)
    headline("start and end of a Python thread, microseconds", "ratio")
    floor = times[names["none"]]
    for name, seconds in times.items():
        row(name, f"{seconds * 1e6:.1f}", f"{seconds / floor:.2f}")


RECOVER = """
import ctypes, os, sys, time
library, order, times = ctypes.CDLL(sys.argv[1]), sys.argv[2], int(sys.argv[3])
if order != "after":
    library.install(0, 11)
if order != "alone":
    from firstfault import _native
    path = os.environ["TORCHELASTIC_ERROR_FILE"]
    _native.activate(error_file=path, entrypoint=None, argv=[])
if order == "after":
    library.install(0, 11)
library.touch(1)
start = time.perf_counter()
library.touch(times)
print((time.perf_counter() - start) / times)
"""


def recovered_faults() -> None:
    """Compare what a fault takes that a handler repairs, as a JVM's does.

    Its first recovery is not counted: from then on it is called first.
    """
    library = faults_library()
    orders = {
        "alone": "the handler alone",
        "before": "installed before ours",
        "after": "installed after ours",
    }
    with tempfile.TemporaryDirectory() as directory:
        environment = {
            **os.environ,
            "TORCHELASTIC_ERROR_FILE": f"{directory}/error.json",
        }

        def one(order: str) -> float:
            command = [sys.executable, "-c", RECOVER, library, order, str(FAULTS)]
            done = subprocess.run(
                command, env=environment, check=True, capture_output=True
            )
            return float(done.stdout)

        runs = {
            name: (lambda order=order: one(order)) for order, name in orders.items()
        }
        times = interleaved(runs, SAMPLES)
    headline("a fault that a handler repairs, nanoseconds", "more, ratio")
    alone = times[orders["alone"]]
    for name, seconds in times.items():
        more = f"{(seconds - alone) * 1e9:+.0f}"
        row(name, f"{seconds * 1e9:.0f}", f"{more}, {seconds / alone:.2f}")


def faults_library() -> str:
    """Return the library with the handler that repairs, built with optimization."""
    command = ["cargo", "build", "-q", "--release", "-p", "firstfault-faults"]
    done = subprocess.run(
        [*command, "--message-format=json"], check=True, capture_output=True
    )
    messages = map(json.loads, done.stdout.splitlines())
    names = (name for message in messages for name in message.get("filenames", ()))
    return next(name for name in names if name.endswith("firstfault_faults.so"))


if __name__ == "__main__":
    main()
