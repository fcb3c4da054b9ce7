"""The handler needs less than half of its alternate signal stack."""

from pathlib import Path
from signal import SIGABRT, SIGSEGV

import pytest

from cores import read_memory
from crashes import allow_cores, crash, need_cores

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
    address, size = map(int, ours.stdout.split())
    assert size == SIZE
    (core,) = tmp_path.glob("core*")
    stack = read_memory(core, address, size)
    core.unlink()
    used = len(stack.lstrip(PAINT))
    print(f"{end}, {context}, {under}: {used} of {size} bytes, {used / size:.0%}")
    # The handler did run on it.
    assert 1000 < used < size // 2
