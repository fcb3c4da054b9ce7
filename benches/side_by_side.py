"""Ours against torch's, an undecorated main and a bare interpreter, in one run.

Prints medians and ratios; asserts nothing. Run by `make bench`.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measure import forked, headline, interleaved, row, run, timed

STARTS = 40
STARTS_WITH_TORCH = 15
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
    trivial_main()
    # The other comparisons share one process that has torch already.
    import torch.distributed.elastic.multiprocessing.errors  # noqa: F401

    one_error_file()
    many_error_files()
    # Last: it makes this process a rank with a black box.
    breadcrumbs()


def interpreter_start() -> None:
    """Compare the start and end of an interpreter with and without our import."""
    decorated = "from firstfault import record\nrecord(lambda: None)()"
    with tempfile.TemporaryDirectory() as directory:
        to_file = f"{directory}/error.json"
        programs = {
            "bare interpreter": ("", "pass"),
            "import firstfault": ("", "import firstfault"),
            "from firstfault import record": ("", "from firstfault import record"),
            "decorated main": ("", decorated),
            "decorated main with an error file": (to_file, decorated),
        }
        starts = {
            name: lambda variable=f"TORCHELASTIC_ERROR_FILE={path}", code=code: run(
                ["env", variable, sys.executable, "-c", code]
            )
            for name, (path, code) in programs.items()
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


IN_A_TORCH_PROGRAM = """
import sys, time
import torch.distributed.elastic.multiprocessing.errors
times = [time.perf_counter()]
def lap():
    times.append(time.perf_counter())
if sys.argv[1]:
    record = __import__(sys.argv[1], fromlist=["record"]).record
else:
    record = lambda main: main
lap()
record(lambda: None)()
lap()
record(lambda: None)()
lap()
print(*(later - before for before, later in zip(times, times[1:])))
"""


def trivial_main() -> None:
    """Compare import, decoration and call in whole programs that have loaded torch.

    Not in forked children of one: they are without torch's threads, which make some
    system calls slow, and copy each page that is written to. The end of a program is in
    the table before: that of torch takes most of a second.
    """
    modules = {
        "undecorated": "",
        "torch's record": "torch.distributed.elastic.multiprocessing.errors",
        "ours": "firstfault",
        "ours with an error file": "firstfault",
    }

    def one(name: str) -> list[float]:
        with tempfile.TemporaryDirectory() as directory:
            has_file = name.endswith("error file")
            done = subprocess.run(
                [sys.executable, "-c", IN_A_TORCH_PROGRAM, modules[name]],
                env=os.environ
                | {"TORCHELASTIC_ERROR_FILE": f"{directory}/error.json" * has_file},
                check=True,
                capture_output=True,
            )
        return [float(seconds) for seconds in done.stdout.split()]

    samples: dict[str, list[list[float]]] = {name: [] for name in modules}
    for _ in range(STARTS_WITH_TORCH):
        for name, taken in samples.items():
            taken.append(one(name))
    headline(
        "a trivial main in a program that has torch, milliseconds",
        "import, first call, next call",
    )
    for name, taken in samples.items():
        laps = [statistics.median(lap) * 1e3 for lap in zip(*taken, strict=True)]
        row(name, f"{sum(laps[:2]):.2f}", ", ".join(f"{lap:.2f}" for lap in laps))


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


if __name__ == "__main__":
    main()
