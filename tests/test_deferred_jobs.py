"""Whole jobs under torchrun whose ranks defer errors: files, tracker, report."""

import json
import os
import runpy
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conftest import PROGRAMS, clean_environment, needs, read_record
from firstfault.deferred import DeferredErrors, training_run
from launchers import run_launcher
from process_groups import run_ranks


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

    def endings(self) -> list[tuple[str, bool]]:
        """Return of each rank what ended it, and whether that is final.

        The statuses that torchrun lists say nothing: it ends the others itself.
        """
        paths = sorted(self.logs.glob("*/attempt_0/*/error.json"))
        sections = [read_record(path)["firstfault"] for path in paths]
        return [(section["kind"], section["final"]) for section in sections]

    def stopped(self) -> list[str]:
        """Return the steps at which the ranks stopped, as they say."""
        return [path.read_text() for path in sorted(self.directory.glob("stopped_*"))]


def run_job(program: str, root: Path, ranks: int, **env: str) -> Job:
    """Run a program under torchrun."""
    directory, logs = root / "run", root / "logs"
    directory.mkdir()
    done = run_launcher(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(ranks)),
            *("--log-dir", str(logs), "--redirects", "3"),
            *(str(PROGRAMS / program), str(directory)),
        ],
        env=clean_environment(OMP_NUM_THREADS="1", **env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        deadline=280,
    )
    return Job(done.returncode, done.stdout, logs, directory)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "tracked",
    [
        False,
        pytest.param(True, marks=[pytest.mark.slow, needs("mlflow", "sqlalchemy")]),
    ],
)
def test_a_checkpoint_that_fails_on_one_rank(tracked: bool, tmp_path: Path) -> None:
    """Rank 0 cannot write the metadata of step 17."""
    database = tmp_path / "mlflow.db"
    env = {"TRACK": f"sqlite:///{database}"} if tracked else {}
    job = run_job("deferred_checkpoint.py", tmp_path, 2, FAIL="metadata:0:17", **env)
    # All stopped at one step, and main was left by the error on all of them.
    assert job.stopped() == ["17", "17"], job.output
    assert job.status == 1
    assert job.endings() == [("deferred", True)] * 2, job.output
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


FAILURES = {
    # Peers may be in the next step already, but no rank is in the next epoch.
    "augment:1:3": {"3", "4"},
    "metrics:0:3": {"3", "4"},
    # In the closing code, after the last step.
    "summary:2:30": {"30"},
    "summary:0:30": {"30"},
}
"""What fails in the training loop, and the steps at which all may stop."""


def trains(root: str) -> list[list[int]]:
    """Run the training program with each failure; return which ranks are blamed."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _get_default_store

    program = runpy.run_path(str(PROGRAMS / "deferred_training.py"))
    rank, size, store = dist.get_rank(), dist.get_world_size(), _get_default_store()
    dist.destroy_process_group()
    blamed = []
    for fail in FAILURES:
        os.environ["FAIL"] = fail
        own = dist.PrefixStore(fail, store)
        dist.init_process_group("gloo", store=own, rank=rank, world_size=size)
        with pytest.raises(DeferredErrors) as raised, training_run() as errs:
            program["train"](errs, Path(root) / fail)
        blamed.append(sorted(raised.value.failures))
    return blamed


def test_a_training_loop_stops_at_one_step_and_closes(tmp_path: Path) -> None:
    for fail in FAILURES:
        (tmp_path / fail).mkdir()
    for one in run_ranks(trains, 3, str(tmp_path), store="agent"):
        assert one.value == [[1], [0], [2], [0]], one.output
    for fail, steps in FAILURES.items():
        stopped = [path.read_text() for path in (tmp_path / fail).glob("stopped_*")]
        assert stopped == stopped[:1] * 3
        assert stopped[0] in steps
        closed = (tmp_path / fail / "summary").exists()
        assert closed == (fail != "summary:0:30")
        assert (tmp_path / fail / "metrics").stat().st_size


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_report_names_the_rank_whose_loop_failed(tmp_path: Path) -> None:
    job = run_job("deferred_training.py", tmp_path, 3, FAIL="augment:1:13")
    assert job.status == 1
    assert len(set(job.stopped())) == 1, job.output
    assert len(job.stopped()) == 3
    assert "ROOT CAUSE  rank 1" in job.report()
