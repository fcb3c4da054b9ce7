"""The core dump is the one that the process would have left without us."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from cores import Core, place, read_core
from crashes import allow_cores, crash, missing, need_cores
from test_crash import FAULTS

SENT = ["kill:11", "kill:6", "signal_own_thread:7", "queue_signal:8", "raise_signal:4"]
MOVING = ("write_read_only", "read_past_end_of_file")


@pytest.fixture(autouse=True)
def _cores_can_be_read() -> None:
    need_cores()


def core_of(directory: Path, *steps: str, under: str, context: str = "main") -> Core:
    directory.mkdir()
    (directory / "errors").mkdir()
    options = {"under": under, "context": context}
    ended = crash(
        directory / "errors", *steps, cwd=directory, limits=allow_cores, **options
    )
    assert ended.status < 0, ended.stderr
    assert ended.files == (
        ["error.json"] if under in ("activate", "firstfault") else []
    )
    (path,) = directory.glob("core*")
    core = read_core(path)
    path.unlink()
    assert core.signal == -ended.status
    return core


@pytest.mark.parametrize("context", ["main", "native_thread"])
@pytest.mark.parametrize("step", [*FAULTS, *SENT])
@pytest.mark.parametrize(
    ("without", "under"), [("nothing", "activate"), ("torch_handler", "firstfault")]
)
def test_program_counter_code_and_address(
    tmp_path: Path, without: str, under: str, step: str, context: str
) -> None:
    if context == "native_thread" and (step in SENT or step == "os_abort"):
        pytest.skip("a step with Python in it")
    theirs = core_of(tmp_path / without, step, under=without, context=context)
    ours = core_of(tmp_path / under, step, under=under, context=context)
    assert ours.program_counter == theirs.program_counter
    assert (ours.signal, ours.code) == (theirs.signal, theirs.code)
    if step not in MOVING or theirs.code <= 0:
        assert ours.address == theirs.address
    assert ours.threads == theirs.threads
    if without == "nothing" and step in FAULTS and FAULTS[step].address == "0x10":
        assert ours.program_counter[0].endswith("firstfault_faults.so")


def test_after_a_stage_that_faulted_it_is_still_the_first_fault(tmp_path: Path) -> None:
    steps = ["threads:3", "corrupt:own:fault"]
    theirs = core_of(tmp_path / "nothing", *steps, under="nothing")
    ours = core_of(tmp_path / "activate", *steps, under="activate")
    assert ours == theirs
    assert ours.address == ("", 0x10)


@pytest.mark.parametrize("size", [14 << 10, 16 << 10, 24 << 10, 32 << 10])
def test_on_another_librarys_small_stack_it_is_still_the_fault(
    tmp_path: Path, size: int
) -> None:
    """A stage that used it up would have the kernel begin at its top again."""
    steps = [f"set_alternate_stack:{size}", "read_null"]
    theirs = core_of(tmp_path / "nothing", *steps, under="nothing")
    ours = core_of(tmp_path / "activate", *steps, under="activate")
    assert ours == theirs


def test_a_signal_of_the_parent_tells_its_sender(tmp_path: Path) -> None:
    (tmp_path / "errors").mkdir()
    ended = crash(
        tmp_path / "errors",
        under="activate",
        cwd=tmp_path,
        limits=allow_cores,
        while_ready=lambda pid: os.kill(pid, signal.SIGSEGV),
    )
    assert ended.status == -signal.SIGSEGV
    (path,) = tmp_path.glob("core*")
    core = read_core(path)
    assert (core.signal, core.code) == (signal.SIGSEGV, 0)
    assert core.address == os.getuid()


# What gdb says of a core dump, as numbers.
ASKED = ["$pc", "$_siginfo.si_signo", "$_siginfo.si_code"]
ASKED += ["$_siginfo._sifields._sigfault.si_addr", "$_inferior_thread_count"]


@pytest.mark.parametrize("step", ["write_read_only", "overflow"])
def test_gdb_reads_the_same_from_it(tmp_path: Path, step: str) -> None:
    if not shutil.which("gdb"):
        missing("gdb")
    (tmp_path / "errors").mkdir()
    options = {"under": "nothing", "cwd": tmp_path, "limits": allow_cores}
    crash(tmp_path / "errors", "threads:3", step, **options)
    (path,) = tmp_path.glob("core*")
    asking = [f"print('=%d' % int(gdb.parse_and_eval('{each}')))" for each in ASKED]
    done = subprocess.run(
        ["gdb", "-batch", "-nx", "-ex", f"python {'; '.join(asking)}", "-c", path],
        capture_output=True,
        text=True,
        check=False,
    )
    told = [int(line[1:]) for line in done.stdout.splitlines() if line[:1] == "="]
    assert len(told) == len(ASKED), done.stderr
    program_counter, number, code, address, threads = told
    core = read_core(path)
    assert core == Core(
        place(path, program_counter), number, code, place(path, address), threads
    )
