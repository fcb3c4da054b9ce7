"""Every way a decorated program can end: its exit status, its stderr, its record."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import PROGRAMS, clean_environment, read_record

EXIT_STATUS = {
    "exit_3": 3,
    "exit_big": 255,
    "exit_minus_1": 255,
    "interrupt": -2,
    "sigint": -2,
}
SUCCESS = [
    "exit_0",
    "exit_256",
    "exit_false",
    "exit_nothing",
    "exit_zero_float",
    "return",
]

# The message of each record; torch writes the same where it writes one.
MESSAGES = {
    "assert": "AssertionError: ",
    "base": "OwnBase: based",
    "base_group": "BaseExceptionGroup: base (2 sub-exceptions)",
    "chain": "Own: no model",
    "circle": "Own: a",
    "demanding": "Demanding: got 503",
    "divide": "ZeroDivisionError: integer division or modulo by zero",
    "empty": "Own: ",
    "endless_str": "Endless: <str() raised RecursionError>",
    "exit_3": "SystemExit: 3",
    "exit_big": f"SystemExit: {2**70}",
    "exit_empty": "SystemExit: ",
    "exit_float": "SystemExit: 1.5",
    "exit_minus_1": "SystemExit: -1",
    "exit_text": "SystemExit: config file is missing",
    "exit_true": "SystemExit: True",
    "exit_tuple": "SystemExit: ('a', 1)",
    "generator_exit": "GeneratorExit: closed",
    "group": "ExceptionGroup: outer (2 sub-exceptions)",
    "interrupt": "KeyboardInterrupt: ",
    "leaving_str": "Leaver: <str() raised SystemExit>",
    "memory": "MemoryError: 4 GiB",
    "no_str": "NoText: <str() raised TypeError>",
    "notes": "Own: noted",
    "nul": "Own: a\0b\x1b[31m",
    "recursion": "RecursionError: maximum recursion depth exceeded",
    "retryable": "Own: once more",
    "sigint": "KeyboardInterrupt: ",
    "stop": "StopIteration: 3",
    "suppressed": "Own: shown",
    "surrogate": "Own: lone \\udcff and 😀",
    "unprintable": "Unprintable: <str() raised KeyError>",
}
# torch's own recording fails on these and changes the end of the program.
TORCH_FAILS = ["endless_str", "leaving_str", "no_str", "unprintable"]


class Endings:
    """What the program `endings.py` left."""

    def __init__(self, directory: Path) -> None:
        done = subprocess.run(
            [sys.executable, str(PROGRAMS / "endings.py"), str(directory)],
            env=clean_environment(PYTHONPATH=str(PROGRAMS)),
            stdout=subprocess.PIPE,
            check=True,
        )
        self.directory = directory
        self.statuses: dict[str, int] = json.loads(done.stdout)

    def status(self, decorator: str, way: str) -> int:
        return self.statuses[f"{decorator}/{way}"]

    def stderr(self, decorator: str, way: str) -> str:
        text = (self.directory / decorator / way / "stderr").read_text(errors="replace")
        return without_the_decorator(text)

    def files(self, decorator: str, way: str) -> list[str]:
        names = (path.name for path in (self.directory / decorator / way).iterdir())
        return sorted(name for name in names if name.startswith("error"))

    def record(self, way: str, decorator: str = "ours") -> dict[str, Any]:
        path = self.directory / decorator / way / "error.json"
        if decorator == "ours":
            return read_record(path)
        record: dict[str, Any] = json.loads(path.read_bytes())
        return record


def without_the_decorator(text: str) -> str:
    """Return a traceback without the frames of either decorator."""
    frame = (
        r'(?m)^[ |]*File "[^"]*(?:firstfault/_record|errors/__init__)\.py", '
        r"line \d+, in wrapper\n.*\n(?:[ |]*[~^]+\n)?"
    )
    text = re.sub(frame, "", text)
    return re.sub(r"repeated \d+ more times", "repeated", text)


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> Endings:
    """Every ending, run once."""
    return Endings(tmp_path_factory.mktemp("endings"))


def test_all_ways_are_tested(endings: Endings) -> None:
    ways = {name.partition("/")[2] for name in endings.statuses}
    assert ways == {*MESSAGES, *SUCCESS, "megabytes"}


@pytest.mark.parametrize("way", [*MESSAGES, "megabytes"])
def test_a_failure_ends_as_without_us_and_leaves_a_record(
    way: str, endings: Endings
) -> None:
    expected = EXIT_STATUS.get(way, 1)
    assert endings.status("ours", way) == endings.status("plain", way) == expected
    assert endings.stderr("ours", way) == endings.stderr("plain", way)
    if way not in TORCH_FAILS:
        assert endings.status("torch", way) == expected
        assert endings.stderr("ours", way) == endings.stderr("torch", way)
    record = endings.record(way)
    assert record["firstfault"]["final"] is True
    is_exit = way.startswith("exit")
    assert record["firstfault"]["kind"] == ("exit" if is_exit else "exception")
    assert record["message"].get("errorCode") == (expected if is_exit else None)
    if way in MESSAGES:
        assert record["message"]["message"] == MESSAGES[way]
    copy = ["error.firstfault.json"] if not is_exit else []
    assert endings.files("ours", way) == [*copy, "error.json"]


@pytest.mark.parametrize("way", SUCCESS)
def test_a_success_leaves_none(way: str, endings: Endings) -> None:
    assert endings.status("ours", way) == endings.status("torch", way) == 0
    assert endings.stderr("ours", way) == endings.stderr("torch", way) == ""
    assert endings.files("ours", way) == []


@pytest.mark.parametrize("way", sorted(set(MESSAGES) - set(TORCH_FAILS)))
def test_torchs_part_is_what_torch_writes(way: str, endings: Endings) -> None:
    if endings.files("torch", way) == []:
        assert way in {
            "base",
            "base_group",
            "generator_exit",
            "interrupt",
            "sigint",
        } or (way.startswith("exit"))
        return
    ours, theirs = endings.record(way), endings.record(way, "torch")
    assert ours["message"].keys() == theirs["message"].keys()
    message, extra = theirs["message"]["message"], theirs["message"]["extraInfo"]
    printable = message.encode("utf-8", "backslashreplace").decode()
    assert ours["message"]["message"] == printable
    assert ours["message"]["extraInfo"].keys() == extra.keys()
    stack = extra["py_callstack"].encode("utf-8", "backslashreplace").decode()
    assert without_the_decorator(
        ours["message"]["extraInfo"]["py_callstack"]
    ) == without_the_decorator(stack)
    seconds = int(ours["message"]["extraInfo"]["timestamp"])
    assert ours["message"]["extraInfo"]["timestamp"] == str(seconds)
    assert abs(seconds - int(extra["timestamp"])) < 60


def facts(endings: Endings, way: str) -> Any:
    return endings.record(way)["firstfault"]["exception"]


def test_says_what_the_exception_is(endings: Endings) -> None:
    assert facts(endings, "base") == {
        "type": "OwnBase",
        "module": "__main__",
        "mro": ["__main__.OwnBase", "builtins.BaseException"],
        "message": "based",
    }
    assert facts(endings, "exit_3")["type"] == "SystemExit"
    assert facts(endings, "retryable")["retryable"] is True


def test_says_what_led_to_it(endings: Endings) -> None:
    assert facts(endings, "chain")["chain"] == [
        {
            "type": "KeyError",
            "module": "builtins",
            "message": "'model'",
            "relation": "cause",
        },
        {
            "type": "FileNotFoundError",
            "module": "builtins",
            "message": "config.yaml",
            "relation": "context",
        },
    ]
    assert [link["message"] for link in facts(endings, "circle")["chain"]] == ["b"]
    assert "chain" not in facts(endings, "suppressed")


def test_says_the_notes_and_the_leaves(endings: Endings) -> None:
    assert facts(endings, "notes")["notes"] == ["step 12", "lone \\udcff"]
    leaves = facts(endings, "group")["group"]
    assert [(leaf["type"], leaf["message"]) for leaf in leaves] == [
        ("ValueError", "v"),
        ("KeyError", "'k'"),
        ("Own", "o"),
    ]
    leaves = facts(endings, "base_group")["group"]
    assert [leaf["type"] for leaf in leaves] == ["KeyboardInterrupt", "OwnBase"]


def test_megabytes_are_cut_and_counted(endings: Endings) -> None:
    record = endings.record("megabytes")
    message = record["message"]["message"]
    assert message.startswith("Own: head xxx")
    assert message.endswith("xxx tail")
    assert len(message) <= 16 * 1024
    cut = record["firstfault"]["truncated"]["message"]
    assert f"\n... {cut} bytes cut ...\n" in message
    kept = message.replace(f"\n... {cut} bytes cut ...\n", "")
    assert len(kept) + cut == len("Own: head ") + 3_000_000 + len(" tail")
    stack = record["message"]["extraInfo"]["py_callstack"]
    assert stack.startswith("Traceback (most recent call last):\n")
    assert stack.endswith("xxx tail\n")
    assert len(stack) <= 64 * 1024
    assert record["firstfault"]["truncated"]["py_callstack"] > 2_900_000


def test_says_when_and_who(endings: Endings) -> None:
    record = endings.record("divide")
    section = record["firstfault"]
    seconds = int(record["message"]["extraInfo"]["timestamp"])
    assert section["time_ns"] // 10**9 == seconds
    assert section["monotonic_ns"] > 0
    assert section["host"]["name"]
    assert section["process"]["pid"] > 0
    assert section["process"]["argv"][0].endswith("endings.py")
