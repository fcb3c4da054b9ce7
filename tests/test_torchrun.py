"""Real torchrun jobs: what torchrun says, what we say, and that both name the culprit.

The jobs are the demo's own, so this is its test too.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conftest import PROGRAMS, clean_environment, read_record
from crashes import faults_library
from launchers import run_launcher

RANKS = 4
FAULTY = 2
FAULTY_STEP = 3


@dataclass(frozen=True)
class Job:
    """A job that has ended: what the demo printed and what is in its directory."""

    stdout: str
    directory: Path
    launcher_file: Path

    @property
    def attempt(self) -> Path:
        """The directory with one folder a local rank."""
        (attempt,) = self.directory.glob("*/attempt_0")
        return attempt

    def root_cause(self) -> str:
        """Return what torchrun printed as the root cause, without its borders."""
        return self.stdout.split("Root Cause (first observed failure):\n")[1].split(
            "\n====", 1
        )[0]

    def report(self) -> dict[str, Any]:
        """Return our report as JSON."""
        command = [*FIRSTFAULT, "report", str(self.directory), "--format", "json"]
        done = subprocess.run(command, check=True, capture_output=True)
        report: dict[str, Any] = json.loads(done.stdout)
        return report


FIRSTFAULT = (sys.executable, "-m", "firstfault")


def run_demo(fault: str, directory: Path) -> Job:
    """Run one demo job, its launcher with an error file of its own."""
    launcher_file = directory.parent / "launcher.json"
    done = run_launcher(
        [*FIRSTFAULT, "demo", fault, "--directory", str(directory)],
        env=clean_environment(TORCHELASTIC_ERROR_FILE=str(launcher_file)),
        stdout=subprocess.PIPE,
    )
    done.check_returncode()
    return Job(done.stdout, directory, launcher_file)


@dataclass(frozen=True)
class Expected:
    """What one fault must lead to."""

    category: str
    kind: str | None
    exit_code: int
    said_by_torchrun: str
    said_by_us: str
    stack: tuple[str, ...] = ()


EXPECTED = {
    "segfault": Expected(
        "segfault",
        "signal",
        -11,
        "SIGSEGV (Segmentation fault): null pointer at 0x0, in libc",
        "in string_at (ctypes/__init__.py",
        ("in string_at", "in train_step", "in main"),
    ),
    "abort": Expected(
        "abort",
        "signal",
        -6,
        "SIGABRT (Aborted): raised by the process itself",
        "in abort (faults.py",
        ("in abort", "in train_step", "in main"),
    ),
    "exception": Expected(
        "missing_file",
        "exception",
        1,
        "RuntimeError: cannot read the next training shard",
        "FileNotFoundError: [Errno 2] No such file or directory",
        ("in train_step", "in main"),
    ),
    "exit": Expected(
        "exit_without_traceback",
        "exit",
        1,
        "SystemExit: config: model.hidden_size is missing",
        "config: model.hidden_size is missing",
    ),
    "_exit": Expected("exit_without_traceback", None, 17, "<N/A>", "17"),
    "kill": Expected("killed_unknown", None, -9, "Signal 9 (SIGKILL)", "SIGKILL"),
}


@pytest.mark.parametrize("fault", EXPECTED)
def test_both_reports_name_the_culprit(fault: str, tmp_path: Path) -> None:
    expected = EXPECTED[fault]
    job = run_demo(fault, tmp_path / "job")

    # torchrun, unmodified.
    root_cause = job.root_cause()
    assert f"rank      : {FAULTY} (local_rank: {FAULTY})" in root_cause
    assert f"exitcode  : {expected.exit_code} " in root_cause
    assert expected.said_by_torchrun in root_cause
    for function in expected.stack:
        assert function in root_cause

    # Our report, in the same output.
    ours = job.stdout.split("### firstfault report")[1]
    assert f"ROOT CAUSE  rank {FAULTY} " in ours
    assert expected.said_by_us in ours
    report = job.report()
    assert report["root_cause"]["rank"] == FAULTY
    assert report["root_cause"]["category"] == expected.category
    assert report["root_cause"]["step"] == FAULTY_STEP
    assert report["ranks"]["primary"] == str(FAULTY)
    victims = report["ranks"]["collateral"], report["ranks"]["terminated"]
    # Those in the collective with it lose their peer, or torchrun ends them before.
    assert sorted(ranks(",".join(filter(None, victims)))) == [0, 1, 3]

    # The files: the culprit's, the victims', and the launcher's own.
    own = job.attempt / str(FAULTY) / "error.json"
    if expected.kind is None:
        assert not own.exists()
        return
    record = read_record(own)
    section = record["firstfault"]
    assert section["kind"] == expected.kind
    assert section["final"] is True
    assert section["rank"]["rank"] == section["rank"]["local_rank"] == FAULTY
    assert section["rank"]["world_size"] == RANKS
    assert section["rank"]["attempt"] == 0
    assert section["host"]["name"] == os.uname().nodename
    assert section["process"]["entrypoint"] == "main"
    assert section["process"]["argv"][-1] == fault
    # The chain worker, agent, launcher: torchrun's own record took the child's over.
    handed_on = read_record(job.launcher_file)
    assert handed_on["firstfault"] == section
    assert handed_on["message"]["message"] == record["message"]["message"]
    assert handed_on["message"]["errorCode"] == expected.exit_code


def test_a_cpp_exception_in_a_native_thread(tmp_path: Path) -> None:
    """Torchrun's own summary has all three: its text, its native stack, and main's."""
    meeting = tmp_path / "fifo"
    os.mkfifo(meeting)
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"),
        *("--standalone", "--log-dir", str(tmp_path / "job"), "--redirects=3"),
        *(str(PROGRAMS / "watchdog.py"), str(faults_library()), str(meeting)),
    ]
    done = run_launcher(
        command,
        env=clean_environment(OMP_NUM_THREADS="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    summary = done.stderr.split("Root Cause (first observed failure):\n")[1]
    assert "rank      : 1 (local_rank: 1)" in summary
    assert "exitcode  : -6 " in summary
    assert "uncaught C++ exception c10::DistBackendError: rank 3 lost" in summary
    assert "thread 'pt_nccl_watchdg'" in summary
    said, _, stacks = summary.partition("Crashed thread 'pt_nccl_watchdg'")
    assert "\n  rank 3 lost its peer\n  frame #0: somewhere\n" in said
    own, _, mains = stacks.partition("\n  Thread '")
    native = own.partition("Its native frames (most recent call first):\n")[2]
    frames = [line.split("+0x")[0].strip() for line in native.splitlines() if line]
    # From abort(3) by way of the throw to where the thread began.
    assert frames[0].startswith("libc.so")
    assert any(frame.startswith("libstdc++.so") for frame in frames)
    assert frames.count(faults_library().name) >= 3
    assert re.search(r'watchdog\.py", line \d+ in train_step\n.* in main\n', mains)
    (attempt,) = (tmp_path / "job").glob("*/attempt_0")
    # The victim left a snapshot that says who ended it, and no failure.
    (snapshot,) = (attempt / "0").glob("error.*.json")
    assert snapshot.name.endswith(".term.json")
    section = read_record(snapshot)["firstfault"]
    assert section["signal"]["sender"]["comm"]
    assert "train_step" in str(section["threads"])
    report = [*FIRSTFAULT, "report", str(tmp_path / "job"), "--format", "json"]
    told = json.loads(subprocess.check_output(report))
    assert told["root_cause"]["rank"] == 1
    assert told["ranks"]["terminated"] == "0"


def test_a_rank_that_hangs_is_named_by_the_others_waiting(tmp_path: Path) -> None:
    job = run_demo("hang", tmp_path / "job")
    report = job.report()
    assert report["root_cause"]["rank"] == FAULTY
    assert report["root_cause"]["category"] == "hang"


def test_the_demo_refuses_a_directory_that_is_in_use(tmp_path: Path) -> None:
    (tmp_path / "error.json").write_text("{}")
    command = [*FIRSTFAULT, "demo", "--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"{tmp_path} is not empty" in done.stderr


def ranks(text: str) -> list[int]:
    """Return the ranks of a range list such as ``0-1,3``."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return found
