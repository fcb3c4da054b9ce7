"""What the start of a program does not pay for."""

import subprocess
import sys

import pytest

from conftest import Run, clean_environment


@pytest.mark.parametrize(
    "statement",
    [
        "import firstfault",
        "from firstfault import record, ErrorHandler, get_error_handler",
        "import firstfault; firstfault.record(lambda: 1)()",
    ],
)
def test_it_loads_nothing_heavy(statement: str) -> None:
    show = "print(*set(sys.modules) - before)"
    script = f"import sys; before = set(sys.modules); {statement}; {show}"
    loaded = subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            f"import sys; sys.path[:0] = {sys.path!r}; {script}",
        ],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    heavy = {
        *("torch", "numpy", "dataclasses", "logging", "typing", "traceback", "json"),
        *("inspect", "re", "pathlib", "warnings", "contextlib", "threading", "asyncio"),
        *("functools", "collections"),
    }
    assert heavy.isdisjoint(loaded)
    if statement == "import firstfault":
        assert loaded == ["firstfault"]


def test_the_table_of_descriptors_does_not_grow(run: Run) -> None:
    """In a process with threads, as torch's are, that takes 5 to 20 milliseconds."""
    ended = run("""
import re
from firstfault import record

def size():
    with open("/proc/self/status") as status:
        return re.search(r"FDSize:\\s*(\\d+)", status.read())[1]

before = size()
record(lambda: None)()
assert size() == before, (size(), before)
""")
    assert (ended.status, ended.stderr) == (0, "")
