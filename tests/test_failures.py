"""ProcessFailure: every shape of error file, side by side with torch's class."""

import copy
import dataclasses
import json
import os
import pickle
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import firstfault
from conftest import Run
from firstfault import FirstfaultError, MissingMessageError, ProcessFailure

TORCH_FILE = {
    "message": {
        "message": "ValueError: é",
        "extraInfo": {
            "py_callstack": "Traceback…\nValueError",
            "timestamp": "1700000000",
        },
    }
}
OUR_FILE = {
    "message": {
        "message": "ValueError: x",
        "errorCode": 3,
        "extraInfo": {"py_callstack": "Traceback", "timestamp": "1700000000"},
    },
    "firstfault": {"schema_version": 1, "final": True, "time_ns": 1700000000123456789},
}


@pytest.fixture(scope="module")
def theirs() -> ModuleType:
    """torch's own module."""
    import torch.distributed.elastic.multiprocessing.errors as errors

    return errors


def failure(path: object, exitcode: int = 1) -> ProcessFailure:
    return ProcessFailure(0, 4711, exitcode, str(path))


@pytest.mark.parametrize("exitcode", [0, 1, 137, -6, -11, -15, -34, -40, -64, -999])
@pytest.mark.parametrize(
    "content",
    [
        None,
        TORCH_FILE,
        OUR_FILE,
        {"message": "text alone", "timestamp": 1700000000},
        {"message": "", "timestamp": 1700000000},
        {"message": {"message": "m", "extraInfo": {"timestamp": 1700000000}}},
        {"message": {"extraInfo": {"timestamp": "1700000000"}}, "more": [1]},
    ],
)
def test_reads_what_torch_reads(
    content: Any, exitcode: int, theirs: ModuleType, directory: Path
) -> None:
    path = directory / "error.json"
    if content is not None:
        path.write_text(json.dumps(content))
    ours = failure(path, exitcode)
    theirs._EMPTY_ERROR_DATA.pop("errorTraits", None)  # left by an earlier failure
    reference = theirs.ProcessFailure(0, 4711, exitcode, str(path))
    for field in dataclasses.fields(reference):
        if field.name == "timestamp" and content is None:
            assert abs(ours.timestamp - reference.timestamp) <= 1
            ours.timestamp = reference.timestamp
        assert getattr(ours, field.name) == getattr(reference, field.name), field.name
    assert ours.signal_name() == reference.signal_name()
    assert ours.timestamp_isoformat() == reference.timestamp_isoformat()
    if content is not None:
        assert repr(ours) == repr(reference)


def test_has_torchs_fields_and_order(theirs: ModuleType) -> None:
    names = [field.name for field in dataclasses.fields(ProcessFailure)]
    reference = [field.name for field in dataclasses.fields(theirs.ProcessFailure)]
    assert names == [*reference, "time_ns"]


def test_traits_stay_with_their_failure() -> None:
    exited = failure("nowhere", 1)
    killed = failure("nowhere", -9)
    assert exited.error_file_data["errorTraits"]["category"] == (
        "system_terminated_error"
    )
    assert "errorTraits" not in killed.error_file_data
    assert "errorTraits" not in failure("nowhere", -11).error_file_data


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda x: x])
def test_copies_and_pickles_are_equal(clone: Any, directory: Path) -> None:
    path = directory / "error.json"
    path.write_text(json.dumps(OUR_FILE))
    original = failure(path)
    twin = pickle.loads(pickle.dumps(clone(original)))
    assert twin == original
    assert twin.time_ns == 1700000000123456789
    assert type(twin) is ProcessFailure


