"""ErrorHandler: what a parent makes of a child's file, side by side with torch."""

import json
import logging
import os
import stat
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import firstfault
from firstfault import ErrorHandler, MissingMessageError

CHILD = {
    "message": {
        "message": "ValueError: é",
        "extraInfo": {"py_callstack": "Traceback…", "timestamp": "1700000000"},
    }
}
TORCH = "torch.distributed.elastic.multiprocessing.errors"
SECTION = {"schema_version": 1, "final": True, "time_ns": 1700000000123456789}


@pytest.fixture(scope="module")
def theirs() -> ModuleType:
    """torch's own module."""
    import torch.distributed.elastic.multiprocessing.errors as errors

    return errors


@pytest.fixture
def child(tmp_path: Path) -> Path:
    """A child's error file, as torch writes it."""
    path = tmp_path / "child.json"
    path.write_text(json.dumps(CHILD))
    return path


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("firstfault", f"{TORCH}.error_handler"):
        caplog.set_level(logging.DEBUG, logger=name)


def dumped(path: Path) -> Any:
    return json.loads(path.read_text())


def messages(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    """Return the log since the last call, without where it comes from."""
    log = [(entry.levelno, entry.getMessage()) for entry in caplog.records]
    caplog.clear()
    return log


@pytest.mark.parametrize("code", [0, 1, -11])
@pytest.mark.parametrize(
    "content",
    [
        CHILD,
        CHILD | {"firstfault": SECTION},
        {"message": {"message": "m", "errorCode": 5, "extraInfo": {"timestamp": "1"}}},
        {"message": "new format", "timestamp": 1700000000},
    ],
)
@pytest.mark.parametrize("own", [None, '{"message": "older"}', "torn {", "[]"])
def test_dumps_as_torch_does(
    own: str | None,
    content: Any,
    code: int,
    theirs: ModuleType,
    child: Path,
    error_file: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    child.write_text(json.dumps(content))
    results = []
    for module in (theirs, firstfault):
        error_file.unlink(missing_ok=True)
        if own is not None:
            error_file.write_text(own)
        module.ErrorHandler().dump_error_file(str(child), code)
        results.append((dumped(error_file), messages(caplog)))
    (torch_data, torch_log), (our_data, our_log) = results
    assert our_data == torch_data
    assert [level for level, _ in our_log] == [level for level, _ in torch_log]
    for (_, ours), (_, reference) in zip(our_log, torch_log, strict=True):
        if "Unable to load" in ours:  # torch shows JSON that is no error file
            assert f"{error_file} already exists and will be overwritten." in ours
            assert "already exists and will be overwritten." in reference
        else:
            assert ours == reference


@pytest.mark.parametrize("target", [None, "", "/dev/null"])
def test_without_a_target_it_logs(
    target: str | None,
    theirs: ModuleType,
    child: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if target is not None:
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", target)
    ErrorHandler().dump_error_file(str(child))
    log = messages(caplog)
    text = f"no error file defined for parent, to copy child error file ({child})"
    assert log[-1] == (logging.ERROR, text)
    if target != "/dev/null":
        theirs.ErrorHandler().dump_error_file(str(child))
        assert messages(caplog)[-1] == log[-1]
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_missing_child_file_raises(error_file: Path, theirs: ModuleType) -> None:
    for module in (theirs, firstfault):
        with pytest.raises(FileNotFoundError):
            module.ErrorHandler().dump_error_file("nowhere.json", 1)
    assert not error_file.exists()


def test_no_error_file_at_all_raises(child: Path, error_file: Path) -> None:
    child.write_text("{}")
    with pytest.raises(MissingMessageError):
        ErrorHandler().dump_error_file(str(child), 1)
    assert not error_file.exists()


@pytest.mark.parametrize("content", [b"", b'{"message": {"mess', b"\xff\xfe", b"[1]"])
def test_a_damaged_child_file_is_said_to_be(
    content: bytes, child: Path, error_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    child.write_bytes(content)
    os.utime(child, (1600000000, 1600000000))
    ErrorHandler().dump_error_file(str(child), -9)
    message = dumped(error_file)["message"]
    assert message["message"].startswith(f"error file {child} is damaged (")
    assert message["errorCode"] == -9
    assert message["extraInfo"]["timestamp"] == "1600000000"
    assert (logging.ERROR, message["message"]) in messages(caplog)


def test_the_fuller_record_is_taken_over(child: Path, error_file: Path) -> None:
    fuller = CHILD | {"firstfault": SECTION}
    child.with_suffix(".firstfault.json").write_text(json.dumps(fuller))
    ErrorHandler().dump_error_file(str(child), 7)
    result = dumped(error_file)
    assert result["firstfault"] == SECTION
    assert result["message"] == CHILD["message"] | {"errorCode": 7}  # type: ignore[operator]


def test_another_failures_record_is_not(child: Path, error_file: Path) -> None:
    other = CHILD | {"message": {"message": "another"}, "firstfault": SECTION}
    child.with_suffix(".firstfault.json").write_text(json.dumps(other))
    ErrorHandler().dump_error_file(str(child), 7)
    assert "firstfault" not in dumped(error_file)


@pytest.mark.parametrize(
    "data", [{}, {"message": "text"}, {"message": {"message": "m"}}, {"other": 1}]
)
def test_overrides_the_error_code_as_torch_does(
    data: Any, theirs: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    results = []
    for module in (theirs, firstfault):
        own = json.loads(json.dumps(data))
        handler = module.ErrorHandler()
        assert handler.override_error_code_in_rootcause_data("f", own, 9) is None
        results.append((own, messages(caplog)))
    assert results[0] == results[1]


def test_an_odd_message_is_left_alone() -> None:
    data: dict[str, Any] = {"message": [1]}
    ErrorHandler().override_error_code_in_rootcause_data("f", data, 9)
    assert data == {"message": [1]}


def test_subclass_hooks_are_called(child: Path, error_file: Path) -> None:
    calls = []

    class Handler(ErrorHandler):
        def _rm(self, my_error_file: str) -> None:
            calls.append(("rm", my_error_file))

        def _write_error_file(self, file_path: str, error_msg: str) -> None:
            calls.append(("write", file_path, json.loads(error_msg)))

        def override_error_code_in_rootcause_data(
            self, rootcause_error_file: str, rootcause_error: Any, error_code: int = 0
        ) -> None:
            calls.append(("override", rootcause_error_file, error_code))

    Handler().dump_error_file(str(child), 3)
    own = str(error_file)
    assert calls == [("override", str(child), 3), ("rm", own), ("write", own, CHILD)]


def test_a_parent_that_cannot_write_warns(
    theirs: ModuleType, child: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = str(tmp_path / "missing" / "error.json")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", target)
    for module in (theirs, firstfault):
        with pytest.warns(
            UserWarning, match="Unable to write error to file. "
        ) as warned:
            module.ErrorHandler().dump_error_file(str(child))
        assert "FileNotFoundError: [Errno 2] No such file or directory: " in str(
            warned[0].message
        )
        assert target in str(warned[0].message)


def test_the_message_is_returned_unchanged(theirs: ModuleType) -> None:
    for module in (theirs, firstfault):
        handler = module.ErrorHandler()
        assert handler.maybe_enrich_signal_failure_message("m", "f") == "m"


def test_the_path_is_the_environments(
    theirs: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in (None, "", "/x/error.json"):
        if value is not None:
            monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", value)
        for module in (theirs, firstfault):
            assert module.ErrorHandler()._get_error_file_path() == value


def test_lone_surrogates_pass(child: Path, error_file: Path) -> None:
    child.write_text('{"message": {"message": "\\udcff", "extraInfo": {}}}')
    ErrorHandler().dump_error_file(str(child))
    assert dumped(error_file)["message"]["message"] == "\udcff"


def test_disabled_does_nothing(
    child: Path, error_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRSTFAULT_DISABLE", "1")
    handler = ErrorHandler()
    handler.initialize()
    handler.record_exception(ValueError("x"))
    handler.dump_error_file(str(child))
    assert "FIRSTFAULT_CLAIM" not in os.environ
    assert not error_file.exists()
