"""Parents and workers: records go up through every way of starting processes."""

import json
from pathlib import Path
from typing import Any

import pytest

import firstfault
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

    def launch(style: str, ending: str, **env: str | None) -> tuple[Ended, Path]:
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


@pytest.mark.parametrize("style", ["spawn", "fork", "elastic"])
def test_the_crash_of_a_function_becomes_the_parents(style: str, launch: Any) -> None:
    ended, logs = launch(style, "segv")
    assert ended.status == 1
    theirs = read_record(worker_file(logs))
    assert theirs["message"]["message"].startswith("SIGSEGV ")
    assert theirs["message"]["errorCode"] == -11
    assert theirs["firstfault"]["rank"]["local_rank"] == 1
    assert ", in worker" in ended.stderr or " in worker" in ended.stderr
    assert "exitcode  : -11 " in ended.stderr
    # The launcher's own record is the worker's, whichever class its failure has.
    assert ended.record() == theirs
    cause = firstfault.report(logs).root_cause
    assert cause is not None
    assert (cause.rank, cause.category) == (1, "segfault")


def test_a_killed_function_leaves_what_torch_says(launch: Any) -> None:
    ended, logs = launch("elastic", "kill")
    assert (ended.status, ended.files) == (1, [])
    assert list(logs.rglob("error.json")) == []
    assert "Signal 9 (SIGKILL) received by PID " in ended.stderr


@pytest.mark.parametrize(
    ("style", "ending", "rank", "category"),
    [
        ("mp_spawn", "segv", None, "segfault"),
        ("mp_fork", "segv", "1", "segfault"),
        ("mp_fork", "kill", None, "killed_unknown"),
    ],
)
def test_a_child_that_a_signal_ended_is_what_its_parent_failed_for(
    style: str, ending: str, rank: str | None, category: str, launch: Any
) -> None:
    """torch.multiprocessing's parent raises for it, and has a record of that beside."""
    ended, _ = launch(style, ending, SET_RANK=rank)
    assert ended.status == 1
    own = [ended.record(name) for name in ended.files if ".term." not in name]
    said = [record["message"]["message"].partition(" ")[0] for record in own]
    assert "ProcessExitedException:" in said
    assert ("SIGSEGV" in said) == (ending == "segv")
    if rank is not None:
        assert ended.record()["firstfault"]["signal"]["name"] == "SIGSEGV"
    cause = firstfault.report(ended.directory).root_cause
    assert cause is not None
    assert cause.category == category


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