@pytest.mark.parametrize(
    ("content", "timestamp", "time_ns"),
    [
        (OUR_FILE, 1700000000, 1700000000123456789),
        (TORCH_FILE, 1700000000, None),
        ({"message": "t", "timestamp": "1700000000.6"}, 1700000000, None),
        ({"message": "t", "timestamp": 1700000000.6}, 1700000000, None),
        ({"message": "t"}, "written", None),
        ({"message": "t", "timestamp": 0}, "written", None),
        ({"message": "t", "timestamp": -5}, "written", None),
        ({"message": "t", "timestamp": "soon"}, "written", None),
        ({"message": "t", "timestamp": "9" * 4000}, "written", None),
        ({"message": "t", "timestamp": float("nan")}, "written", None),
        ({"message": "t", "timestamp": True}, "written", None),
        ({"message": {"message": "t"}}, "written", None),
        ({"message": {"message": "t", "extraInfo": []}}, "written", None),
        (
            {"message": {"message": "t", "extraInfo": {"timestamp": {}}}},
            "written",
            None,
        ),
        ({"message": "t", "firstfault": {"time_ns": "soon"}}, "written", None),
        ({"message": "t", "firstfault": {"time_ns": True}}, "written", None),
        ({"message": "t", "firstfault": {"time_ns": -1}}, "written", None),
        ({"message": "t", "firstfault": []}, "written", None),
    ],
)
def test_an_unknown_time_is_never_zero_nor_now(
    content: Any, timestamp: Any, time_ns: int | None, directory: Path
) -> None:
    path = directory / "error.json"
    path.write_text(json.dumps(content))
    os.utime(path, (1600000000, 1600000000))
    read = failure(path)
    assert read.timestamp == (1600000000 if timestamp == "written" else timestamp)
    assert type(read.timestamp) is int
    assert read.time_ns == time_ns
    assert read.timestamp_isoformat()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"\0" * 100, "empty"),
        (b'{"message": {"message": "Val', "no JSON"),
        (b'{"message": "\xff\xfe\xfa"}', "utf-8"),
        (b"\x7fELF\x02\x01\x01", "no JSON"),
        (b"[1, 2]", "a JSON list"),
        (b'"text"', "a JSON str"),
        (b"17", "a JSON int"),
        (b"null", "a JSON NoneType"),
        (b'{"message": null}', "`message` is a JSON NoneType"),
        (b'{"message": ["a"]}', "`message` is a JSON list"),
        (b'{"message": 17}', "`message` is a JSON int"),
        (b'{"message":' * 60_000, "nested too deeply"),
        (b'{"message": "m", "n": ' + b"9" * 5000 + b"}", "no JSON"),
        (b" " * (16 * 1024 * 1024 + 1), "longer than"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("exitcode", [1, -11])
def test_a_damaged_file_is_a_message(
    content: bytes, reason: str, exitcode: int, directory: Path
) -> None:
    path = directory / "error.json"
    path.write_bytes(content)
    os.utime(path, (1600000000, 1600000000))
    damaged = failure(path, exitcode)
    assert f"error file {path} is damaged (" in damaged.message
    assert reason in damaged.message
    assert repr(content[:20])[1:-1][:20] in damaged.message
    if exitcode < 0:
        assert damaged.message.startswith("Signal 11 (SIGSEGV) received by PID 4711; ")
    assert damaged.error_file == str(path)
    assert (damaged.timestamp, damaged.time_ns) == (1600000000, None)
    assert len(damaged.message) < 2000
    assert isinstance(damaged.error_file_data, dict)
    assert str(path) in firstfault.ChildFailedError("job", {0: damaged}).args[0]


def test_a_file_that_may_not_be_read_is_damaged(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = directory / "error.json"
    path.write_text(json.dumps(TORCH_FILE))

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refuse)
    assert "is damaged (Permission denied)" in failure(path).message


def test_a_fifo_or_a_directory_is_no_error_file(directory: Path) -> None:
    os.mkfifo(directory / "fifo")
    for path in (directory / "fifo", directory, "", "a\0b", "<N/A>", "/dev/null"):
        read = failure(path, 1)
        assert read.error_file == "<N/A>"
        assert read.message.startswith("To enable traceback see: https://")
        assert abs(read.timestamp - time.time()) < 5
        assert read.time_ns is None


@pytest.mark.parametrize("content", ["{}", '{"Message": 1}', '{"firstfault": {}}'])
def test_an_object_without_a_message_raises(content: str, directory: Path) -> None:
    path = directory / "error.json"
    path.write_text(content)
    with pytest.raises(KeyError, match="message") as caught:
        failure(path)
    assert type(caught.value) is MissingMessageError
    assert isinstance(caught.value, FirstfaultError)
    assert caught.value.help_text
    assert caught.value.args == ("message",)


class TestTheCopyBeside:
    """`error.firstfault.json`: what an outer recorder did not overwrite."""

    def write(self, directory: Path, main: Any, beside: Any) -> ProcessFailure:
        path = directory / "error.json"
        path.write_text(main if isinstance(main, str) else json.dumps(main))
        (directory / "error.firstfault.json").write_text(json.dumps(beside))
        return failure(path)

    def outer(self, text: str) -> dict[str, Any]:
        extra = {"py_callstack": "longer", "timestamp": "1700000005"}
        return {"message": {"message": text, "extraInfo": extra}}

    def test_is_preferred_for_the_same_failure(self, directory: Path) -> None:
        read = self.write(directory, self.outer("ValueError: x"), OUR_FILE)
        assert read.error_file_data == OUR_FILE
        assert read.time_ns == 1700000000123456789
        assert read.timestamp == 1700000000
        assert read.error_file.endswith("/error.json")

    def test_is_preferred_to_a_damaged_file(self, directory: Path) -> None:
        assert self.write(directory, '{"mess', OUR_FILE).error_file_data == OUR_FILE

    def test_may_have_a_cut_message(self, directory: Path) -> None:
        ours = copy.deepcopy(OUR_FILE)
        ours["message"]["message"] = "ValueError: aaa\n... 5 bytes cut ...\nzzz"
        theirs = self.outer("ValueError: aaaBBBBBzzz")
        assert self.write(directory, theirs, ours).error_file_data == ours

    @pytest.mark.parametrize(
        "beside",
        [
            {},
            [],
            {"message": "ValueError: y"},
            OUR_FILE | {"firstfault": {"final": False, "time_ns": 1}},
            OUR_FILE | {"message": {"message": "ValueError: another"}},
        ],
    )
    def test_is_ignored_otherwise(self, beside: Any, directory: Path) -> None:
        outer = self.outer("ValueError: x")
        assert self.write(directory, outer, beside).error_file_data == outer

    def test_is_not_read_beside_one_of_ours(self, directory: Path) -> None:
        other = OUR_FILE | {
            "firstfault": {"final": True, "time_ns": 1700000000000000001}
        }
        assert self.write(directory, OUR_FILE, other).error_file_data == OUR_FILE


def test_torch_reads_the_crash_and_not_what_was_recovered_before(
    run: Run, theirs: ModuleType
) -> None:
    ended = run("""
import ctypes
from firstfault import ErrorHandler, record
@record
def main():
    try: raise OSError("transient")
    except OSError as e: ErrorHandler().record_exception(e)
    ctypes.string_at(0)
main()
""")
    assert ended.status == -11
    path = ended.directory / "error.json"
    read = theirs.ProcessFailure(0, 4711, -11, str(path))
    for message in (read.message["message"], failure(path, -11).message["message"]):
        assert message.startswith("SIGSEGV (Segmentation fault): ")
        assert "transient" not in message
    assert "in string_at" in read.message["extraInfo"]["py_callstack"]
    (before,) = ended.record()["firstfault"]["preceded_by"]
    assert before["message"] == "OSError: transient"
