"""Where the error file is: on file systems of every kind, full, gone, or silent."""

import json
import time
from pathlib import Path
from signal import SIGABRT, SIGKILL, SIGSEGV, SIGTERM

import pytest

from conftest import read_record
from crashes import crashed_thread, functions
from mounts import EXT4, OVERLAY, TMPFS, Mounted, served
from test_black_box import report

KINDS = {
    "tmpfs": TMPFS,
    "overlayfs": OVERLAY,
    "ext4": EXT4,
    "without nameless files": served(),
    "without links": served("link"),
    "without links and renameat2": served("link", "rename2"),
}
SILENT = served()
RESUME = "kill -CONT $FILE_SERVER"
# What is done in the end, and the signal that the process ends by.
ENDS = {
    SIGSEGV: "read_null",
    SIGABRT: "os_abort",
    SIGTERM: f"kill:{SIGTERM:d}",
}


def json_files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.suffix != ".box")


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash(directory: Path, kind: str) -> None:
    ended, kept = KINDS[kind].crash(directory, "threads:2", "read_null")
    assert (ended.status, ended.stderr) == (128 + SIGSEGV, "")
    assert json_files(kept / "errors") == ["error.json"]
    assert json_files(kept / "shm") == []
    record = read_record(kept / "errors/error.json")
    assert "main" in functions(crashed_thread(record))
    assert len(record["firstfault"]["threads"]) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_an_older_file_and_a_child(directory: Path, kind: str) -> None:
    steps = ["older_file", "fork:read_null", "read_null"]
    ended, kept = KINDS[kind].crash(directory, *steps)
    assert ended.status == 128 + SIGSEGV
    names = json_files(kept / "errors")
    (child,) = (name for name in names if ".child_" in name)
    (replaced,) = (name for name in names if name.endswith(".replaced.json"))
    assert names == sorted(["error.json", child, replaced])
    assert json_files(kept / "shm") == []
    assert read_record(kept / "errors/error.json")
    assert read_record(kept / "errors" / child)


def spared(kept: Path, ending: str = ".json") -> Path:
    """Return the one record that is in memory."""
    (name,) = json_files(kept / "shm")
    assert name.startswith("firstfault.")
    assert name.endswith(ending)
    path = kept / "shm" / name
    assert path.stat().st_mode & 0o777 == 0o600
    return path


@pytest.mark.parametrize("signal", ENDS)
def test_a_file_system_that_does_not_answer(directory: Path, signal: int) -> None:
    """The process dies by its signal all the same, and says where the record is."""
    steps = ["threads:2", "stop:FILE_SERVER", ENDS[signal]]
    ended, kept = SILENT.crash(directory, *steps, after=RESUME)
    assert ended.status == 128 + signal
    assert (ended.ended_ns - ended.began_ns) < 12e9
    path = spared(kept, ".term.json" if signal == SIGTERM else ".json")
    said = f"record is in /dev/shm/{path.name}: {directory}/error"
    assert said in ended.stderr
    assert ended.stderr.endswith(": does not answer\n")
    assert ended.stderr.count("\n") == 1
    record = read_record(path)
    assert record["firstfault"]["signal"]["number"] == signal
    assert record["firstfault"]["threads_total"] == 3
    assert len(record["firstfault"]["threads"]) == 3
    # Who was cut off in the middle has left nothing half.
    for name in json_files(kept / "errors"):
        assert name.endswith(".tmp") or read_record(kept / "errors" / name)


# What leaves main, its status, and what is recorded of it.
LEAVES = {
    "raise_error:loss is nan": (1, "ValueError: loss is nan"),
    "exit:3": (3, "SystemExit: 3"),
}


@pytest.mark.parametrize("step", LEAVES)
def test_an_exception_where_nothing_answers(directory: Path, step: str) -> None:
    status, message = LEAVES[step]
    ended, kept = SILENT.crash(
        directory, "stop:FILE_SERVER", step, under="firstfault", after=RESUME
    )
    assert ended.status == status
    assert (ended.ended_ns - ended.began_ns) < 20e9
    path = spared(kept)
    said = f"the file system does not answer; the record is in /dev/shm/{path.name}"
    assert said in ended.stderr
    assert f"'{directory}/error.json'" in ended.stderr
    record = read_record(path)
    assert record["message"]["message"] == message
    assert record["firstfault"]["final"] is True


def test_an_exception_where_the_answer_is_slow(directory: Path) -> None:
    steps = ["stop:FILE_SERVER:0.5", "raise_error:loss is nan"]
    ended, kept = SILENT.crash(directory, *steps, under="firstfault")
    assert ended.status == 1
    assert "firstfault" not in ended.stderr.replace("firstfault/_record.py", "")
    assert json_files(kept / "shm") == []
    names = ["error.firstfault.json", "error.json"]
    assert json_files(kept / "errors") == names
    assert read_record(kept / "errors/error.json")["firstfault"]["final"] is True


