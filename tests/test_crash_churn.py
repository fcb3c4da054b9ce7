"""Many crashes in a row while other threads start, end, allocate and collect."""

import itertools
import shutil
from pathlib import Path
from signal import SIGABRT, SIGILL, SIGSEGV

import pytest

from crashes import crash, crashed_thread, functions, main_thread

CHURN = ["churn:3", "daemon_in_malloc:2", "collect_for_ever"]

# How it crashes, what decorates main, and where. faulthandler, which `record` enables,
# itself faults now and then while it dumps threads that end: that is a SIGSEGV.
CRASHES = [
    ("read_null", "firstfault", "main", SIGSEGV),
    ("held.read_null", "firstfault", "main", SIGSEGV),
    ("read_null", "firstfault", "python_thread", SIGSEGV),
    ("read_null", "firstfault", "native_thread", SIGSEGV),
    ("c_abort", "activate", "main", SIGABRT),
    ("illegal_instruction", "activate", "main", SIGILL),
    ("fault_in_malloc", "activate", "main", SIGSEGV),
]


def crash_in_a_row(tmp_path: Path, count: int) -> None:
    """Crash so many processes, each in one of the ways; each record is complete."""
    for number, way in zip(range(count), itertools.cycle(CRASHES), strict=False):
        fault, under, place, signal = way
        directory = tmp_path / str(number)
        directory.mkdir()
        options = {"under": under, "context": place, "program": "contexts.py"}
        ours = crash(directory, *CHURN, fault, **options)
        assert ours.status == -signal, (way, ours.stderr)
        assert ours.files == ["error.json"]
        record = ours.record()
        section = record["firstfault"]
        assert section["signal"]["number"] == signal
        assert functions(main_thread(record))[-1] == "<module>", way
        assert "main" in functions(main_thread(record)), way
        python = [name for t in section["threads"] for name in functions(t)]
        assert python.count("churning") >= 3, way
        assert "collecting" in python, way
        states = {stage["name"]: stage["status"] for stage in section["stages"]}
        # A thread that ends just then does not park; a native one has no Python stack.
        may_miss = {"park", "other_native_stacks"}
        may_miss |= {"own_python_stack"} if place == "native_thread" else set()
        missed = {name for name, status in states.items() if status == "skipped"}
        assert set(states.values()) <= {"ok", "skipped"}, way
        assert missed <= may_miss, way
        assert crashed_thread(record)["native"]
        shutil.rmtree(directory)


def test_thirty_crashes_in_a_row(tmp_path: Path) -> None:
    crash_in_a_row(tmp_path, 30)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_thousand_crashes_in_a_row(tmp_path: Path) -> None:
    crash_in_a_row(tmp_path, 1000)
