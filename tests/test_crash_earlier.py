"""A crash after a failure that was recorded by hand and survived."""

import json
from pathlib import Path
from signal import SIGABRT, SIGSEGV

import pytest

import firstfault
from crashes import crash

ENDS = {
    "a fault": ("read_null", -SIGSEGV),
    "a fault behind faulthandler alone": ("read_null", -SIGSEGV),
    "an abort": ("os_abort", -SIGABRT),
    "a thread's exception": ("bare_thread:throw_runtime_error", -SIGABRT),
}
CATEGORIES = {
    "read_null": "segfault",
    "os_abort": "abort",
    "bare_thread:throw_runtime_error": "cpp_exception",
}


@pytest.mark.parametrize("how", ENDS)
def test_it_is_in_the_crash_record_and_nowhere_else(directory: Path, how: str) -> None:
    step, status = ENDS[how]
    before = ["enable"] if "faulthandler" in how else []
    ours = crash(directory, "record_error:the disk is slow", step, before=before)
    assert ours.status == status
    assert ours.files == ["error.json"]
    record = ours.record()
    section = record["firstfault"]
    assert (section["kind"], section["final"]) == ("signal", True)
    assert record["message"]["errorCode"] == status
    (before_it,) = section["preceded_by"]
    assert before_it["kind"] == "exception"
    assert before_it["message"] == "ValueError: the disk is slow"
    cause = firstfault.report(directory).root_cause
    assert cause is not None
    assert cause.category == CATEGORIES[step]


def test_the_latest_of_more_than_it_carries_is_kept_beside(directory: Path) -> None:
    steps = [f"record_error:number {number}" for number in range(10)]
    ours = crash(directory, *steps, "read_null")
    kept = f"error.{ours.pid}.replaced.json"
    assert ours.files == [kept, "error.json"]
    carried = ours.record()["firstfault"]["preceded_by"]
    assert [entry["message"] for entry in carried] == [
        f"ValueError: number {number}" for number in range(8)
    ]
    assert ours.record(kept)["message"]["message"] == "ValueError: number 9"


def test_what_another_recorder_wrote_is_kept(directory: Path) -> None:
    ours = crash(directory, "other_record:message", "read_null")
    kept = f"error.{ours.pid}.replaced.json"
    assert ours.files == [kept, "error.json"]
    assert json.loads((directory / kept).read_text()) == {"message": {"final": True}}
