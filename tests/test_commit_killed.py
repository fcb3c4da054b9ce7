"""Killed at any moment of the handler's run: the error file is whole or absent."""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from signal import SIGSEGV

import pytest

import firstfault
from conftest import clean_environment
from crashes import faults_library, missing

PTRACE_TRACEME, PTRACE_PEEKUSER, PTRACE_CONT, PTRACE_SYSCALL = 0, 3, 7, 24
# Of x86-64, by number: write, openat, unlinkat, linkat, renameat2.
CHANGING = {1, 257, 263, 265, 316}
ORIG_RAX = 15 * 8
OTHER_RECORD = b'{"firstfault": {"final": true}}'
# Starts in a few hundredths of a second, as it does so often.
VICTIM = """
import ctypes, sys
from firstfault import _native
path, library, other = sys.argv[1:]
_native.activate(error_file=path, entrypoint=None, argv=[])
if other:
    with open(path, "w") as file:
        file.write(other)
ctypes.CDLL(library).read_null()
"""

Ptrace = Callable[..., int]


def start(ptrace: Ptrace, path: Path, other: bytes) -> int:
    """Start the victim under our eyes; return its process ID when it has faulted."""
    arguments = [str(path), str(faults_library()), other.decode()]
    package = Path(firstfault.__path__[0]).parent
    environment = clean_environment(PYTHONPATH=str(package))
    pid = os.fork()
    if pid == 0:
        try:
            if ptrace(PTRACE_TRACEME, 0, None, None) == 0:
                command = [sys.executable, "-S", "-c", VICTIM, *arguments]
                os.execve(sys.executable, command, environment)
        finally:
            os._exit(1)
    while (number := stopped(pid)) != SIGSEGV:
        if number is None:
            missing("ptrace(2)")
        # It stops once when it becomes another program.
        ptrace(PTRACE_CONT, pid, None, None if number == signal.SIGTRAP else number)
    return pid


def stopped(pid: int) -> int | None:
    """Return the signal that a traced child stopped by, None when it has ended."""
    _, status = os.waitpid(pid, 0)
    return os.WSTOPSIG(status) if os.WIFSTOPPED(status) else None


def kill_before(ptrace: Ptrace, pid: int, calls: int) -> bool:
    """Kill a process before its n-th call that others may notice.

    Returns whether it was there to be killed.
    """
    deliver: int | None = SIGSEGV
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
}


@pytest.mark.parametrize("place", STATES)
def test_before_each_system_call(directory: Path, place: str) -> None:
    """What others see of a process changes only at its system calls on files."""
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    seen: set[tuple[str, ...]] = set()
    was_there, calls = True, -1
    while was_there:
        calls += 1
        for path in directory.iterdir():
            path.unlink()
        if place == "old":
            (directory / "error.json").write_text("old")
            os.utime(directory / "error.json", (1_000_000, 1_000_000))
        other = OTHER_RECORD if place == "beside" else b""
        pid = start(ptrace, directory / "error.json", other)
        was_there = kill_before(ptrace, pid, calls)
        seen.add(left(directory, pid))
    assert calls > 20
    whole = {names for names in seen if not any(n.endswith(".tmp") for n in names)}
    assert whole == STATES[place]
    # A writer that is killed between two steps leaves a temporary file; the next start
    # removes it.
    for names in seen - whole:
        assert sum(name.endswith(".tmp") for name in names) == 1


def left(directory: Path, pid: int) -> tuple[str, ...]:
    """Return the names of the files, and of our records how much they hold."""
    names = []
    for path in sorted(directory.iterdir()):
        if path.suffix == ".box":
            continue
        names.append(path.name.replace(str(pid), "PID"))
        content = path.read_bytes()
        if content in (b"old", OTHER_RECORD) or path.suffix == ".tmp":
            continue
        section = json.loads(content)["firstfault"]
        assert section["signal"]["number"] == SIGSEGV
        names.append("enriched" if "stages" in section else "minimal")
    return tuple(names)
