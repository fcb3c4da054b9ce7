"""Native threads record their own stack overflow once they are protected."""

import ctypes
import os
import time
from pathlib import Path
from signal import SIGSEGV

import pytest

import firstfault
from conftest import Run, read_record
from crashes import (
    Crashed,
    crash,
    crashed_thread,
    faults_library,
    functions,
    main_thread,
)
from process_groups import process_ids, run_ranks
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


def native_threads(name: str) -> list[int]:
    """Return the threads of this process whose name has this part."""
    tasks = Path("/proc/self/task").iterdir()
    return sorted(
        int(task.name) for task in tasks if name in (task / "comm").read_text()
    )


def has_ended(pid: int) -> bool:
    """Return whether a process is gone, or waits for its parent alone."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


def overflows_in_gloo(jobs: str, library: str, protects: bool) -> list[float]:
    """Let a thread of rank 1's process group use up its stack."""
    import torch
    import torch.distributed as dist

    job, rank = Path(jobs), int(os.environ["RANK"])
    os.environ["TORCHELASTIC_ERROR_FILE"] = str(job / f"{rank}" / "error.json")
    sums = []

    def reduce() -> None:
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        sums.append(tensor.item())

    @firstfault.record
    def main() -> None:
        where = {"init_method": f"file://{job}/store", "rank": rank, "world_size": 2}
        dist.init_process_group("gloo", **where)
        reduce()
        gloos = native_threads("gloo")
        assert gloos
        if protects:
            assert firstfault.protect_native_threads() >= len(gloos)
        # The interrupted threads of both ranks go on.
        reduce()
        if rank == 1:
            ctypes.CDLL(library).overflow_in(gloos[-1])
        while not has_ended(process_ids()["1"]):
            time.sleep(0.05)

    main()
    return sums


@pytest.mark.parametrize("protects", [True, False])
def test_a_thread_of_a_process_group(tmp_path: Path, protects: bool) -> None:
    for rank in "01":
        (tmp_path / rank).mkdir()
    ranks = run_ranks(
        overflows_in_gloo,
        2,
        *(str(tmp_path), str(faults_library()), protects),
        group=False,
    )
    assert ranks[1].status == -SIGSEGV
    assert (ranks[0].status, ranks[0].value) == (0, [2.0, 2.0]), ranks[0].output
    path = tmp_path / "1" / "error.json"
    assert path.exists() == protects
    if protects:
        record = read_record(path)
        assert "): stack overflow at 0x" in record["message"]["message"]
        assert "gloo" in crashed_thread(record)["name"]
        assert "main" in functions(main_thread(record))


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
