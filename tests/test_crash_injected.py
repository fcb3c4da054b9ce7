"""Every stage of the handler fails in every way: the rest of the record is there."""

import itertools
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from signal import SIGABRT, SIGSEGV, SIGTERM, Signals

import pytest

from conftest import read_record
from crashes import Crashed, crash, functions, main_thread
from injected import STAGES, injecting
from mounts import served

# What a stage says in the record when this has happened in it.
STATUS = {"fault": "fault", "hang": "timeout", "watchdog": "fault"}
# What happens to a stage's calls on files, and whether it can do without them.
CALLS = ("short", "enospc", "eintr")
# Stages that write files, and stages that read some: there it comes to pass.
WRITING = {"minimal", "enriched"}
READING = {"module", "own_python_stack", "park", "other_python_stacks"}
# The stages that the full record tells of: those that were over when it was written.
TOLD = STAGES[: STAGES.index("enriched")]
# Stages that have less to say after another: nobody was stopped, or not all.
FOLLOW = {
    "park": {"other_native_stacks", "other_python_stacks", "symbols"},
    "other_native_stacks": {"symbols"},
}
# A crash in C with the GIL released, one with a message, and a request to end.
ENDS = {SIGSEGV: "read_null", SIGABRT: "os_abort", SIGTERM: f"kill:{SIGTERM:d}"}


def end(
    directory: Path,
    *plans: str,
    signal: Signals = SIGSEGV,
    before: Sequence[str] = (),
) -> Crashed:
    steps = [*before, "threads:2", ENDS[signal]]
    happened(directory).unlink(missing_ok=True)
    env = injecting(*plans, happened=happened(directory))
    ended = crash(directory, *steps, env=env, under="activate")
    assert ended.status == -signal
    assert ended.stderr == ""
    return ended


def happened(directory: Path) -> Path:
    """Return the file that has a byte for each failure of the last run."""
    return directory.parent / "happened"


def times(directory: Path) -> int:
    """Return how often the plan of the last run came to pass."""
    return happened(directory).stat().st_size


def the_record(ended: Crashed, signal: Signals = SIGSEGV) -> dict:
    """Return the only record, which is whole; there is nothing else."""
    name = f"error.{ended.pid}.term.json" if signal == SIGTERM else "error.json"
    assert ended.files == [name]
    record = ended.record(name)
    assert record["firstfault"]["signal"]["number"] == signal
    return record


def statuses(record: dict) -> dict[str, str]:
    """Return the stages and how they ended; the minimal record says nothing of them."""
    return {s["name"]: s["status"] for s in record["firstfault"].get("stages", [])}


def check_sections(record: dict, broken: str) -> None:
    """Check that what the other stages have found is there."""
    section = record["firstfault"]
    crashed, *others = section["threads"]
    is_there = {
        "own_python_stack": "python" in crashed and crashed["python"] != [],
        "own_native_stack": len(crashed["native"]) > 1,
        "park": len(others) == section["threads_total"] - 1 == 2,
        "other_native_stacks": all(len(t.get("native", ())) > 1 for t in others),
        "other_python_stacks": any("waiting" in functions(t) for t in others),
        "symbols": any("symbol" in f for t in others for f in t.get("native", ())),
    }
    missing = {stage for stage, there in is_there.items() if not there}
    assert missing <= {broken} | FOLLOW.get(broken, set())
    if "own_python_stack" not in missing:
        assert "main" in functions(main_thread(record))


def test_the_list_of_stages_is_that_of_a_record(directory: Path) -> None:
    record = the_record(end(directory, "nothing:fault"))
    assert list(statuses(record)) == TOLD
    assert set(statuses(record).values()) == {"ok"}


@pytest.mark.parametrize("kind", STATUS)
@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_is_cut_short(directory: Path, stage: str, kind: str) -> None:
    record = the_record(end(directory, f"{stage}:{kind}"))
    found = statuses(record)
    if stage == "enriched":
        assert found == {}
        return
    if stage in TOLD:
        assert found.pop(stage) == STATUS[kind]
    others = {s for s, status in found.items() if status != "ok"}
    assert others <= FOLLOW.get(stage, set())
    check_sections(record, stage)


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_s_calls_fail(directory: Path, stage: str, kind: str) -> None:
    record = the_record(end(directory, f"{stage}:{kind}"))
    if stage in WRITING or (kind == "eintr" and stage in READING):
        assert times(directory) > 0
    found = statuses(record)
    if (stage, kind) == ("enriched", "enospc"):
        assert found == {}
        return
    refused = {stage} if kind == "enospc" and stage == "minimal" else set()
    assert {s for s, status in found.items() if status != "ok"} == refused
    check_sections(record, "")


# Seconds each: the budgets of all stages.
LONG = [
    kind if kind == "fault" else pytest.param(kind, marks=pytest.mark.slow)
    for kind in STATUS
]


