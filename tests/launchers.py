"""Launchers such as torchrun, run to their end, or shown and ended with their workers.

torchrun makes each worker the leader of a session of its own. Whoever kills torchrun
alone, as `subprocess.run` does at its timeout, leaves them behind and sees no stacks.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

DEADLINE = 110.0
"""Seconds that a job may take where a test does not say; the machine may be busy."""

STACKS = 10.0
"""Seconds that workers have to leave their stacks when the deadline has passed."""


def run_launcher(
    command: list[str], *, deadline: float = DEADLINE, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a launcher and return how it ended.

    Args:
        command: What to run.
        deadline: Seconds that it may take.
        options: As `subprocess.Popen` takes them.

    Raises:
        AssertionError: It did not end in time. Its text has the stacks of the workers,
            and all that it started is dead.
    """
    with subprocess.Popen(
        command, text=True, start_new_session=True, **options
    ) as launcher:
        try:
            stdout, stderr = launcher.communicate(timeout=deadline)
        except subprocess.TimeoutExpired:
            shown = show_and_end(launcher)
            text = f"{command} did not end in {deadline:g} s\n{shown}"
            raise AssertionError(text) from None
        except BaseException:
            _kill(launcher, descendants(launcher.pid))
            raise
    return subprocess.CompletedProcess(command, launcher.returncode, stdout, stderr)


def show_and_end(launcher: subprocess.Popen[str]) -> str:
    """End a launcher and all that it started; return its output and the stacks.

    Workers are asked by SIGABRT: those that record failures leave their stacks in their
    error files, others print them where PYTHONFAULTHANDLER is set.
    """
    started = descendants(launcher.pid)
    environments = {pid: _environment(pid) for pid in started}
    workers = [pid for pid in started if "RANK" in environments[pid]]
    # One that runs ends the other workers when the first is dead.
    others = {launcher.pid, *started} - set(workers)
    _send(signal.SIGSTOP, others)
    handles = [os.pidfd_open(pid) for pid in workers]
    _send(signal.SIGABRT, workers)
    _await(handles)
    _send(signal.SIGCONT, others)
    try:
        launcher.communicate(timeout=STACKS if workers else 0)
    except subprocess.TimeoutExpired:
        _kill(launcher, started)
    outputs = [output for output in launcher.communicate() if output]
    paths = {environments[pid].get("TORCHELASTIC_ERROR_FILE", "") for pid in workers}
    return "\n".join(outputs + [_stacks(Path(path)) for path in sorted(paths)])


def descendants(pid: int) -> list[int]:
    """Return the processes that one has started, and those that they have."""
    children = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            _, parent, *_ = path.read_text().rpartition(")")[2].split()
        except OSError:  # Gone meanwhile.
            continue
        children[int(parent)].append(int(path.parent.name))
    found = children[pid]
    for child in found:
        found.extend(children[child])
    return found


def _environment(pid: int) -> dict[str, str]:
    try:
        entries = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
    except OSError:
        return {}
    return {key: value for key, _, value in (entry.partition("=") for entry in entries)}


def _await(handles: list[int]) -> None:
    """Wait until processes have ended, for a while; their handles are closed then."""
    end = time.monotonic() + STACKS
    for handle in handles:
        select.select([handle], [], [], max(end - time.monotonic(), 0))
        os.close(handle)


def _kill(launcher: subprocess.Popen[str], started: list[int]) -> None:
    launcher.kill()
    _send(signal.SIGKILL, started)


def _send(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _stacks(path: Path) -> str:
    try:
        message = json.loads(path.read_bytes())["message"]
    except OSError as error:  # Not written, or by nobody who records.
        return f"--- {error}"
    return f"--- {path}: {message['message']}\n{message['extraInfo']['py_callstack']}"
