"""The one writer: complete or absent, the first final one wins, nothing is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path
from signal import SIGSEGV

import pytest

from conftest import PROGRAMS, clean_environment, read_record
from crashes import crash, faults_library
from mounts import in_mount_namespace

RANKS = 8
OTHER_RECORD = b'{"firstfault": {"final": true}}'
IN_PLACE_MAX = 4096


@pytest.mark.parametrize(
    "rounds", [5, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
@pytest.mark.parametrize("way", ["exception", "crash", "both"])
def test_ranks_race_for_one_path(tmp_path: Path, way: str, rounds: int) -> None:
    command = [
        sys.executable,
        PROGRAMS / "racers.py",
        faults_library(),
        way,
        str(RANKS),
    ]
    for number in range(rounds):
        directory = tmp_path / str(number)
        directory.mkdir()
        done = subprocess.run(
            [*command, directory],
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        pids = set(map(int, done.stdout.split()))
        assert len(pids) == RANKS
        winner = json.loads((directory / "error.json").read_bytes())
        won = winner["firstfault"]["process"]["pid"]
        assert won in pids
        names = {f"error.{pid}.json" for pid in pids - {won}} | {"error.json"}
        files = {path.name for path in directory.iterdir() if path.suffix != ".box"}
        assert files == names
        for pid in pids - {won}:
            loser = json.loads((directory / f"error.{pid}.json").read_bytes())
            assert loser["firstfault"]["process"]["pid"] == pid


def test_an_empty_file_is_replaced(directory: Path) -> None:
    (directory / "error.json").touch()
    ours = crash(directory, "read_null")
    assert ours.files == ["error.json"]
    assert ours.record()


def test_an_older_file_is_replaced_and_kept_beside(directory: Path) -> None:
    path = directory / "error.json"
    path.write_text("of an earlier attempt")
    os.utime(path, (1_000_000, 1_000_000))
    ours = crash(directory, "read_null")
    assert ours.files == [f"error.{ours.pid}.replaced.json", "error.json"]
    assert ours.record()
    assert (directory / ours.files[0]).read_text() == "of an earlier attempt"


def test_another_recorders_file_makes_way_for_what_ended_the_process(
    directory: Path,
) -> None:
    ours = crash(directory, "other_record:message", "read_null")
    assert ours.files == [f"error.{ours.pid}.replaced.json", "error.json"]
    assert json.loads((directory / ours.files[0]).read_bytes()) == {
        "message": {"final": True}
    }
    assert ours.record()["firstfault"]["stages"][0]["status"] == "ok"


def test_a_younger_record_of_ours_keeps_its_name(directory: Path) -> None:
    ours = crash(directory, "other_record:firstfault", "read_null")
    assert ours.files == [f"error.{ours.pid}.json", "error.json"]
    assert (directory / "error.json").read_bytes() == OTHER_RECORD
    record = ours.record(ours.files[0])
    assert record["firstfault"]["stages"][0]["status"] == "ok"


def test_a_planted_symbolic_link_is_not_followed(
    directory: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (directory / "error.json").symlink_to(victim)
    ours = crash(directory, "read_null")
    assert victim.read_text() == "untouched"
    assert victim.stat().st_size == 9
    assert ours.status == -SIGSEGV
    assert (directory / "error.json").is_symlink()
    assert ours.record(f"error.{ours.pid}.json")


def test_a_link_to_nowhere_is_not_followed(directory: Path, tmp_path: Path) -> None:
    (directory / "error.json").symlink_to(tmp_path / "nowhere")
    ours = crash(directory, "read_null")
    assert not (tmp_path / "nowhere").exists()
    assert ours.record(f"error.{ours.pid}.json")


ENDINGS = pytest.mark.parametrize(
    ("step", "status", "kind"),
    [("read_null", -SIGSEGV, "signal"), ("raise_error:" + "n" * 5000, 1, "exception")],
    ids=["crash", "raise"],
)


@ENDINGS
@pytest.mark.parametrize("content", ["", "x" * 4096])
def test_a_mount_point_is_written_in_place(
    directory: Path, tmp_path: Path, content: str, step: str, status: int, kind: str
) -> None:
    """As kubelet mounts a pod's termination log, which it reads 4096 bytes of."""
    log = tmp_path / "termination-log"
    log.write_text(content)
    os.utime(log, (1_000_000, 1_000_000))
    (directory / "error.json").touch()
    mount = in_mount_namespace(f"mount --bind {log} {directory}/error.json")
    ours = crash(directory, "threads:3", step, prefix=mount)
    assert ours.status == status
    assert ours.files == ["error.json"]
    written = log.read_bytes()
    assert len(written) <= IN_PLACE_MAX
    record = read_record(log)
    said = "SIGSEGV" if kind == "signal" else "ValueError: nnn"
    assert record["message"]["message"].startswith(said)
    assert record["firstfault"]["kind"] == kind
    shown = "in main" if kind == "signal" else "Traceback (most recent call last):"
    assert shown in record["message"]["extraInfo"]["py_callstack"]


def test_a_mount_point_is_empty_after_a_recovered_fault(
    directory: Path, tmp_path: Path
) -> None:
    log = tmp_path / "termination-log"
    log.touch()
    (directory / "error.json").touch()
    mount = in_mount_namespace(f"mount --bind {log} {directory}/error.json")
    before = [f"install:0:{SIGSEGV:d}"]
    ours = crash(directory, "touch:10", under="activate", before=before, prefix=mount)
    assert (ours.status, ours.files, log.read_text()) == (0, ["error.json"], "")


