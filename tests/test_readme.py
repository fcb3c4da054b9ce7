"""The README's examples run, and its commands exist."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Run

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """Return the README's code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def block(part: str) -> str:
    """Return the one Python block that has this in it."""
    (found,) = (text for text in blocks("python") if part in text)
    return found


def commands() -> list[str]:
    """Return the README's console commands."""
    lines = "".join(blocks("console")).splitlines()
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def test_the_python_example_records_what_ends_it(run: Run) -> None:
    example = blocks("python")[0]
    assert run(block("firstfault.breadcrumb")).status == 0
    ended = run(example)
    assert (ended.status, ended.stderr, ended.files) == (0, "", [])
    ended = run(example.replace("...  # train", "import ctypes; ctypes.string_at(0)"))
    assert ended.status == -11
    assert "null pointer at 0x0" in ended.record()["message"]["message"]


def test_the_report_from_python_is_as_shown(run: Run, tmp_path: Path) -> None:
    example = block("firstfault.report")
    shutil.copytree(ROOT / "tests/data/corpus/segv_0", tmp_path / "logs")
    ended = run(example)
    assert (ended.status, ended.stderr) == (0, "")
    first, second, *_ = ended.stdout.splitlines()
    assert first.startswith("1 segfault Native code read or wrote a bad address")
    assert second.startswith(
        "ROOT CAUSE  rank 1 (local rank 1 on host node0): segfault"
    )


def test_an_error_handler_of_ones_own_is_asked(run: Run) -> None:
    example = block("set_error_handler")
    fails = """
from firstfault import record
@record
def main(): raise ValueError("bad sample")
main()
"""
    ended = run(example + fails)
    assert (ended.status, ended.stdout) == (1, "failed: ValueError('bad sample')\n")
    assert ended.record()["message"]["message"] == "ValueError: bad sample"
    ended = run(example + "set_error_handler(None)\n" + fails)
    assert (ended.status, ended.stdout) == (1, "")


def test_the_deferred_error_is_raised_in_the_end_and_recorded(run: Run) -> None:
    example = block("Deferred()")
    ended = run(example)
    assert (ended.status, ended.stderr, ended.files) == (0, "", [])
    fails = "if step == 17: open('/no/such')"
    ended = run(example.replace("...  # what this rank does alone", fails))
    assert ended.status == 1
    deferred = ended.record()["firstfault"]["deferred"]
    assert deferred == {
        "where": "metadata",
        "suppressed": 0,
        "step": 17,
        "stopped_at": 17,
    }


@pytest.mark.parametrize(
    "command", [command for command in commands() if command.startswith("firstfault")]
)
def test_a_command_and_its_options_exist(command: str) -> None:
    _, subcommand, *arguments = command.split()
    done = subprocess.run(
        [sys.executable, "-m", "firstfault", subcommand, "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    for option in (argument for argument in arguments if argument.startswith("--")):
        assert option in done.stdout


def test_a_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = [line.split()[1] for line in commands() if line.startswith("make ")]
    assert targets
    for target in targets:
        assert f"\n{target}: " in makefile


def test_every_variable_of_ours_is_explained() -> None:
    names = (ROOT / "rust/format/src/env.rs").read_text()
    variables = set(re.findall(r'"(FIRSTFAULT_\w+)"', names))
    assert variables <= set(re.findall(r"FIRSTFAULT_\w+", README))
