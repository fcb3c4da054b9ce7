"""The handler in trouble: its stages fault, lack descriptors, or meet each other."""

import ctypes
import json
from collections import Counter
from pathlib import Path
from signal import SIGABRT, SIGFPE, SIGILL, SIGSEGV, Signals

import pytest

from crashes import crash, crashed_thread, functions, missing
from seccomp import refuse

TOGETHER = {
    "read_null": (SIGSEGV, SIGSEGV),
    "c_abort": (SIGSEGV, SIGABRT),
    "illegal_instruction": (SIGSEGV, SIGILL),
}


def stages(record: dict) -> dict[str, str]:
    return {stage["name"]: stage["status"] for stage in record["firstfault"]["stages"]}


@pytest.mark.parametrize("under", ["activate", "firstfault"])
def test_all_descriptors_were_closed(directory: Path, under: str) -> None:
    ours = crash(directory, "threads:3", "close_all", "read_null", under=under)
    assert (ours.status, ours.files) == (-SIGSEGV, ["error.json"])
    record = ours.record()
    assert set(stages(record).values()) == {"ok"}
    assert "main" in functions(crashed_thread(record))


def test_the_dumps_descriptor_belongs_to_somebody_else_now(directory: Path) -> None:
    ours = crash(directory, "close_all", "reopen_all", "report_files", "read_null")
    assert (ours.status, ours.files) == (-SIGSEGV, ["error.json", "other.txt"])
    assert "main" in functions(crashed_thread(ours.record()))
    assert (directory / "other.txt").read_text() == ""


@pytest.mark.parametrize("under", ["activate", "firstfault"])
def test_no_descriptor_is_free(directory: Path, under: str) -> None:
    """The one that is kept for this makes room for the record, then for all else."""
    ours = crash(directory, "threads:3", "use_up_descriptors", "read_null", under=under)
    assert (ours.status, ours.files) == (-SIGSEGV, ["error.json"])
    record = ours.record()
    assert set(stages(record).values()) == {"ok"}
    crashed, *others = record["firstfault"]["threads"]
    assert "main" in functions(crashed)
    assert ["waiting" in functions(thread) for thread in others] == [True] * 3


def test_no_descriptor_is_free_in_a_child(directory: Path) -> None:
    steps = ["threads:3", "use_up_descriptors", "fork:read_null", "exit:0"]
    ours = crash(directory, *steps)
    assert ours.status == 0
    (name,) = ours.files
    assert "main" in functions(crashed_thread(ours.record(name)))


def test_no_timer_can_be_made(directory: Path) -> None:
    """Nothing could end a stage that hangs; none does."""
    refused = refuse("timer_create")
    ours = crash(directory, "threads:3", "read_null", under="activate", limits=refused)
    assert (ours.status, ours.stderr, ours.files) == (-SIGSEGV, "", ["error.json"])
    assert set(stages(ours.record()).values()) == {"ok"}
    assert ours.record()["firstfault"]["threads_total"] == 4


@pytest.mark.parametrize(
    "under",
    [
        "activate",
        "firstfault",
    ],
)
def test_after_the_interpreter_is_gone(directory: Path, under: str) -> None:
    """The dumper reads freed memory then: its own stage may fault, the others not."""
    ours = crash(directory, "at_exit:read_null", under=under)
    assert (ours.status, ours.files) == (-SIGSEGV, ["error.json"])
    record = ours.record()
    assert record["firstfault"]["signal"]["address"] == "0x10"
    found = stages(record)
    assert found.pop("own_python_stack") in ("ok", "fault", "skipped")
    assert found["minimal"] == found["module"] == "ok"
    assert "other_python_stacks" in found


# Whose state the dumper finds overwritten, and how that stage ends.
CORRUPT = {
    "own:fault": ("own_python_stack", "fault"),
    "own:hang": ("own_python_stack", "timeout"),
    "other:fault": ("other_python_stacks", "skipped"),
    "other:hang": ("other_python_stacks", "skipped"),
}


# Python 3.13 and 3.14 keep this to themselves; what is left of the dumper there serves
# no more once a dump has been cut short.
DUMPERS = ("_Py_DumpTraceback", "PyUnstable_DumpTraceback")
SERVES_AGAIN = any(hasattr(ctypes.pythonapi, name) for name in DUMPERS)