@pytest.mark.parametrize("kind", LONG)
def test_every_stage_is_cut_short(directory: Path, kind: str) -> None:
    """Ten frames of the handler on one alternate stack, and nothing to show for it."""
    ended = end(directory, f"all:{kind}")
    assert ended.files == []


@pytest.mark.parametrize("kind", LONG)
def test_all_but_the_last_are_cut_short(directory: Path, kind: str) -> None:
    plans = [f"{stage}:{kind}" for stage in TOLD]
    record = the_record(end(directory, *plans))
    assert set(statuses(record).values()) == {STATUS[kind]}


# What is at the error file's path before: nothing, an older file, another's record.
PLACES = {"new": [], "old": [], "beside": ["other_record:firstfault"]}


def sweep(
    directory: Path, stage: str, kind: str, signal: Signals, place: str = "new"
) -> int:
    """Let a stage end before each of its calls on files; return how many it has."""
    for call in itertools.count(1):
        for path in directory.iterdir():
            path.unlink()
        if place == "old":
            (directory / "error.json").write_text("old")
            os.utime(directory / "error.json", (1_000_000, 1_000_000))
        plan = f"{stage}:{kind}:{call}"
        ended = end(directory, plan, signal=signal, before=PLACES[place])
        names = {name for name in ended.files if not name.endswith(".tmp")}
        # Cut short between a link and a rename; the next start removes it.
        assert len(ended.files) - len(names) <= 1
        own = "error.json"
        if signal == SIGTERM:
            own = f"error.{ended.pid}.term.json"
        elif place == "beside":
            own = f"error.{ended.pid}.json"
        others = {
            "new": set(),
            "old": {f"error.{ended.pid}.replaced.json"},
            "beside": {"error.json"},
        }[place]
        assert names == {own} | others
        record = ended.record(own)
        assert record["firstfault"]["signal"]["number"] == signal
        found = statuses(record)
        if found and found.get(stage, "ok") == "ok":
            return call - 1
        if found:
            assert found.pop(stage) == STATUS[kind]
            others = {s for s, status in found.items() if status != "ok"}
            assert others <= FOLLOW.get(stage, set())
    raise AssertionError


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("stage", ["minimal", "enriched"])
def test_a_commit_faults_at_each_of_its_calls(
    directory: Path, stage: str, place: str
) -> None:
    assert sweep(directory, stage, "fault", SIGSEGV, place) > 5


@pytest.mark.parametrize("stage", ["minimal", "enriched"])
def test_a_commit_hangs_in_the_middle(directory: Path, stage: str) -> None:
    record = the_record(end(directory, f"{stage}:hang:4"))
    found = statuses(record)
    assert found == {} if stage == "enriched" else found.pop(stage) == "timeout"
    assert set(found.values()) <= {"ok"}


def on_a_network(directory: Path, stage: str, call: int) -> int:
    """Let a stage fault before a call, of its own or of its helper thread.

    Returns how many records there are in the end, of two places that want one.
    """
    for path in directory.iterdir():
        path.unlink()
    plan = injecting(f"{stage}:fault:{call}")
    ended, kept = served().crash(directory, "threads:2", "read_null", env=plan)
    assert ended.status == 128 + SIGSEGV
    places = [*(kept / "errors").glob("*.json"), *(kept / "shm").glob("*.json")]
    whole = [path for path in places if "stages" in read_record(path)["firstfault"]]
    if stage == "minimal":
        assert whole
    shutil.rmtree(kept)
    return len(places)


@pytest.mark.parametrize("call", [5, 12, 16])
def test_a_fault_on_the_way_to_a_network_file_system(
    directory: Path, call: int
) -> None:
    assert on_a_network(directory, "minimal", call) >= 1


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", ["minimal", "enriched"])
def test_a_fault_at_each_call_on_the_way_to_it(directory: Path, stage: str) -> None:
    assert all(on_a_network(directory, stage, call) >= 1 for call in range(1, 60))


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("stage", sorted(WRITING))
def test_calls_fail_on_the_way_to_it(directory: Path, stage: str, kind: str) -> None:
    """The spare place is written to by the same calls, and memory too."""
    env = injecting(f"{stage}:{kind}", happened=happened(directory))
    ended, kept = served().crash(directory, "threads:2", "read_null", env=env)
    assert ended.status == 128 + SIGSEGV
    assert times(directory) > 0
    assert list((kept / "shm").glob("*.json")) == []
    found = statuses(read_record(kept / "errors/error.json"))
    if (stage, kind) == ("enriched", "enospc"):
        assert found == {}
        return
    refused = {stage} if kind == "enospc" else set()
    assert {s for s, status in found.items() if status != "ok"} == refused


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("signal", ENDS)
@pytest.mark.parametrize("kind", STATUS)
@pytest.mark.parametrize("stage", STAGES)
def test_any_stage_ends_at_each_of_its_calls(
    directory: Path, stage: str, kind: str, signal: Signals
) -> None:
    sweep(directory, stage, kind, signal)
