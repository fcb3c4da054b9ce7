"""Killed at any moment of the handler's run: the error file is whole or absent."""

import ctypes
import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from signal import SIGKILL, SIGSEGV, SIGTERM

import pytest

import firstfault
from boxes import read_box
from conftest import clean_environment, read_record
from crashes import faults_library, missing
from mounts import in_mount_namespace, served

PTRACE_TRACEME, PTRACE_PEEKUSER, PTRACE_CONT, PTRACE_SYSCALL = 0, 3, 7, 24
# Of x86-64, by number: write, writev, ftruncate, openat, unlinkat, linkat, renameat2.
CHANGING = {1, 20, 77, 257, 263, 265, 316}
ORIG_RAX = 15 * 8
OTHER_RECORD = b'{"firstfault": {"final": true}}'
# Starts in a few hundredths of a second, as it does so often.
VICTIM = """
import ctypes, signal, sys
from firstfault import _native
path, library, other, number = sys.argv[1:]
_native.activate(error_file=path, entrypoint=None, argv=[])
if other:
    with open(path, "w") as file:
        file.write(other)
if number:
    signal.raise_signal(int(number))
ctypes.CDLL(library).read_null()
"""

Ptrace = Callable[..., int]


def start(
    ptrace: Ptrace,
    path: Path,
    other: bytes,
    end: signal.Signals,
    prefix: Sequence[str],
) -> int:
    """Start the victim under our eyes; return its process ID at the signal."""
    sent = "" if end == SIGSEGV else str(int(end))
    arguments = [str(path), str(faults_library()), other.decode(), sent]
    package = Path(firstfault.__path__[0]).parent
    environment = clean_environment(PYTHONPATH=str(package))
    pid = os.fork()
    if pid == 0:
        try:
            if ptrace(PTRACE_TRACEME, 0, None, None) == 0:
                command = [*prefix, sys.executable, "-S", "-c", VICTIM, *arguments]
                os.execvpe(command[0], command, environment)
        finally:
            os._exit(1)
    while (number := stopped(pid)) != end:
        if number is None:
            missing("ptrace(2)")
        # It stops once when it becomes another program.
        ptrace(PTRACE_CONT, pid, None, None if number == signal.SIGTRAP else number)
    return pid


def stopped(pid: int) -> int | None:
    """Return the signal that a traced child stopped by, None when it has ended."""
    _, status = os.waitpid(pid, 0)
    return os.WSTOPSIG(status) if os.WIFSTOPPED(status) else None


def kill_before(ptrace: Ptrace, pid: int, end: signal.Signals, calls: int) -> bool:
    """Kill a process before its n-th call that others may notice.

    Returns whether it was there to be killed.
    """
    deliver: int | None = end
    done = 0
    while done < calls:
        ptrace(PTRACE_SYSCALL, pid, None, deliver)
        number = stopped(pid)
        if number is None:
            return False
        deliver = None if number == signal.SIGTRAP else number
        is_call = os.uname().machine != "x86_64" or (
            ptrace(PTRACE_PEEKUSER, pid, ORIG_RAX, None) in CHANGING
        )
        done += bool(deliver or is_call)
    os.kill(pid, signal.SIGKILL)
    assert stopped(pid) is None
    return True


