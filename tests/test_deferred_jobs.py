"""Whole jobs under torchrun whose ranks defer errors: files, tracker, report."""

import importlib.util
import json
import os
import re
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conftest import PROGRAMS, clean_environment

HAS_MLFLOW = importlib.util.find_spec("mlflow") is not None


@dataclass(frozen=True)
class Job:
    """A job that has ended."""

    status: int
    output: str
    logs: Path
    directory: Path

    def report(self, *arguments: str) -> str:
        """Return what ``firstfault report`` says."""
        command = [sys.executable, "-m", "firstfault", "report", str(self.logs)]
        return subprocess.check_output([*command, *arguments], text=True)

    def statuses(self) -> list[int]:
        """Return the exit statuses that torchrun lists, by rank."""
        found = re.findall(r"rank +: (\d+) .*\n +exitcode +: (-?\d+)", self.output)
        return [status for _, status in sorted((int(r), int(s)) for r, s in found)]

    def stopped(self) -> list[str]:
        """Return the steps at which the ranks stopped, as they say."""
        return [path.read_text() for path in sorted(self.directory.glob("stopped_*"))]


def run_job(program: str, root: Path, ranks: int, **env: str) -> Job:
    """Run a program under torchrun."""
    directory, logs = root / "run", root / "logs"
    directory.mkdir()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(ranks)),
            *("--log-dir", str(logs), "--redirects", "3"),
            *(str(PROGRAMS / program), str(directory)),
        ],
        env=clean_environment(OMP_NUM_THREADS="1", **env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=280,
    )
    return Job(done.returncode, done.stdout, logs, directory)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("tracked", [False, True])
def test_a_checkpoint_that_fails_on_one_rank(tracked: bool, tmp_path: Path) -> None:
    """Rank 0 cannot write the metadata of step 17."""
    if tracked and not HAS_MLFLOW:
        pytest.skip("mlflow is not installed: `make test-all` installs it")
    database = tmp_path / "mlflow.db"
    env = {"TRACK": f"sqlite:///{database}"} if tracked else {}
    job = run_job("deferred_checkpoint.py", tmp_path, 2, FAIL="metadata:0:17", **env)
    # All stopped at one step, non-zero.
    assert job.stopped() == ["17", "17"], job.output
    assert job.status == 1
    assert len(job.statuses()) == 2
    assert 0 not in job.statuses()
    # The last good checkpoint, and what the failed save left under its name.
    names = sorted(path.name for path in job.directory.glob("step_*"))
    assert names == ["step_13", "step_17.tmp"]
    said = json.loads((job.directory / "step_13" / "run.json").read_text())
    assert said == {"step": 13}
    # torchrun and we say the same.
    root_cause = job.output.split("Root Cause (first observed failure):\n")[1]
    assert "rank      : 0 (local_rank: 0)" in root_cause
    assert "No space left on device" in root_cause
    text = job.report()
    assert "ROOT CAUSE  rank 0" in text
    assert 'deferred at step 17 in "metadata"' in text
    report: dict[str, Any] = json.loads(job.report("--format", "json"))
    assert report["root_cause"]["rank"] == 0
    assert report["root_cause"]["category"] == "disk_full"
    assert report["ranks"]["primary"] == "0"
    assert report["ranks"]["collateral"] == "1"
    assert "stopped_by_agreement" in text
    if tracked:
        with sqlite3.connect(database) as store:
            assert store.execute("select status from runs").fetchall() == [("FAILED",)]
            tags = dict(store.execute("select key, value from tags"))
        assert "No space left on device" in tags["firstfault.failure"]
        assert tags["firstfault.stopped_at"] == "17"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_checkpoint_whose_state_fails_is_left_at_once(tmp_path: Path) -> None:
    job = run_job("deferred_checkpoint.py", tmp_path, 2, FAIL="state:1:17")
    assert job.status == 1
    assert job.stopped() == []
    names = sorted(path.name for path in job.directory.glob("step_*"))
    assert names == ["step_13", "step_17.tmp"]
    assert "CheckpointException" in job.output


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_training_loop_stops_at_one_step_and_closes(tmp_path: Path) -> None:
    job = run_job("deferred_training.py", tmp_path, 3, FAIL="augment:1:13")
    assert job.status == 1
    assert len(set(job.stopped())) == 1, job.output
    assert len(job.stopped()) == 3
    assert int(job.stopped()[0]) in range(13, 31)
    assert (job.directory / "summary").exists()
    assert "ROOT CAUSE  rank 1" in job.report()
    assert os.path.getsize(job.directory / "metrics")