def test_an_exception_whose_program_does_not_answer(directory: Path) -> None:
    """Its source lines are not to be had; all the rest is recorded."""
    local = directory.parent / "local.json"
    ended, _ = SILENT.crash(
        directory,
        f"raise_from:{directory}",
        under="firstfault",
        env={"TORCHELASTIC_ERROR_FILE": str(local)},
        after=RESUME,
    )
    assert ended.status == 1
    record = read_record(local)
    assert record["message"]["message"] == "ValueError: out of reach"
    assert record["firstfault"]["final"] is True
    stack = record["message"]["extraInfo"]["py_callstack"]
    assert f'File "{directory}/far.py", line 2, in fail' in stack
    assert "raise ValueError" not in stack


def test_a_crash_in_a_library_that_does_not_answer(directory: Path) -> None:
    """Its unwind tables are read for ever: the minimal record is there by then."""
    local, library = directory.parent / "local.json", directory / "far.so"
    ended, _ = SILENT.crash(
        directory,
        f"through_far:{library}:read_null",
        before=[f"load_far:{library}"],
        env={"TORCHELASTIC_ERROR_FILE": str(local)},
        after=RESUME,
    )
    assert ended.status == 128 + SIGKILL
    section = read_record(local)["firstfault"]
    assert section["signal"]["name"] == "SIGSEGV"
    assert "stages" not in section


def test_a_failure_after_one_that_found_no_answer(directory: Path) -> None:
    """The first one's thread still waits; nobody waits for it again."""
    steps = ["stop:FILE_SERVER", "record_error:first", "raise_error:second"]
    ended, kept = SILENT.crash(directory, *steps, under="firstfault", after=RESUME)
    assert ended.status == 1
    record = read_record(spared(kept))
    assert record["message"]["message"] == "ValueError: second"
    (earlier,) = record["firstfault"]["preceded_by"]
    assert earlier["message"] == "ValueError: first"


def test_a_request_that_the_program_answers_itself(directory: Path) -> None:
    """The snapshot does not keep its handler from running, nor the exit waiting."""
    before = [f"handle:{SIGTERM:d}"]
    steps = ["stop:FILE_SERVER", f"kill:{SIGTERM:d}", "exit:0"]
    ended, kept = SILENT.crash(directory, *steps, before=before, after=RESUME)
    assert (ended.status, ended.ended_ns - ended.began_ns < 20e9) == (0, True)
    assert "handled\n" in ended.stderr
    path = spared(kept, ".term.json")
    assert f"record is in /dev/shm/{path.name}: " in ended.stderr
    assert read_record(path)["firstfault"]["signal"]["number"] == SIGTERM


@pytest.mark.parametrize("silent", ["child", "own"])
def test_a_childs_record_is_taken_over(directory: Path, silent: str) -> None:
    """Where it, or the place it goes to, does not answer."""
    local = directory.parent / "local.json"
    own, child = directory / "error.json", local
    if silent == "child":
        own, child = local, directory / "error.json"
    steps = ["stop:FILE_SERVER", f"take_over:{child}"]
    local.write_text(json.dumps({"message": {"message": "E: it", "extraInfo": {}}}))
    env = {"TORCHELASTIC_ERROR_FILE": str(own)}
    ended, kept = SILENT.crash(
        directory, *steps, under="firstfault", env=env, after=RESUME
    )
    assert ended.status == 0
    if silent == "child":
        taken = json.loads(local.read_bytes())["message"]["message"]
        assert f"{child} is damaged (the file system does not answer)" in taken
    else:
        path = spared(kept)
        assert f"; the record is in /dev/shm/{path.name}: '{own}'" in ended.stderr
        assert json.loads(path.read_bytes())["message"]["message"] == "E: it"


def test_the_report_reads_what_was_spared(directory: Path) -> None:
    steps = ["stop:FILE_SERVER", "read_null"]
    env: dict[str, str | None] = {"RANK": "3", "WORLD_SIZE": "8"}
    _, kept = SILENT.crash(directory, *steps, env=env, after=RESUME)
    cause = report(spared(kept))["root_cause"]
    assert (cause["rank"], cause["category"]) == (3, "segfault")


def test_a_slow_file_system(directory: Path) -> None:
    ended, kept = SILENT.crash(directory, "stop:FILE_SERVER:0.5", "read_null")
    assert (ended.status, ended.stderr) == (128 + SIGSEGV, "")
    assert json_files(kept / "shm") == []
    assert "stages" in read_record(kept / "errors/error.json")["firstfault"]


def test_stderr_does_not_answer_either(directory: Path) -> None:
    """The handler is done with it; the kernel waits when it closes the file."""
    steps = [f"stderr:{directory}/stderr", "stop:FILE_SERVER:3.5", "read_null"]
    ended, kept = SILENT.crash(directory, *steps)
    assert ended.status == 128 + SIGSEGV
    stages = read_record(spared(kept))["firstfault"]["stages"]
    assert {s["name"] for s in stages if s["status"] != "ok"} == {"minimal"}


