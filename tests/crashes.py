"""What the crash tests share: programs that die, and how they ended."""

import functools
import json
import os
import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conftest import PROGRAMS, Ended, clean_environment

ROOT = Path(__file__).parent.parent


def faults_library() -> Path:
    """Return the library of faults, built if it is not there."""
    given = os.environ.get("FAULTS_LIBRARY")
    return Path(given) if given else built_library("firstfault-faults")


@functools.cache
def built_library(package: str) -> Path:
    """Return the library of a package of the workspace, after building it."""
    command = ["cargo", "build", "-q", "-p", package, "--message-format=json"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        message = json.loads(line)
        target = message.get("target", {}).get("name")
        if target == package.replace("-", "_") and "filenames" in message:
            return Path(message["filenames"][0])
    raise AssertionError("cargo named no library")


def missing(what: str) -> None:
    """Skip a test for what is missing here; in CI nothing may be missing."""
    if os.environ.get("CI"):
        pytest.fail(f"missing: {what}")
    pytest.skip(f"missing: {what}")


def allow_cores() -> None:
    """Let this process leave a core dump of any size."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))


def need_cores() -> None:
    """Skip a test where core dumps are not left in the working directory."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if "/" in pattern or pattern.startswith("|"):
        missing(f"core dumps in the working directory; core_pattern is {pattern!r}")
    if resource.getrlimit(resource.RLIMIT_CORE)[1] not in (-1, resource.RLIM_INFINITY):
        missing("an unlimited size of core dumps")


@dataclass(frozen=True)
class Crashed(Ended):
    """How a crash program ended."""

    pid: int
    began_ns: int
    ended_ns: int


def crash(
    directory: Path,
    *steps: str,
    under: str = "firstfault",
    context: str = "main",
    before: Sequence[str] = (),
    env: Mapping[str, str | None] | None = None,
    prefix: Sequence[str] = (),
    cwd: Path | None = None,
    program: str = "crash.py",
    while_ready: Callable[[int], None] | None = None,
    limits: Callable[[], None] | None = None,
    library: Path | None = None,
) -> Crashed:
    """Run steps in a process of their own, with the error file in a directory.

    With `while_ready` the process tells when the step ``ready`` is reached, by default
    behind all others, and waits; this function, which gets the process ID, brings the
    end. At the step ``tell`` it tells and does not wait.
    """
    reading, writing = os.pipe()
    if while_ready and "tell" not in steps:
        steps = (*steps, "ready")
    told = ("ready", "tell")
    steps = tuple(f"{step}:{writing}" if step in told else step for step in steps)
    default = {"TORCHELASTIC_ERROR_FILE": str(directory / "error.json")}
    began = time.time_ns()
    process = subprocess.Popen(
        [
            *(*prefix, sys.executable, PROGRAMS / program),
            *(library or faults_library(), under, context),
            *(*before, "--", *steps),
        ],
        env=clean_environment(**{**default, **(env or {})}),
        cwd=cwd or directory.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[writing],
        preexec_fn=limits,
    )
    os.close(writing)
    deadline = threading.Timer(100, process.kill)
    deadline.start()
    try:
        if while_ready and os.read(reading, 1):
            while_ready(process.pid)
        stdout, stderr = process.communicate()
    finally:
        deadline.cancel()
        os.close(reading)
    return Crashed(
        process.returncode,
        stdout.decode(errors="replace"),
        stderr.decode(errors="replace"),
        directory,
        process.pid,
        began,
        time.time_ns(),
    )


def comparable(stderr: str) -> list[str]:
    """Return the lines of a faulthandler dump that two runs of a program share.

    Not shared are addresses, the decorator's own frame, and the list of modules.
    """
    lines = re.sub(r"0x[0-9a-f]+", "0x…", stderr).splitlines()
    own = re.compile(
        r'/firstfault/_record\.py"|/errors/__init__\.py"|^Extension modules'
    )
    return [line for line in lines if line and not own.search(line)]


def functions(thread: Mapping[str, Any]) -> list[str]:
    """Return the names of a thread's Python functions, innermost first."""
    return [frame["function"] for frame in thread.get("python", [])]


def crashed_thread(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the one thread that crashed."""
    threads = [t for t in record["firstfault"]["threads"] if t.get("crashed")]
    assert len(threads) == 1
    return threads[0]


def main_thread(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the main thread."""
    section = record["firstfault"]
    return next(t for t in section["threads"] if t["tid"] == section["process"]["pid"])
