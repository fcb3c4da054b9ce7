"""Parents and workers: records go up through every way of starting processes."""

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import PROGRAMS, Ended, Run, read_record

LAUNCHES = PROGRAMS / "launches.py"


def worker_file(logs: Path) -> Path:
    """Return the error file of rank 1, wherever torchelastic put it."""
    (path,) = logs.rglob("1/error.json")
    return path


@pytest.fixture
def launch(run: Run, tmp_path: Path) -> Any:
    """Start workers; returns how the parent ended and where the workers' files are."""
    logs = tmp_path / "logs"
    logs.mkdir()

    def launch(style: str, ending: str, **env: str) -> tuple[Ended, Path]:
        return run(LAUNCHES, style, str(logs), ending, env=env), logs

    return launch


@pytest.mark.parametrize("style", ["spawn", "fork", "binary"])
def test_the_workers_record_becomes_the_parents(style: str, launch: Any) -> None:
    ended, logs = launch(style, "raise")
    assert ended.status == 1
    assert "worker FAILED" in ended.stderr
    assert "ValueError: no data" in ended.stderr
    own = worker_file(logs)
    if style != "binary":  # torch's own decorator is around ours, and overwrote it
        assert "firstfault" not in json.loads(own.read_bytes())
        own = own.with_suffix(".firstfault.json")
    theirs = read_record(own)
    assert theirs["firstfault"]["rank"]["local_rank"] == 1
    record = ended.record()
    assert record["message"].pop("errorCode") == 1
    assert record == theirs
    (link,) = record["firstfault"]["exception"]["chain"]
    assert (link["type"], link["relation"]) == ("FileNotFoundError", "cause")


@pytest.mark.parametrize(
    ("style", "ending", "status", "text"),
    [
        ("binary", "exit", 7, "SystemExit: 7"),
        ("fork", "text", 1, "SystemExit: config file is missing"),
    ],
)
def test_an_exit_of_a_worker_is_recorded(
    style: str, ending: str, status: int, text: str, launch: Any
) -> None:
    ended, logs = launch(style, ending)
    record = read_record(worker_file(logs))
    assert record["message"]["message"] == text
    assert record["firstfault"]["kind"] == "exit"
    assert ended.record()["message"]["errorCode"] == status
    assert ended.record()["firstfault"] == record["firstfault"]
    assert text in ended.stderr


def test_a_good_job_leaves_no_record(launch: Any) -> None:
    ended, logs = launch("fork", "return")
    assert (ended.status, ended.files) == (0, [])
    assert ended.stdout == "{0: 'fine', 1: 'fine'}\n"
    assert list(logs.rglob("error*.json")) == []


PARENTS = "ProcessRaisedException: "


def test_a_child_without_a_rank_writes_beside(launch: Any) -> None:
    ended, _ = launch("mp_fork", "raise")
    assert ended.status == 1
    record = ended.record()
    assert record["message"]["message"].startswith(PARENTS)
    assert "ValueError: no data" in record["message"]["message"]
    (name,) = (n for n in ended.files if ".child_" in n and "firstfault" not in n)
    section = ended.record(name)["firstfault"]
    assert section["exception"]["message"] == "no data"
    assert section["final"] is True
    assert section["process"]["ppid"] == record["firstfault"]["process"]["pid"]


def test_a_child_with_a_rank_keeps_the_error_file(launch: Any) -> None:
    ended, _ = launch("mp_spawn", "raise", SET_RANK="1")
    assert ended.status == 1
    section = ended.record()["firstfault"]
    assert section["exception"]["message"] == "no data"
    assert section["rank"]["rank"] == 1
    # The other worker may be asked to end before it is done, and leaves a snapshot.
    others = {
        name
        for name in ended.files
        if name != "error.json" and "firstfault" not in name and ".term." not in name
    }
    (parent,) = (ended.record(name) for name in others)
    assert parent["message"]["message"].startswith(PARENTS)
    assert parent["firstfault"]["process"]["pid"] == section["process"]["ppid"]


def test_the_whole_record_reaches_the_launcher(run: Run, tmp_path: Path) -> None:
    ended = run(LAUNCHES, "launcher", str(tmp_path), "raise")
    assert ended.status == 1
    record = ended.record()
    theirs = read_record(worker_file(tmp_path))
    assert record["firstfault"] == theirs["firstfault"]
    assert record["message"]["errorCode"] == 1
    assert record["message"]["extraInfo"] == theirs["message"]["extraInfo"]
    assert read_record(tmp_path / "agent.json") == record


def test_torchs_checkpoint_exception_is_recorded(run: Run) -> None:
    ended = run("""
from torch.distributed.checkpoint.api import CheckpointException
from firstfault import record
@record
def main():
    raise CheckpointException("save", {0: (OSError("no space"), None)})
main()
""")
    assert ended.status == 1
    record = ended.record()
    assert record["message"]["message"].startswith("CheckpointException: ")
    mro = record["firstfault"]["exception"]["mro"]
    assert "builtins.Exception" not in mro
