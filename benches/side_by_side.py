"""Ours against torch's, an undecorated main and a bare interpreter, in one run.

Prints medians and ratios; asserts nothing. Run by `make bench`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

STARTS = 40
FORKS = 200
FILES = 10_000
CALLS = 200_000
SAMPLES = 5


def main() -> None:
    """Run all comparisons."""
    # Users' interpreters keep what they compiled.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    interpreter_start()
    native_stacks()
    # The other comparisons share one process that has torch already.
    import torch.distributed.elastic.multiprocessing.errors  # noqa: F401

    trivial_main()
    one_error_file()
    many_error_files()
    # Last: it makes this process a rank with a black box.
    breadcrumbs()


def interpreter_start() -> None:
    """Compare the start and end of an interpreter with and without our import."""
    programs = {
        "bare interpreter": "pass",
        "import firstfault": "import firstfault",
        "from firstfault import record": "from firstfault import record",
        "decorated main": "from firstfault import record\nrecord(lambda: None)()",
    }
    starts = {
        name: lambda code=code: run([sys.executable, "-c", code])
        for name, code in programs.items()
    }
    for once in starts.values():
        once()  # Compiles what it imports.
    times = interleaved(starts, STARTS)
    headline("interpreter start to end, milliseconds", "over bare")
    for name, seconds in times.items():
        row(
            name,
            f"{seconds * 1e3:.2f}",
            f"+{(seconds - times['bare interpreter']) * 1e3:.2f}",
        )


CRASH = """
import ctypes, threading
from firstfault import record
@record
def main():
    started, never = threading.Semaphore(0), threading.Event()
    def wait():
        started.release()
        never.wait()
    for _ in range({count}):
        threading.Thread(target=wait, daemon=True).start()
    for _ in range({count}):
        started.acquire()
    ctypes.string_at(0)
