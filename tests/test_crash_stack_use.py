"""The handler needs less than half of its alternate signal stack."""

import re
from dataclasses import dataclass
from pathlib import Path
from signal import SIGABRT, SIGQUIT, SIGSEGV

import pytest

from cores import read_memory
from crashes import Crashed, allow_cores, crash, need_cores
from injected import STAGES, injecting
from mounts import served

PAINT = b"\xa5"
SIZE = 256 * 1024

# The steps before the end, and how it ends.
ENDS = {
    "fault": (["read_null"], SIGSEGV),
    "overflow": (["overflow"], SIGSEGV),
    "abort": (["c_abort"], SIGABRT),
    "exception": (["load_cpp", "throw_runtime_error"], SIGABRT),
    "deep": (["deep:5000:read_null"], SIGSEGV),
    "many threads": (["threads:150", "read_null"], SIGSEGV),
    "a stage faults": (["threads:3", "corrupt:own:fault"], SIGSEGV),
}


@pytest.mark.parametrize("under", ["activate", "firstfault"])
@pytest.mark.parametrize("context", ["main", "python_thread"])
@pytest.mark.parametrize("end", ENDS)
def test_less_than_half_of_the_stack_is_used(
    directory: Path, tmp_path: Path, end: str, context: str, under: str
) -> None:
    if (context, under) == ("python_thread", "activate"):
        pytest.skip("the hook of threads is the error handler's")
    need_cores()
    steps, number = ENDS[end]
    ours = crash(
        directory,
        *("paint_alternate_stack", *steps),
        under=under,
        context=context,
        cwd=tmp_path,
        limits=allow_cores,
    )
    assert (ours.status, ours.files) == (-number, ["error.json"])
    check_use(ours, tmp_path, f"{end}, {context}, {under}")


def check_use(ours: Crashed, tmp_path: Path, told: str) -> None:
    """Check how much of its alternate stack a core dump says that a handler used."""
    address, size = map(int, ours.stdout.split())
    assert size == SIZE
    (core,) = tmp_path.glob("core*")
    stack = read_memory(core, address, size)
    core.unlink()
    used = len(stack.lstrip(PAINT))
    print(f"{told}: {used} of {size} bytes, {used / size:.0%}")
    # The handler did run on it.
    assert 1000 < used < size // 2


@dataclass(frozen=True)
class End:
    """Steps with the painting among them, how it ends, and what is left."""

    steps: tuple[str, ...]
    status: int
    files: str
    # Stages of the handler that fault, each in a handler on top of the one before.
    faults: tuple[str, ...] = ()


OTHER_ENDS = {
    "all stages but one fault": End(
        ("paint_alternate_stack", "threads:3", "read_null"),
        -SIGSEGV,
        "error.json",
        tuple(STAGES[: STAGES.index("enriched")]),
    ),
    "all stages fault": End(
        ("paint_alternate_stack", "threads:3", "read_null"),
        -SIGSEGV,
        "",
        tuple(STAGES),
    ),
    # The one request to end by which the kernel leaves a core dump.
    "request to end": End(
        ("paint_alternate_stack", "threads:3", f"kill:{SIGQUIT:d}"),
        -SIGQUIT,
        r"error\.\d+\.term\.json",
    ),
    "forked child": End(
        ("paint_alternate_stack", "fork:read_null"),
        0,
        r"error\.\d+\.child_\d+\.json",
    ),
    "protected native thread": End(
        ("start_waiting:0", "protect:1", "tell_waiting:paint_and_read_null"),
        -SIGSEGV,
        "error.json",
    ),
}


@pytest.mark.parametrize("end", OTHER_ENDS)
def test_nor_is_more_used_at_other_ends(
    directory: Path, tmp_path: Path, end: str
) -> None:
    need_cores()
    details = OTHER_ENDS[end]
    ours = crash(
        directory,
        *details.steps,
        under="activate",
        env=injecting(*(f"{stage}:fault" for stage in details.faults)),
        cwd=tmp_path,
        limits=allow_cores,
    )
    assert ours.status == details.status, ours.stderr
    assert re.fullmatch(details.files, "".join(ours.files))
    check_use(ours, tmp_path, end)


def test_nor_on_the_way_to_a_network_file_system(
    directory: Path, tmp_path: Path
) -> None:
    need_cores()
    steps = ["paint_alternate_stack", "threads:3", "read_null"]
    options = {"cwd": tmp_path, "limits": allow_cores}
    ours, kept = served().crash(directory, *steps, **options)
    assert ours.status == 128 + SIGSEGV
    assert (kept / "errors/error.json").exists()
    check_use(ours, tmp_path, "network")