def test_a_handler_that_recovers_leaves_nothing_when_it_answers(
    directory: Path,
) -> None:
    before = [f"install:0:{SIGSEGV:d}"]
    steps = ["stop:FILE_SERVER:2.5", "touch:10", "sleep:3", "report_files", "exit:0"]
    ended, kept = SILENT.crash(directory, *steps, before=before)
    assert (ended.status, ended.stderr) == (0, "[]\n")
    assert json_files(kept / "shm") == json_files(kept / "errors") == []


def test_a_frozen_disk_is_waited_for(directory: Path) -> None:
    """Nobody can end a thread that waits for a local disk; then all is as ever."""
    freeze = f"fsfreeze:{directory}:1"
    began = time.monotonic()
    ended, kept = EXT4.crash(directory, "threads:2", freeze, "read_null")
    assert time.monotonic() - began > 1
    assert (ended.status, ended.stderr) == (128 + SIGSEGV, "")
    assert json_files(kept / "errors") == ["error.json"]
    assert read_record(kept / "errors/error.json")["firstfault"]["threads_total"] == 3


FULL = Mounted("""
    mount -t tmpfs -o size=16k none "$DIRECTORY"
    head -c 16384 /dev/zero > "$DIRECTORY/filler" || true
""")


@pytest.mark.parametrize("signal", ENDS)
def test_a_full_disk(directory: Path, signal: int) -> None:
    ended, kept = FULL.crash(directory, "threads:2", ENDS[signal])
    assert ended.status == 128 + signal
    assert json_files(kept / "errors") == ["filler"]
    assert ended.stderr.endswith("json: no space left on the device\n")
    record = read_record(spared(kept))
    assert record["firstfault"]["threads_total"] == 3
    assert record["firstfault"]["signal"]["number"] == signal


def test_an_exception_on_a_full_disk(directory: Path) -> None:
    steps = ["raise_error:loss is nan"]
    ended, kept = FULL.crash(directory, *steps, under="firstfault")
    assert ended.status == 1
    assert json_files(kept / "errors") == ["filler"]
    path = spared(kept)
    assert f"No space left on device; the record is in /dev/shm/{path.name}" in (
        ended.stderr
    )
    assert read_record(path)["message"]["message"] == "ValueError: loss is nan"


def test_the_first_record_stays_when_the_second_does_not_fit(directory: Path) -> None:
    nearly = Mounted(FULL.script.replace("-c 16384", "-c 8192"))
    _, kept = nearly.crash(directory, "threads:50", "read_null")
    assert json_files(kept / "errors") == ["error.json", "filler"]
    first = read_record(kept / "errors/error.json")["firstfault"]
    assert "stages" not in first
    second = read_record(spared(kept))["firstfault"]
    assert second["threads_total"] == 51
    assert first["signal"] == second["signal"]


def test_a_full_disk_and_a_child(directory: Path) -> None:
    ended, kept = FULL.crash(directory, "fork:read_null", "exit:0")
    assert ended.status == 0
    name = spared(kept).name
    assert ".child_" in name
    assert f"/dev/shm/{name}: " in ended.stderr


def test_no_shared_memory(directory: Path) -> None:
    none = Mounted(FULL.script + "mount -t tmpfs -o ro none /dev/shm\n")
    (directory.parent / "tmp").mkdir()
    env: dict[str, str | None] = {"TMPDIR": str(directory.parent / "tmp")}
    ended, _ = none.crash(directory, "read_null", env=env)
    assert ended.status == 128 + SIGSEGV
    (path,) = (directory.parent / "tmp").glob("*.json")
    assert read_record(path)
    assert str(path) in ended.stderr


def test_nowhere_at_all(directory: Path) -> None:
    full = Mounted(
        FULL.script
        + """
        mount -o remount,size=4k /dev/shm
        head -c 4096 /dev/zero > /dev/shm/filler
    """
    )
    ended, kept = full.crash(directory, "read_null", env={"TMPDIR": str(directory)})
    assert ended.status == 128 + SIGSEGV
    assert json_files(kept / "errors") == json_files(kept / "shm") == ["filler"]


def test_a_target_that_can_take_no_record_is_said_at_the_start(
    directory: Path,
) -> None:
    read_only = Mounted('mount -t tmpfs -o ro none "$DIRECTORY"')
    ended, kept = read_only.crash(directory, "read_null", under="firstfault")
    assert ended.status == 128 + SIGSEGV
    lines = ended.stderr.splitlines()
    assert "Unable to prepare for crashes." in lines[0]
    assert lines[0].endswith(f"Read-only file system: '{directory}/error.json'")
    assert any(line.endswith("error.json: read-only file system") for line in lines)
    assert read_record(spared(kept))


def test_what_is_spared_is_valid_json_to_anyone(directory: Path) -> None:
    _, kept = FULL.crash(directory, "read_null")
    assert json.loads(spared(kept).read_bytes())["message"]["errorCode"] == -SIGSEGV
