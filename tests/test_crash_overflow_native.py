"""Native threads record their own stack overflow once they are protected."""

from pathlib import Path
from signal import SIGSEGV

import pytest

from conftest import Run
from crashes import Crashed, crash, crashed_thread, faults_library, functions
from test_crash_stages import stages

START, WITH_STACK = "start_waiting:0", "start_waiting:1"
OVERFLOW = "tell_waiting:overflow"


def is_recorded(ours: Crashed) -> bool:
    """Return whether the stack overflow that ended the process was recorded."""
    assert ours.status == -SIGSEGV, ours.stderr
    if ours.files == []:
        return False
    record = ours.record()
    assert "): stack overflow at 0x" in record["message"]["message"]
    assert "main" in functions(record["firstfault"]["threads"][1])
    assert len(crashed_thread(record)["native"]) > 1
    return True


@pytest.mark.parametrize("fault", ["overflow", "overflow_by_large_frames"])
def test_a_thread_that_runs_is_protected(directory: Path, fault: str) -> None:
    ours = crash(directory, START, "threads:2", "protect:1", f"tell_waiting:{fault}")
    assert is_recorded(ours)
    assert ours.record()["firstfault"]["threads_total"] == 4


@pytest.mark.parametrize(
    "steps", [[START], ["protect:0", START]], ids=["without", "too early"]
)
def test_a_thread_that_is_not_dies_as_without_us(
    directory: Path, steps: list[str]
) -> None:
    assert not is_recorded(crash(directory, *steps, OVERFLOW))


def test_a_later_call_protects_those_that_came_since(directory: Path) -> None:
    steps = [START, "protect:1", "tell_waiting:nothing", START, "protect:1"]
    assert is_recorded(crash(directory, *steps, "protect:0", OVERFLOW))


def test_a_thread_keeps_its_own_alternate_stack(directory: Path) -> None:
    """It looks itself whether that is still the one that it has set."""
    ours = crash(directory, WITH_STACK, "protect:0", "tell_waiting:nothing")
    assert (ours.status, ours.files) == (0, []), ours.stderr
    assert is_recorded(crash(directory, WITH_STACK, "protect:0", OVERFLOW))


def test_a_thread_that_cannot_answer_is_passed_over(directory: Path) -> None:
    steps = ["block_signals:1", START, "block_signals:0", "uninterruptible"]
    ours = crash(directory, *steps, "protect:0", "read_null")
    assert (ours.status, ours.files) == (-SIGSEGV, ["error.json"])


def test_a_forked_child_protects_its_own(directory: Path) -> None:
    ours = crash(directory, START, "protect:1", "fork:protect:0", "exit:0")
    assert (ours.status, ours.files) == (0, []), ours.stderr
    assert "ended with 0" in ours.stderr


def test_a_crash_while_threads_are_being_protected(tmp_path: Path) -> None:
    for number in range(10):
        directory = tmp_path / str(number)
        directory.mkdir()
        steps = ["sleepers:20:65536", "keep_protecting", "read_null"]
        ours = crash(directory, *steps)
        assert (ours.status, ours.files) == (-SIGSEGV, ["error.json"])
        record = ours.record()
        assert record["firstfault"]["threads_total"] == 22
        assert set(stages(record).values()) == {"ok"}


PROGRAM = """
import ctypes
import firstfault
from pathlib import Path

library = ctypes.CDLL({library!r})

def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return [line for line in lines if line.startswith(name)]

def round():
    library.start_waiting(0)
    assert firstfault.protect_native_threads() == {expected}
    library.tell_waiting(library.nothing)

def mapped():
    return int(Path("/proc/self/statm").read_text().split()[0])

round()
before, handled = mapped(), status("SigCgt")
for _ in range(200):
    round()
assert status("SigCgt") == handled
print((mapped() - before) * 4, "KiB more")
"""


def test_the_room_of_a_thread_that_has_ended_is_given_back(run: Run) -> None:
    """And the signal that it came by is free again."""
    ended = run(PROGRAM.format(library=str(faults_library()), expected=1))
    assert ended.status == 0, ended.stderr
    # Two hundred threads would have left 52 MB.
    assert int(ended.stdout.split()[0]) < 10_000


def test_switched_off(run: Run) -> None:
    program = PROGRAM.format(library=str(faults_library()), expected=0)
    ended = run(program, env={"FIRSTFAULT_DISABLE": "1"})
    assert ended.status == 0, ended.stderr
