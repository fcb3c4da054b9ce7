"""What a crash record says of each thread: its state, and whether it holds the GIL."""

import sys
from pathlib import Path
from signal import SIGSEGV
from typing import Any

import pytest

from crashes import crash, functions

Thread = dict[str, Any]


def threads(directory: Path, *steps: str, **options: Any) -> list[Thread]:
    """Crash, and return the threads of a record that names all of them."""
    ours = crash(directory, *steps, **options)
    assert (ours.status, ours.files) == (-SIGSEGV, ["error.json"]), ours.stderr
    section = ours.record()["firstfault"]
    found: list[Thread] = section["threads"]
    assert section["threads_total"] == len(found)
    assert [thread["crashed"] for thread in found] == [True] + [False] * len(found[1:])
    return found


@pytest.mark.parametrize("context", ["main", "python_thread", "native_thread"])
def test_the_crashed_thread_comes_first_then_main(
    directory: Path, context: str
) -> None:
    found = threads(directory, "threads:120", "read_null", context=context)
    main = next(n for n, thread in enumerate(found) if "main" in functions(thread))
    assert main == (context != "main")
    assert len(found) == 121 + main
    assert all("waiting" in functions(thread) for thread in found[main + 1 :])


def test_the_state_of_each_before_it_was_stopped(directory: Path) -> None:
    steps = ["threads:2", "spinner", "uninterruptible", "asleep:2", "read_null"]
    found = threads(directory, *steps)
    assert [thread["state"] for thread in found] == [
        *("R (running)", "S (sleeping)", "S (sleeping)", "R (running)"),
        "D (disk sleep)",
    ]
    assert [thread.get("answered") for thread in found] == [None] * 4 + [False]
    assert "python" not in found[-1]


def test_the_names_of_threads_that_did_not_crash(directory: Path) -> None:
    names = ["pt_autograd_0", "fifteen letters"]
    found = threads(directory, f"named_threads:{':'.join(names)}", "read_null")
    assert [thread["name"] for thread in found[1:]] == names
    assert found[0]["name"] not in names


def test_a_thread_that_blocks_signals_is_named_and_not_waited_for(
    directory: Path,
) -> None:
    steps = ["block_signals:1", "threads:1", "block_signals:0", "asleep:1", "read_null"]
    _, other = threads(directory, *steps)
    assert (other["answered"], other["state"]) == (False, "S (sleeping)")


def test_threads_that_cannot_be_asked_are_named(directory: Path) -> None:
    steps = ["threads:3", "asleep:3", "limit_signals", "read_null"]
    found = threads(directory, *steps)
    assert [thread.get("answered") for thread in found] == [None] + [False] * 3
    assert {thread["state"] for thread in found[1:]} == {"S (sleeping)"}


def test_a_main_thread_that_ended_before(directory: Path) -> None:
    found = threads(directory, "threads:1", "asleep:1", "without_main:read_null")
    assert [t["state"] for t in found] == ["R (running)", "Z (zombie)", "S (sleeping)"]
    assert [t.get("answered") for t in found] == [None, False, None]


# What the threads do when one crashes, and who holds the GIL then: the crashed thread,
# and main where that is another.
HOLDS = {
    "held.read_null": (True,),
    "read_null": (False,),
    "native_through:read_null": (False, False),
    "held_native_thread:read_null": (False, True),
}


@pytest.mark.parametrize("fault", HOLDS)
def test_who_holds_the_gil(directory: Path, fault: str) -> None:
    found = threads(directory, "threads:2", "sleepers:1:65536", fault)
    expected = [*HOLDS[fault], False, False, False]
    assert [thread["holds_gil"] for thread in found] == expected


def test_a_python_thread_that_holds_the_gil(directory: Path) -> None:
    found = threads(directory, "threads:1", "held.read_null", context="python_thread")
    assert [thread["holds_gil"] for thread in found] == [True, False, False]


def test_a_third_thread_that_holds_the_gil(directory: Path) -> None:
    """Neither the crashed thread nor main, and stopped as the others are."""
    steps = ["threads:1", "while_another_holds_the_gil:read_null"]
    found = threads(directory, *steps)
    assert found[0]["name"] == "native"
    assert [thread["holds_gil"] for thread in found] == [False, False, False, True]
    innermost = [functions(thread)[:1] for thread in found[1:]]
    assert innermost == [["while_another_holds_the_gil"], ["wait"], ["holding"]]


def test_the_gil_of_a_thread_that_does_not_answer(directory: Path) -> None:
    found = threads(directory, "uninterruptible", "held.read_null")
    # From Python 3.12 on a thread alone can say it of itself.
    untold = None if sys.version_info >= (3, 12) else False
    assert [thread.get("holds_gil") for thread in found] == [True, untold]
    assert found[1]["answered"] is False