@pytest.mark.parametrize("value", ["", "/dev/null", None])
def test_no_file_is_wanted(directory: Path, value: str | None) -> None:
    ours = crash(directory, "read_null", env={"TORCHELASTIC_ERROR_FILE": value})
    assert (ours.status, ours.files) == (-SIGSEGV, [])
    assert sorted(path.name for path in directory.parent.iterdir()) == ["errors"]
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("wanted", [True, False])
def test_the_archive_directory(directory: Path, tmp_path: Path, wanted: bool) -> None:
    archive = tmp_path / "archive"
    environment = {
        "FIRSTFAULT_DIR": str(archive),
        "TORCHELASTIC_RUN_ID": "job/../7",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "RANK": "3",
        **({} if wanted else {"TORCHELASTIC_ERROR_FILE": None}),
    }
    ours = crash(directory, "read_null", env=environment)
    host = os.uname().nodename
    path = archive / "job_.._7" / "attempt_2" / f"rank_3.{host}.{ours.pid}.json"
    assert list(archive.rglob("*.json")) == [path]
    own_box = path.with_suffix(f".{ours.pid}.box")
    assert list(archive.rglob("*.box")) == [own_box]
    record = read_record(path)
    assert record["firstfault"]["rank"]["rank"] == 3
    assert ours.files == (["error.json"] if wanted else [])
    if wanted:
        assert ours.record()["firstfault"]["signal"] == record["firstfault"]["signal"]


def test_the_archive_without_a_job(directory: Path, tmp_path: Path) -> None:
    ours = crash(
        directory,
        "fork:read_null",
        "read_null",
        env={"FIRSTFAULT_DIR": str(tmp_path / "archive")},
    )
    found = list((tmp_path / "archive").rglob("*.json"))
    stem = f"no_rank.{os.uname().nodename}.{ours.pid}"
    assert {path.parent.relative_to(tmp_path / "archive") for path in found} == {
        Path("no_run/attempt_0")
    }
    own, child = sorted(path.name for path in found)[::-1]
    assert own == f"{stem}.json"
    assert child.startswith(f"{stem}.{ours.pid}.child_")


def test_one_bad_place_does_not_cost_the_other(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ours = crash(
        directory, "read_null", env={"FIRSTFAULT_DIR": str(tmp_path / "file" / "below")}
    )
    assert (ours.status, ours.files) == (-SIGSEGV, ["error.json"])
    assert "Not a directory" in ours.stderr
    assert ours.record()


def test_it_can_be_switched_off(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    theirs = crash(tmp_path / "theirs", "threads:2", "read_null", under="nothing")
    ours = crash(directory, "threads:2", "read_null", env={"FIRSTFAULT_DISABLE": "1"})
    assert (ours.status, ours.files) == (theirs.status, [])
    assert ours.stderr == theirs.stderr == ""


@ENDINGS
def test_secrets_in_the_command_line_are_not_recorded(
    directory: Path, step: str, status: int, kind: str
) -> None:
    # Steps that nobody executes: they follow the fault.
    rest = ["--api-key=k3y", "--password", "pa55", "--hf_token=t0k", "--lr=0.1"]
    ours = crash(directory, step, *rest)
    assert ours.status == status
    assert ours.record()["firstfault"]["kind"] == kind
    for name in ours.files:
        text = (directory / name).read_text()
        assert not any(secret in text for secret in ("k3y", "pa55", "t0k")), name
    argv = ours.record()["firstfault"]["process"]["argv"]
    assert len(argv) == len(rest) + 6
    assert argv[-1] == "--lr=0.1"


def test_a_relative_path_stays_where_it_was(directory: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    ours = crash(
        directory,
        f"chdir:{elsewhere}",
        "read_null",
        env={"TORCHELASTIC_ERROR_FILE": "errors/error.json"},
        cwd=tmp_path,
    )
    assert (ours.status, ours.files) == (-SIGSEGV, ["error.json"])
    assert list(elsewhere.iterdir()) == []


def test_a_changed_environment_changes_nothing(directory: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    steps = [f"setenv:TORCHELASTIC_ERROR_FILE:{other}", "setenv:RANK:9", "read_null"]
    ours = crash(directory, *steps, env={"RANK": "1"})
    assert ours.files == ["error.json"]
    assert not other.exists()
    assert ours.record()["firstfault"]["rank"]["rank"] == 1


def test_the_directory_is_gone(directory: Path, tmp_path: Path) -> None:
    steps = [f"remove:{directory}", "read_null"]
    ours = crash(directory, *steps, under="activate")
    assert ours.status == -SIGSEGV
    assert not directory.exists()
    said = "firstfault: the error file cannot be written, the record is in "
    found = ours.stderr.removeprefix(said).partition(": ")
    assert found[2] == f"{directory}/error.json: no such directory\n"
    assert read_record(Path(found[0]))
    Path(found[0]).unlink()


def test_a_dead_writers_temporary_file_is_swept_at_the_next_start(
    directory: Path,
) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    for pid in child.pid, os.getpid():
        (directory / f"error.json.{pid}.{pid}.tmp").touch()
    ours = crash(directory, "exit:0")
    assert ours.files == [f"error.json.{os.getpid()}.{os.getpid()}.tmp"]


def test_a_limit_of_the_file_size_leaves_nothing_half(directory: Path) -> None:
    ours = crash(directory, "no_large_files", "read_null")
    assert (ours.status, ours.files) == (-SIGSEGV, [])