OLD = "old " * 1000
STATES = {
    "new": {(), ("error.json", "minimal"), ("error.json", "enriched")},
    "old": {
        ("error.json",),
        ("error.PID.replaced.json",),
        ("error.PID.replaced.json", "error.json", "minimal"),
        ("error.PID.replaced.json", "error.json", "enriched"),
    },
    "beside": {
        ("error.json",),
        ("error.PID.json", "minimal", "error.json"),
        ("error.PID.json", "enriched", "error.json"),
    },
    # In place there is never nothing.
    "mount point": {
        ("error.json",),
        ("error.json", "minimal"),
        ("error.json", "enriched"),
    },
    "request to end": {
        (),
        ("error.PID.term.json", "minimal"),
        ("error.PID.term.json", "enriched"),
    },
}


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(place, marks=[pytest.mark.slow] * (place == "request to end"))
        for place in STATES
    ],
)
def test_before_each_system_call(directory: Path, place: str) -> None:
    """What others see of a process changes only at its system calls on files."""
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    end = SIGTERM if place == "request to end" else SIGSEGV
    path, prefix = directory / "error.json", []
    if place == "mount point":
        mounted = directory.parent / "mounted" / "error.json"
        mounted.parent.mkdir()
        mounted.touch()
        prefix = in_mount_namespace(f"mount --bind {path} {mounted}")
        path = mounted
    seen: set[tuple[str, ...]] = set()
    was_there, calls = True, -1
    while was_there:
        calls += 1
        for each in directory.iterdir():
            each.unlink()
        if place in ("old", "mount point"):
            (directory / "error.json").write_text(OLD)
            os.utime(directory / "error.json", (1_000_000, 1_000_000))
        other = OTHER_RECORD if place == "beside" else b""
        pid = start(ptrace, path, other, end, prefix)
        was_there = kill_before(ptrace, pid, end, calls)
        seen.add(left(directory, pid, end))
        check_box(path.parent, pid, end, was_there)
    assert calls > 20
    whole = {names for names in seen if not any(n.endswith(".tmp") for n in names)}
    assert whole == STATES[place]
    # A writer that is killed between two steps leaves a temporary file; the next start
    # removes it.
    for names in seen - whole:
        assert sum(name.endswith(".tmp") for name in names) == 1


def left(directory: Path, pid: int, end: signal.Signals) -> tuple[str, ...]:
    """Return the names of the files, and of our records how much they hold."""
    names = []
    for path in sorted(directory.iterdir()):
        if path.suffix == ".box":
            continue
        names.append(path.name.replace(str(pid), "PID"))
        content = path.read_bytes()
        if content in (OLD.encode(), OTHER_RECORD) or path.suffix == ".tmp":
            continue
        record = json.loads(content)
        section = record["firstfault"]
        is_short = "signal" not in section
        if is_short:
            assert record["message"]["errorCode"] == -end
            is_rich = "native frames" in record["message"]["extraInfo"]["py_callstack"]
        else:
            assert section["signal"]["number"] == end
            is_rich = "stages" in section
        names.append("enriched" if is_rich else "minimal")
    return tuple(names)


def check_box(directory: Path, pid: int, end: signal.Signals, was_killed: bool) -> None:
    """Check that the black box can be read, and tells the truth."""
    path = directory / f"error.{pid}.box"
    if end == SIGTERM and not path.exists():
        return
    box = read_box(path)
    path.unlink()
    assert (box.pid, box.torn) == (pid, 0)
    if end == SIGTERM:
        assert (box.state, box.crash_signal) == ("running", 0)
    elif was_killed:
        assert (box.state, box.crash_signal) in [("running", 0), ("crashed", SIGSEGV)]
    else:
        assert (box.state, box.crash_signal) == ("crashed", SIGSEGV)


@pytest.mark.slow
def test_before_each_request_to_a_network_file_system(directory: Path) -> None:
    """The spare place has the record from before the first of them to behind the last.

    What others see of a file system changes only by what its server is asked.
    """
    seen = []
    for number in itertools.count(1):
        ended, kept = served(f"kill:{number}").crash(
            directory, "threads:2", "read_null"
        )
        found = [amount(kept / "errors"), amount(kept / "shm")]
        for box in (kept / "shm").glob("*.box"):
            assert read_box(box).torn == 0
        shutil.rmtree(kept)
        if ended.status == 128 + SIGSEGV:
            assert found == ["enriched", None]
            break
        assert ended.status == 128 + SIGKILL
        seen.append(found)
    assert len(seen) > 10
    states = [state for state, _ in itertools.groupby(seen)]
    assert states == [
        [None, None],
        [None, "minimal"],
        ["minimal", "minimal"],
        ["minimal", "enriched"],
    ]


def amount(directory: Path) -> str | None:
    """Return how much the one record in a directory holds, None where there is none."""
    paths = [path for path in directory.iterdir() if path.suffix == ".json"]
    if not paths:
        return None
    (path,) = paths
    return "enriched" if "stages" in read_record(path)["firstfault"] else "minimal"
