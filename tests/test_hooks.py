"""Exceptions that the process survives are told of by the record of its end."""

import re
import sys
from signal import SIGSEGV

import pytest

from conftest import Run

FAILING = """
import ctypes, gc, os, sys, threading
from firstfault import record

class Unraisable:
    def __del__(self):
        raise KeyError("in a finalizer")

def failing():
    raise ValueError("in a thread")

def leaving():
    sys.exit(3)

def survive():
    for target in (failing, leaving):
        thread = threading.Thread(target=target, name="loader")
        thread.start()
        thread.join()
    Unraisable()
    gc.collect()
"""

ENDS = {
    "exception": "raise RuntimeError('the end')",
    "crash": "ctypes.string_at(0)",
    "nothing": "pass",
    "child": """
    if not os.fork():
        raise RuntimeError("the end")
    os.wait()""",
}


def said(stderr: str) -> list[str]:
    """Return what the interpreter said of exceptions, without addresses."""
    lines = re.sub(r"0x[0-9a-f]+", "0x…", stderr).splitlines()
    return [line for line in lines if line.startswith("Exception")]


@pytest.mark.parametrize("end", ENDS)
def test_they_precede_a_later_record(run: Run, end: str) -> None:
    program = (
        f"{FAILING}\n@record\ndef main():\n    survive()\n    {ENDS[end]}\nmain()\n"
    )
    ended = run(program)
    bare = run(program.replace("@record", ""))
    lines = said(bare.stderr)
    assert len(lines) == 2
    assert said(ended.stderr) == lines
    if end == "nothing":
        assert (ended.status, ended.files) == (0, [])
        return
    if end == "child":
        (name,) = ended.files
        assert ended.record(name)["firstfault"].get("preceded_by", []) == []
        return
    assert ended.status == bare.status == {"exception": 1, "crash": -SIGSEGV}[end]
    before = ended.record()["firstfault"]["preceded_by"]
    assert [(note["message"], note["where"]) for note in before] == [
        ("ValueError: in a thread", "thread 'loader'"),
        ("KeyError: 'in a finalizer'", "Exception ignored in"),
    ]
    times = [note["time_ns"] for note in before]
    assert 0 < times[0] <= times[1] <= ended.record()["firstfault"]["time_ns"]


def test_a_program_may_have_hooks_of_its_own_before_and_after(run: Run) -> None:
    ended = run(
        FAILING
        + """
def hook(name):
    return lambda args: print(name, args.exc_type.__name__, flush=True)

threading.excepthook = sys.unraisablehook = hook("before")

@record
def main():
    survive()
    threading.excepthook = sys.unraisablehook = hook("after")
    survive()
    raise RuntimeError("the end")

main()
"""
    )
    assert ended.stdout.split("\n")[:-1] == [
        "before ValueError",
        "before SystemExit",
        "before KeyError",
        "after ValueError",
        "after SystemExit",
        "after KeyError",
    ]
    assert len(ended.record()["firstfault"]["preceded_by"]) == 2


def test_a_thousand_of_them_cost_eight(run: Run) -> None:
    ended = run(
        FAILING
        + """
threading.excepthook = lambda args: None

@record
def main():
    for number in range(1000):
        thread = threading.Thread(target=failing)
        thread.start()
        thread.join()
    ctypes.string_at(0)

main()
"""
    )
    assert len(ended.record()["firstfault"]["preceded_by"]) == 8


HOSTILE = """
class Hostile(Exception):
    def __str__(self):
        raise MemoryError

@record
def main():
    def failing():
        raise Hostile
    thread = threading.Thread(target=failing)
    thread.start()
    thread.join()
    raise RuntimeError("the end")

main()
"""


def test_an_exception_that_cannot_be_shown(run: Run) -> None:
    ended = run(FAILING + HOSTILE)
    (note,) = ended.record()["firstfault"]["preceded_by"]
    assert "Hostile" in note["message"]


def test_a_crash_in_a_sub_interpreter(run: Run) -> None:
    """firstfault is loaded in the main interpreter only."""
    program = (
        FAILING
        + """
import sys
if sys.version_info >= (3, 13):
    import _interpreters as interpreters
    inner = interpreters.create("legacy")
else:
    import _xxsubinterpreters as interpreters
    inner = interpreters.create(isolated=False)

def deep():
    crash = "import ctypes\\ndef inner():\\n    ctypes.string_at(0)\\ninner()"
    interpreters.run_string(inner, crash)

@record
def main():
    deep()

main()
"""
    )
    ended = run(program)
    assert ended.status == run(program.replace("@record", "")).status == -SIGSEGV
    record = ended.record()
    assert "null pointer" in record["message"]["message"]
    functions = [
        frame["function"] for frame in record["firstfault"]["threads"][0]["python"]
    ]
    # Which of the thread's interpreters CPython's dumper shows depends on its version.
    if sys.version_info >= (3, 12):
        assert functions == ["string_at", "inner", "<module>"]
    else:
        assert functions == ["deep", "main", "wrapper", "<module>"]
