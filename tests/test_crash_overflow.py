"""A used-up stack leaves a record, in the main thread and those that Python starts."""

from pathlib import Path
from signal import SIGSEGV

import pytest

from conftest import Run
from crashes import crash, crashed_thread, functions


@pytest.mark.parametrize("under", ["activate", "firstfault"])
@pytest.mark.parametrize("fault", ["overflow", "overflow_by_large_frames"])
@pytest.mark.parametrize("context", ["main", "python_thread"])
def test_a_stack_overflow(
    directory: Path, tmp_path: Path, context: str, fault: str, under: str
) -> None:
    if (context, under) == ("python_thread", "activate"):
        pytest.skip("the hook of threads is the error handler's")
    (tmp_path / "theirs").mkdir()
    bare = "nothing" if under == "activate" else "torch_handler"
    theirs = crash(tmp_path / "theirs", fault, under=bare, context=context)
    ours = crash(directory, "threads:2", fault, under=under, context=context)
    assert ours.status == theirs.status == -SIGSEGV
    assert ours.files == ["error.json"]
    record = ours.record()
    assert "): stack overflow at 0x" in record["message"]["message"]
    assert functions(crashed_thread(record))[:2] == ["do", "steps"]
    section = record["firstfault"]
    assert section["threads_total"] == 3 + (context == "python_thread")
    waiting = [t for t in section["threads"] if "waiting" in functions(t)]
    assert len(waiting) == 2


@pytest.mark.parametrize("fault", ["write_above_stack", "read_unmapped", "read_null"])
@pytest.mark.parametrize("context", ["main", "python_thread"])
def test_another_fault_is_no_overflow(
    directory: Path, fault: str, context: str
) -> None:
    ours = crash(directory, fault, context=context)
    assert ours.status == -SIGSEGV
    assert "overflow" not in ours.record()["message"]["message"]


def test_pythons_own_recursion_error_stays_an_exception(run: Run) -> None:
    ended = run(
        """
import threading
from firstfault import record

def deeper(n):
    return deeper(n + 1)

@record
def main():
    threading.Thread(target=deeper, args=(0,)).start()
    deeper(0)

main()
"""
    )
    assert ended.status == 1
    assert ended.record()["firstfault"]["exception"]["type"] == "RecursionError"


THREADS = """
import gc, re, sys, threading
from firstfault import ErrorHandler

def mapped():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0])

def many():
    for _ in range(20):
        threads = [threading.Thread(target=int) for _ in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

ErrorHandler().initialize()
many()
before = mapped()
many()
print((mapped() - before) * 4, "KiB more")
"""


def test_the_room_of_a_thread_that_has_ended_is_given_back(run: Run) -> None:
    # The C library would map an arena of 64 MiB for a thread that finds none free.
    ended = run(THREADS, env={"MALLOC_ARENA_MAX": "1"})
    assert ended.status == 0, ended.stderr
    # A thousand threads would have left 260 MB.
    assert int(ended.stdout.split()[0]) < 30_000


def test_daemon_threads_end_with_the_interpreter_as_without_us(run: Run) -> None:
    ended = run(
        """
import threading, time
from firstfault import record

def loop():
    while True:
        time.sleep(0.0001)

@record
def main():
    for _ in range(20):
        threading.Thread(target=loop, daemon=True).start()

main()
"""
    )
    assert (ended.status, ended.stderr, ended.files) == (0, "", [])


def test_a_threads_stack_has_no_frame_of_ours(run: Run) -> None:
    ended = run(
        """
import sys, threading
from firstfault import ErrorHandler

ErrorHandler().initialize()

def show():
    frame = sys._getframe()
    while frame:
        print(frame.f_code.co_name, frame.f_code.co_filename.count("firstfault/_"))
        frame = frame.f_back

thread = threading.Thread(target=show)
thread.start()
thread.join()
"""
    )
    assert ended.stdout.split() == [
        *("show", "0", "run", "0", "_bootstrap_inner", "0", "_bootstrap", "0")
    ]
