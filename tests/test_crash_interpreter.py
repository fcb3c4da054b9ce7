"""Crashes in other interpreters than the main one, and at the interpreter's end."""

import sys
from pathlib import Path
from signal import SIGSEGV

import pytest

from conftest import Run
from crashes import crash, crashed_thread, faults_library, functions
from test_crash_stages import stages
from test_crash_threads import threads


@pytest.mark.parametrize("kind", ["PyDLL", "CDLL"])
def test_a_sub_interpreter(directory: Path, kind: str) -> None:
    """Up to Python 3.11 its frames, and whose state holds the GIL, cannot be told."""
    step = (
        f"sub_interpreter:import ctypes; "
        f"ctypes.{kind}({str(faults_library())!r}).read_null()"
    )
    steps = ["sleepers:1:65536", "threads:1", step]
    crashed, native, waiting = threads(directory, *steps)
    is_held = kind == "PyDLL"
    if sys.version_info >= (3, 12):
        assert functions(crashed) == ["<module>"]
        expected = [is_held, False, False]
    else:
        assert {"sub_interpreter", "main"} <= set(functions(crashed))
        expected = [None, False, None] if is_held else [False] * 3
    assert [t.get("holds_gil") for t in (crashed, native, waiting)] == expected


IMPORTING = """
try:
    from firstfault import record
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("first", [True, False])
def test_it_serves_the_main_interpreter_only(directory: Path, first: bool) -> None:
    """Elsewhere it says so; the main one is none the worse for it."""
    step = f"sub_interpreter:{IMPORTING}"
    before, steps = ([step], []) if first else ([], [step])
    ours = crash(directory, *steps, "read_null", before=before)
    assert (ours.status, ours.files) == (-SIGSEGV, ["error.json"])
    assert ours.stdout.startswith("firstfault works in the main interpreter only")
    assert "main" in functions(crashed_thread(ours.record()))


ENDING = """
import atexit, ctypes, os, sys, threading
from firstfault import record

class Fragile:
    def __del__(self, kill=os.kill, pid=os.getpid()):
        kill(pid, 11)  # The module's own names are gone by then.

def crash_later(go=threading.Event()):
    threading._register_atexit(go.set)
    go.wait()
    ctypes.string_at(0)

@record
def main():
    {step}

main()
"""

# What a program leaves behind, and the function that crashes at its end.
ENDS = {
    "atexit.register(ctypes.string_at, 0)": "string_at",
    "sys.fragile = Fragile()": "__del__",
    "threading.Thread(target=crash_later).start()": "crash_later",
}


@pytest.mark.parametrize("step", ENDS)
def test_the_interpreter_ends(run: Run, step: str) -> None:
    ended = run(ENDING.format(step=step))
    assert (ended.status, ended.files) == (-SIGSEGV, ["error.json"])
    record = ended.record()
    assert ENDS[step] in functions(crashed_thread(record))
    assert set(stages(record).values()) == {"ok"}
    assert "ValueError" not in str(record)


@pytest.mark.parametrize("step", ENDS)
def test_a_crash_at_the_end_of_what_failed_before(run: Run, step: str) -> None:
    """The exception that ended main keeps the error file."""
    ended = run(ENDING.format(step=f"{step}; raise ValueError('first')"))
    assert ended.status == -SIGSEGV
    assert ended.record()["message"]["message"] == "ValueError: first"
    (later,) = {*ended.files} - {"error.json", "error.firstfault.json"}
    assert ENDS[step] in functions(crashed_thread(ended.record(later)))
