"""The console script behaves as any good command-line program."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

FIRSTFAULT = (sys.executable, "-m", "firstfault")
CASE = Path(__file__).parent / "data" / "corpus" / "segv_0"


def firstfault(
    *arguments: str | bytes | Path, check: bool = True
) -> subprocess.CompletedProcess[bytes]:
    """Run the console script."""
    return subprocess.run(
        [*FIRSTFAULT, *arguments], capture_output=True, check=check, timeout=60
    )


def test_help_lists_every_command() -> None:
    text = firstfault("--help").stdout.decode()
    for command in ("report", "show", "doctor", "schema", "demo"):
        assert f"\n  {command} " in text


def test_the_report_in_every_format(tmp_path: Path) -> None:
    text = firstfault("report", CASE).stdout.decode()
    assert text.startswith("ROOT CAUSE  rank 1 ")
    assert max(map(len, text.splitlines())) <= 100
    assert len(text.splitlines()) <= 60
    report = json.loads(firstfault("report", CASE, "--format", "json").stdout)
    assert report["root_cause"]["category"] == "segfault"
    output = tmp_path / "report.md"
    firstfault("report", CASE, "--format", "markdown", "--output", output)
    assert "segfault" in output.read_text()


@pytest.mark.parametrize("arguments", [["report"], ["nonsense"], ["report", "/n/o"]])
def test_wrong_usage_is_status_2_with_a_reason(arguments: list[str]) -> None:
    done = firstfault(*arguments, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: ") or b"/n/o" in done.stderr
    assert done.stdout == b""


def test_check_is_status_1_when_something_has_failed() -> None:
    assert firstfault("report", CASE, "--check", check=False).returncode == 1


def test_the_schema_is_the_one_that_the_package_ships() -> None:
    import importlib.resources

    for name in ("error-file", "report", "doctor"):
        shipped = importlib.resources.files("firstfault") / "schema" / f"{name}.json"
        printed = json.loads(firstfault("schema", name).stdout)
        assert printed == json.loads(shipped.read_text())


def test_a_path_need_not_be_unicode(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/job-\xff"
    os.symlink(CASE, path)
    done = firstfault("report", path + b"/", "--format", "json")
    assert json.loads(done.stdout)["root_cause"]["rank"] == 1


def test_a_closed_pipe_ends_it_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as output:
        done = subprocess.run(
            [*FIRSTFAULT, "report", str(CASE)],
            stdout=output,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode in (0, -signal.SIGPIPE)
    assert done.stderr == b""


def test_ctrl_c_ends_it_at_once_and_quietly(tmp_path: Path) -> None:
    # Opening a pipe that nobody reads blocks in the kernel: Rust is at work, and Python
    # would see the interrupt only after it.
    output = tmp_path / "output"
    os.mkfifo(output)
    process = subprocess.Popen(
        [*FIRSTFAULT, "report", str(CASE), "--output", str(output)],
        stderr=subprocess.PIPE,
    )
    sleeps_in = Path(f"/proc/{process.pid}/wchan")
    # fs/pipe.c of the kernel
    while sleeps_in.read_text() != "wait_for_partner":
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT
    assert stderr == b""


def test_colour_and_progress_are_for_terminals(tmp_path: Path) -> None:
    """Output and errors go to one terminal; NO_COLOR leaves the text plain."""
    coloured = on_terminal("report", CASE)
    assert coloured.startswith(b"\x1b[1;31mROOT CAUSE")
    assert on_terminal("report", CASE, NO_COLOR="1") == re.sub(
        rb"\x1b\[[\d;]*m", b"", coloured
    )
    first = tmp_path / "0.log"
    first.write_bytes(b"[rank0]: a line: with text\n" * (1 << 18))
    # Some minutes of work, ended as soon as it says how far it is.
    for number in range(1, 2000):
        os.link(first, tmp_path / f"{number}.log")
    said = on_terminal("report", tmp_path, until=b"files read")
    assert re.fullmatch(rb"\r\d+ files read", said)


def on_terminal(
    *arguments: str | Path, until: bytes = b"", **environment: str
) -> bytes:
    """Return what the console script writes to a terminal, up to some words."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*FIRSTFAULT, *arguments],
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "NO_COLOR": "", **environment},
    )
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # Linux's word for the end of a terminal
        while chunk := os.read(ours, 1 << 16):
            said += chunk
            if until and until in said:
                said = said[: said.index(until) + len(until)]
                process.send_signal(signal.SIGINT)
                break
    os.close(ours)
    process.wait(timeout=60)
    return said