@pytest.mark.parametrize("under", ["activate", "firstfault"])
@pytest.mark.parametrize("what", CORRUPT)
def test_a_stage_faults_or_hangs(
    directory: Path, tmp_path: Path, what: str, under: str
) -> None:
    ours = crash(directory, "threads:3", f"corrupt:{what}", under=under)
    if ours.status == 77:
        missing("userfaultfd(2)")
    assert (ours.status, ours.files) == (-SIGSEGV, ["error.json"])
    record = ours.record()
    assert record["firstfault"]["signal"]["address"] == "0x10"
    others = 4 if what.startswith("other") else 3
    assert record["firstfault"]["threads_total"] == (6 if others == 4 else 4)
    # A fault of the dumper in a parked thread is ours, and no crash of that thread.
    assert "other_crashes" not in record["firstfault"]
    found = stages(record)
    stage, status = CORRUPT[what]
    assert found.pop(stage) == status
    if not SERVES_AGAIN:
        assert found.pop("other_python_stacks", "skipped") == "skipped"
    assert set(found.values()) == {"ok"}
    if what.startswith("other"):
        assert "main" in functions(crashed_thread(record))
    threads = [functions(thread) for thread in record["firstfault"]["threads"]]
    # What one dump has cost itself, it costs no other.
    told = sum("waiting" in found for found in threads)
    assert told == others if SERVES_AGAIN else told < others


@pytest.mark.parametrize("fault", TOGETHER)
@pytest.mark.parametrize("under", ["activate", "firstfault"])
def test_twenty_threads_crash_at_once(tmp_path: Path, under: str, fault: str) -> None:
    signals: Counter[Signals] = Counter()
    told = []
    for number in range(5):
        directory = tmp_path / str(number)
        directory.mkdir()
        ours = crash(directory, f"together:20:read_null:{fault}", under=under)
        assert ours.files == ["error.json"]
        section = ours.record()["firstfault"]
        # The process dies by the signal that the file tells of.
        assert section["signal"]["number"] == -ours.status
        assert Signals(-ours.status) in TOGETHER[fault]
        assert section["threads_total"] == 21
        others = section.get("other_crashes", [])
        tids = [section["signal"]["tid"], *(other["tid"] for other in others)]
        assert len(set(tids)) == len(tids)
        assert set(tids) <= {thread["tid"] for thread in section["threads"]}
        assert {other["signal"] for other in others} <= set(TOGETHER[fault])
        cut = section.get("truncated", {}).get("other_crashes", 0)
        assert len(others) == 16 if cut else len(others) < 20
        assert len(others) + cut < 20
        told.append(len(others))
        # A thread without Python has no Python stack.
        found = stages({"firstfault": section})
        assert found.pop("own_python_stack") == "skipped"
        assert set(found.values()) == {"ok"}
        signals[Signals(-ours.status)] += 1
    assert sum(signals.values()) == 5
    assert max(told) > 0


def test_crashes_beyond_those_it_tells_of_are_counted(tmp_path: Path) -> None:
    counted = []
    for number in range(3):
        directory = tmp_path / str(number)
        directory.mkdir()
        ours = crash(directory, "together:40:read_null:c_abort")
        section = ours.record()["firstfault"]
        cut = section.get("truncated", {}).get("other_crashes", 0)
        assert cut < 40 - 16
        assert not cut or len(section["other_crashes"]) == 16
        counted.append(cut)
    assert max(counted) > 0


@pytest.mark.parametrize("fault", ["read_null", "held.read_null"])
def test_python_threads_crash_at_once(tmp_path: Path, fault: str) -> None:
    for number in range(5):
        directory = tmp_path / str(number)
        directory.mkdir()
        ours = crash(directory, f"python_together:20:{fault}")
        assert (ours.status, ours.files) == (-SIGSEGV, ["error.json"])
        record = ours.record()
        assert "crashing" in functions(crashed_thread(record))
        assert record["firstfault"]["threads_total"] > 1


def test_two_threads_with_two_signals(tmp_path: Path) -> None:
    for number in range(10):
        directory = tmp_path / str(number)
        directory.mkdir()
        ours = crash(directory, "together:2:divide_by_zero:illegal_instruction")
        assert ours.files == ["error.json"]
        assert ours.status in (-SIGFPE, -SIGILL)
        record = json.loads((directory / "error.json").read_bytes())
        assert record["firstfault"]["signal"]["number"] == -ours.status
        assert record["message"]["errorCode"] == ours.status


def test_a_signal_that_python_handled_and_a_crash_after_it(directory: Path) -> None:
    """The threads were parked for the first, and are again for the second."""
    steps = ["threads:3", f"kill:{SIGABRT:d}", "report_files", "read_null"]
    ours = crash(directory, *steps, before=[f"handle:{SIGABRT:d}"])
    assert (ours.status, ours.files) == (-SIGSEGV, ["error.json"])
    assert "handled\n[]\n" in ours.stderr
    record = ours.record()
    section = record["firstfault"]
    assert section["threads_total"] == 4
    assert set(stages(record).values()) == {"ok"}
    waiting = [t for t in section["threads"] if "waiting" in functions(t)]
    assert len(waiting) == 3