main()
"""


def native_stacks() -> None:
    """Compare what the stages of a crash take with few and with many threads."""
    headline("stages of a crash, milliseconds", "own native, others' native, all")
    for count in 1, 50, 500:
        taken: dict[str, list[float]] = {}
        for _ in range(SAMPLES * 3):
            with tempfile.TemporaryDirectory() as directory:
                path = Path(directory) / "error.json"
                subprocess.run(
                    [sys.executable, "-c", CRASH.format(count=count - 1)],
                    env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(path)},
                    stderr=subprocess.DEVNULL,
                    check=False,
                )
                section = json.loads(path.read_bytes())["firstfault"]
            for stage in section["stages"]:
                taken.setdefault(stage["name"], []).append(stage["us"] / 1e3)
        middle = {name: statistics.median(times) for name, times in taken.items()}
        own, others = middle["own_native_stack"], middle["other_native_stacks"]
        row(
            f"{count} threads",
            f"{own:.2f}",
            f"{others:.2f} {sum(middle.values()):.2f}",
        )


def trivial_main() -> None:
    """Compare import, decorate, call and exit, in a process that has torch."""

    def undecorated() -> None:
        (lambda: None)()

    def torchs() -> None:
        from torch.distributed.elastic.multiprocessing.errors import record

        record(lambda: None)()

    def ours() -> None:
        from firstfault import record

        record(lambda: None)()

    # What stands still is not looked at by the children's collections.
    gc.collect()
    gc.freeze()
    times = interleaved(
        {
            "undecorated": forked(undecorated),
            "torch's record": forked(torchs),
            "ours": forked(ours),
        },
        FORKS,
    )
    from firstfault import record

    again = {"ours, imported before": forked(lambda: record(lambda: None)())}
    times |= interleaved(again, FORKS)
    headline(
        "import, decorate, call, exit of a trivial main, milliseconds",
        "over undecorated",
    )
    for name, seconds in times.items():
        row(
            name,
            f"{seconds * 1e3:.2f}",
            f"+{(seconds - times['undecorated']) * 1e3:.2f}",
        )


def one_error_file() -> None:
    """Compare the recording of one exception that leaves main."""

    def fails() -> None:
        raise ValueError("loss is nan at step 20")

    def recorded(module: str) -> Callable[[], None]:
        def child() -> None:
            record = __import__(module, fromlist=["record"]).record
            with contextlib.suppress(ValueError):
                record(fails)()

        return child

    with tempfile.TemporaryDirectory() as directory:
        error_file = Path(directory, "error.json")
        os.environ["TORCHELASTIC_ERROR_FILE"] = str(error_file)
        children = {
            "torch's record": forked(
                recorded("torch.distributed.elastic.multiprocessing.errors")
            ),
            "ours": forked(recorded("firstfault")),
        }
        times = interleaved(children, FORKS)
        del os.environ["TORCHELASTIC_ERROR_FILE"]
        assert error_file.stat().st_size > 0, "the last child left no record"
    headline(
        "the same with an exception and its error file, milliseconds", "over torch's"
    )
    baseline = times["torch's record"]
    for name, seconds in times.items():
        row(name, f"{seconds * 1e3:.2f}", f"+{(seconds - baseline) * 1e3:.2f}")


def many_error_files() -> None:
    """Compare the aggregation of many torch-format files of 3 KB each."""
    from torch.distributed.elastic.multiprocessing.errors import (
        ChildFailedError,
        ProcessFailure,
    )

    from firstfault import _native

    with tempfile.TemporaryDirectory() as directory:
        paths = write_torch_files(Path(directory), FILES)

        def torchs() -> None:
            failures = {
                rank: ProcessFailure(
                    local_rank=rank, pid=rank, exitcode=1, error_file=path
                )
                for rank, path in enumerate(paths)
            }
            str(ChildFailedError("train.py", failures))

        def ours() -> None:
            arguments = ["report", f"{directory}/run", "--output", f"{directory}/text"]
            status = _native.run_cli([os.fsencode(text) for text in arguments])
            assert status == 0, "the report failed"

        times = interleaved(
            {
                "torch's ProcessFailure + ChildFailedError": timed(torchs),
                "firstfault report": timed(ours),
            },
            SAMPLES,
        )
    headline(f"{FILES} torch error files of 3 KB, milliseconds", "faster than torch")
    torch_seconds = times["torch's ProcessFailure + ChildFailedError"]
    for name, seconds in times.items():
        row(name, f"{seconds * 1e3:.1f}", f"{torch_seconds / seconds:.1f}x")


def breadcrumbs() -> None:
    """Compare a breadcrumb and a step with a call that does nothing."""
    import firstfault
    from firstfault import _native

    def nothing(name: str, value: object = None) -> None:
        pass

    breadcrumb, step = firstfault.breadcrumb, firstfault.step
    calls: dict[str, Callable[[], object]] = {
        "a Python function that does nothing": lambda: nothing("load", "shard 7"),
        "time.time()": lambda: time.time(),
        "breadcrumb(name)": lambda: breadcrumb("load"),
        "breadcrumb(name, text)": lambda: breadcrumb("load", "shard 7"),
        "breadcrumb(name, number)": lambda: breadcrumb("load", 7),
        "step(number)": lambda: step(7),
        "firstfault.step(number)": lambda: firstfault.step(7),
    }

    def each() -> dict[str, float]:
        empty = per_call(lambda: None)
        return {name: per_call(call) - empty for name, call in calls.items()}

    def per_call(call: Callable[[], object]) -> float:
        def many() -> None:
            for _ in range(CALLS):
                call()

        return statistics.median(timed(many)() for _ in range(SAMPLES)) / CALLS

    def training() -> None:
        for number in range(2_000):
            step(number)
            breadcrumb("batch", "shard 7")
            sum(range(5_000))

    without_box = each()
    steady = {"without a box": timed(training)()}
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory, "error.json"))
        _native.activate(error_file=path, entrypoint=None, argv=[])
        assert list(Path(directory).glob("*.box")), "there is no box"
        with_box = each()
        steady["with a box"] = timed(training)()
        _native.exiting()
        headline("what a training loop calls, nanoseconds", "before activation")
        for name, seconds in with_box.items():
            row(name, f"{seconds * 1e9:.0f}", f"{without_box[name] * 1e9:.0f}")
        headline("a loop of 0.1 ms with a step and a breadcrumb, milliseconds", "ratio")
        for name, seconds in steady.items():
            ratio = seconds / steady["without a box"]
            row(name, f"{seconds * 1e3:.1f}", f"{ratio:.3f}")


def write_torch_files(directory: Path, count: int) -> list[str]:
    """Write error files as torch's `record` does; return their paths."""
    callstack = "Traceback (most recent call last):\n" + "".join(
        f'  File "/opt/train/layer_{n}.py", line {n}, in forward\n'
        "    return self.inner(x)\n"
        for n in range(32)
    )
    paths = []
    for rank in range(count):
        path = directory / "run" / "attempt_0" / str(rank) / "error.json"
        path.parent.mkdir(parents=True)
        error = f"ValueError: loss is nan at step {rank % 7}"
        extra = {
            "py_callstack": f"{callstack}{error}\n",
            "timestamp": str(1_790_000_000 + rank),
        }
        path.write_text(json.dumps({"message": {"message": error, "extraInfo": extra}}))
        paths.append(str(path))
    return paths


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


if __name__ == "__main__":
    main()
