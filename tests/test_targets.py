"""Where a record goes when its place is an unusual one."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from conftest import Run
from crashes import crash, missing

# Permissions bind only an unprivileged user.
UNPRIVILEGED = """
import ctypes, os, sys
from firstfault import record
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
"""
ENDS = """
@record
def main():
    if sys.argv[1] == "raise":
        raise ValueError("loss is nan " + "!" * 5000)
    ctypes.string_at(0)
main()
"""


@pytest.mark.parametrize("end", ["raise", "crash"])
def test_a_file_in_a_directory_that_is_not_ours_is_written_in_place(
    end: str, run: Run, directory: Path
) -> None:
    """As a container's termination log is for a user who is not root."""
    log = directory / "error.json"
    log.touch()
    log.chmod(0o666)
    directory.chmod(0o755)
    for parent in [directory, *directory.parents]:
        if parent.owner() == "root" and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o005)
    ended = run(UNPRIVILEGED + ENDS, end)
    assert ended.status == (1 if end == "raise" else -11)
    assert ended.files == ["error.json"]
    text = log.read_text()
    assert len(text) <= 4096
    said = "ValueError: loss is nan" if end == "raise" else "SIGSEGV"
    assert json.loads(text)["message"]["message"].startswith(said)


def test_a_file_of_a_moment_before_is_replaced(run: Run, directory: Path) -> None:
    """The kernel says when the machine booted in whole seconds: that is too coarse."""
    program = UNPRIVILEGED.split("if os.getuid")[0] + ENDS
    first = run(program, "raise")
    assert "ValueError" in first.record()["message"]["message"]
    second = run(program, "crash")
    assert "SIGSEGV" in second.record()["message"]["message"]
    assert any(name.endswith(".replaced.json") for name in second.files)


@pytest.mark.parametrize("name", ["/dev/stdout", "/proc/self/fd/1"])
def test_what_a_system_link_leads_to_is_left_alone(
    name: str, run: Run, tmp_path: Path
) -> None:
    before = set(os.listdir("/dev"))
    ended = run(
        "import sys\nprint('output', flush=True)\n"
        "from firstfault import record\n"
        "@record\ndef main(): raise ValueError('x')\nmain()\n",
        env={"TORCHELASTIC_ERROR_FILE": name},
    )
    assert (ended.status, ended.stdout, ended.files) == (1, "output\n", [])
    assert set(os.listdir("/dev")) == before


WRAPPER = """
import os, subprocess, sys
from firstfault import record

@record
def main():
    if sys.argv[1] == "child":
        raise ValueError("the trainer's failure")
    status = subprocess.call([sys.executable, __file__, "child"], stderr=-3)
    if sys.argv[1] == "text":
        sys.exit("no more data")
    sys.exit(status + int(sys.argv[1]))

main()
"""


def test_a_wrapper_that_hands_on_a_status_hands_on_the_cause(run: Run) -> None:
    ended = run(WRAPPER, "0")
    message = ended.record()["message"]
    assert message["message"].startswith("SystemExit: 1, after child process ")
    assert message["message"].endswith(" failed: ValueError: the trainer's failure")
    assert "in main\n    raise ValueError" in message["extraInfo"]["py_callstack"]
    child = [name for name in ended.files if ".child_" in name]
    assert len(child) == 1
    assert "ValueError" in ended.record(child[0])["message"]["message"]


def test_a_wrapper_that_says_why_is_believed(run: Run) -> None:
    ended = run(WRAPPER, "text")
    assert ended.record()["message"]["message"] == "SystemExit: no more data"


def test_the_interpreters_end_leaves_faulthandler_as_the_program_set_it(
    run: Run, tmp_path: Path
) -> None:
    program = """
import atexit, ctypes, faulthandler, sys
from firstfault import record

@record
def main():
    faulthandler.enable(file=open(sys.argv[1], "w"))
    atexit.register(ctypes.string_at, 0)

main()
"""
    log = tmp_path / "crash.log"
    ended = run(program, str(log))
    assert (ended.status, ended.stderr) == (-11, "")
    assert log.read_text().startswith("Fatal Python error: Segmentation fault")
    assert ended.record()


def test_the_first_process_of_a_container(directory: Path) -> None:
    """No signal ends it by its default action, but a fault does."""
    probe = subprocess.run(["unshare", "-p", "true"], capture_output=True, check=False)
    if probe.returncode:
        missing("PID namespaces")
    # The first child of the shell.
    prefix = ["unshare", "-p", "sh", "-c", '"$@" & wait $!', "sh"]
    ended = crash(directory, "read_null", under="activate", prefix=prefix)
    assert ended.status == 128 + 11
    assert ended.files == ["error.json"]
    assert ended.record()["firstfault"]["process"]["pid"] == 1
    directory.joinpath("error.json").unlink()
    steps = ["kill:15", "read_null"]
    ended = crash(directory, *steps, under="activate", prefix=prefix)
    assert ended.status == 128 + 11
    # It lives through a request, as without us: then there was no end to tell of.
    assert ended.files == ["error.1.term.json"]
    record = ended.record("error.1.term.json")
    assert record["firstfault"]["signal"]["number"] == 11
