"""ChildFailedError: its report and its first failure, side by side with torch's."""

import copy
import json
import os
import pickle
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import firstfault
from firstfault import ChildFailedError, ErrorHandler, ProcessFailure

SECOND = 10**9


@pytest.fixture(scope="module")
def theirs() -> ModuleType:
    """torch's own module."""
    import torch.distributed.elastic.multiprocessing.errors as errors

    return errors


@pytest.fixture(autouse=True)
def _same_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda: os.uname().nodename)


def file(directory: Path, name: str, message: Any, seconds: Any = "1700000000") -> str:
    path = directory / f"{name}.json"
    if isinstance(message, dict) and "extraInfo" not in message:
        message = message | {"extraInfo": {"timestamp": seconds}}
    path.write_text(json.dumps({"message": message, "timestamp": seconds}))
    return str(path)


def stack(text: str, seconds: str = "1700000000") -> dict[str, Any]:
    extra = {"py_callstack": text, "timestamp": seconds}
    return {"message": "unused", "extraInfo": extra}


MESSAGES = [
    "text alone",
    "two\nlines",
    "costs $5 ${idx} $$ $rank %s {0}",
    stack("Traceback (most recent call last):\n  File x\nValueError: é 😀\n"),
    stack("$title ${boarder}\n" + "wide " * 40),
    stack(""),
    {"message": "only\na message"},
    {},
    "",
]


@pytest.mark.parametrize("delimiters", [(), ("*", "~"), ("", "ab")])
@pytest.mark.parametrize("exitcodes", [[1], [-11], [0, 1, -9, -6, 137, -64, -99]])
@pytest.mark.parametrize("message", [*MESSAGES, None])
@pytest.mark.parametrize("name", ["trainer", "a name " * 20, "$name"])
def test_reports_as_torch_does(
    name: str,
    message: Any,
    exitcodes: list[int],
    delimiters: tuple[str, ...],
    theirs: ModuleType,
    directory: Path,
) -> None:
    path = "nowhere" if message is None else file(directory, "error", message)
    ours = {r * 8: ProcessFailure(r, 99, c, path) for r, c in enumerate(exitcodes)}
    reference = {
        r * 8: theirs.ProcessFailure(r, 99, c, path) for r, c in enumerate(exitcodes)
    }
    for failure in [*ours.values(), *reference.values()]:
        failure.timestamp = 1700000000
    ours_text = ChildFailedError(name, ours).format_msg(*delimiters)
    torch_text = theirs.ChildFailedError(name, reference).format_msg(*delimiters)
    assert ours_text == torch_text
    mixed = ChildFailedError(name, reference)
    assert mixed.format_msg(*delimiters) == torch_text
    assert str(theirs.ChildFailedError(name, ours)) == str(mixed)


def test_names_the_only_failure() -> None:
    text = str(ChildFailedError("job", {0: ProcessFailure(0, 1, 1, "")}))
    assert "\nFailures:\n  <NO_OTHER_FAILURES>\n" in text


@pytest.mark.parametrize("failures", [{}, None])
def test_needs_a_failure(failures: Any, theirs: ModuleType) -> None:
    for cls in (ChildFailedError, theirs.ChildFailedError):
        with pytest.raises(AssertionError):
            cls("job", failures)


@pytest.mark.parametrize(
    "message",
    [
        {"message": ["a", "b"]},
        {"message": None},
        {"message": {"deep": 1}, "extraInfo": []},
        {"message": "m", "extraInfo": {"py_callstack": None, "timestamp": {}}},
        {"message": "lone \udcff", "extraInfo": {"py_callstack": "s \udcff"}},
    ],
)
def test_formats_whatever_a_file_says(message: Any, directory: Path) -> None:
    failure = ProcessFailure(0, 1, 1, file(directory, "error", message))
    failure.timestamp = 10**18
    text = str(ChildFailedError("j \udcff", {0: failure}))
    assert "time      : 1000000000000000000" in text
    text.encode()


def test_shows_a_list_of_lines_as_a_traceback(directory: Path) -> None:
    lines: Any = ["Traceback:\n", "  File x\n", "ValueError"]
    path = file(directory, "error", stack(lines))
    text = str(ChildFailedError("job", {0: ProcessFailure(0, 1, 1, path)}))
    assert "traceback : Traceback:\n    File x\n  ValueError\n" in text


def test_says_the_host_of_the_failure_and_looks_no_name_up(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> str:
        raise AssertionError("a name was looked up")

    for function in ("getfqdn", "gethostbyaddr", "getaddrinfo", "gethostbyname"):
        monkeypatch.setattr(socket, function, refuse)
    path = directory / "error.json"
    section = {"host": {"name": "node17"}, "time_ns": 1700000000 * SECOND}
    path.write_text(json.dumps({"message": stack("t"), "firstfault": section}))
    text = str(ChildFailedError("job", {0: ProcessFailure(0, 1, 1, str(path))}))
    assert "  host      : node17\n" in text


# Of each rank's failure: seconds, nanoseconds (None: unknown).
ORDERS: list[tuple[str, list[tuple[int, int | None]], int]] = [
    ("torch: the earliest second", [(5, None), (4, None), (6, None)], 1),
    ("torch: a tie goes to the first", [(5, None), (4, None), (4, None)], 1),
    ("nanoseconds decide", [(5, 5 * SECOND + 9), (5, 5 * SECOND + 7)], 1),
    ("a moved second holds", [(6, 5 * SECOND + 1), (5, 5 * SECOND + 900)], 1),
    ("a moved second, the real later", [(6, 5 * SECOND + 1), (6, 6 * SECOND + 7)], 0),
    ("a tie goes to what is known", [(5, None), (5, 5 * SECOND + 9)], 1),
    ("an unknown one in an earlier second", [(4, None), (5, 5 * SECOND)], 0),
    ("known ones among unknown", [(7, None), (6, 6 * SECOND + 9), (6, 6 * SECOND)], 2),
]


@pytest.mark.parametrize(
    ("moments", "first"), [case[1:] for case in ORDERS], ids=[c[0] for c in ORDERS]
)
def test_finds_the_first_failure(
    moments: list[tuple[int, int | None]], first: int, theirs: ModuleType
) -> None:
    failures = {}
    for rank, (seconds, time_ns) in enumerate(moments):
        failure = ProcessFailure(rank, 1, 1, "nowhere")
        failure.timestamp, failure.time_ns = seconds, time_ns
        failures[rank] = failure
    error = ChildFailedError("job", failures)
    assert error.get_first_failure() == (first, failures[first])
    if all(time_ns is None for _, time_ns in moments):
        reference = theirs.ChildFailedError("job", failures)
        assert reference.get_first_failure() == (first, failures[first])


def test_reads_the_nanoseconds_of_torchs_own_failures(
    theirs: ModuleType, directory: Path
) -> None:
    failures = {}
    for rank, nanoseconds in enumerate([9, 7]):
        path = directory / f"{rank}.json"
        section = {"time_ns": 1700000000 * SECOND + nanoseconds}
        path.write_text(json.dumps({"message": stack("t"), "firstfault": section}))
        failures[rank] = theirs.ProcessFailure(rank, 1, 1, str(path))
    assert ChildFailedError("job", failures).get_first_failure()[0] == 1


class Hooked(ErrorHandler):
    """Says what it was asked."""

    def maybe_enrich_signal_failure_message(self, message: str, error_file: str) -> str:
        """Add to the message."""
        return f"{message} + {error_file}"


def report(exitcode: int) -> str:
    return str(ChildFailedError("job", {0: ProcessFailure(0, 1, exitcode, "")}))


def test_asks_the_handler_in_force_about_signals_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "+ <N/A>" not in report(-9)
    firstfault.set_error_handler(Hooked())
    try:
        assert "Signal 9 (SIGKILL) received by PID 1 + <N/A>" in report(-9)
        assert "+ <N/A>" not in report(9)
    finally:
        firstfault.set_error_handler(None)
    assert "+ <N/A>" not in report(-9)
    with monkeypatch.context() as patch:
        patch.setattr(firstfault, "get_error_handler", Hooked)
        assert "+ <N/A>" in report(-9)
    with monkeypatch.context() as patch:
        patch.setattr("firstfault._error_handler.get_error_handler", Hooked)
        assert "+ <N/A>" in report(-9)
    assert "+ <N/A>" not in report(-9)


@pytest.mark.parametrize("outcome", [RuntimeError("broken"), None, 17, b"bytes"])
def test_a_broken_hook_only_logs(
    outcome: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def maybe_enrich_signal_failure_message(self, *_: str) -> Any:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

    monkeypatch.setattr(firstfault, "get_error_handler", Broken)
    assert "traceback : Signal 9 (SIGKILL) received by PID 1\n" in report(-9)
    assert "Failed to enrich signal failure message" in caplog.text


def test_a_handler_without_the_hook_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firstfault, "get_error_handler", object)
    assert "Signal 9 (SIGKILL) received by PID 1\n" in report(-9)


class Special(ChildFailedError):
    """A user's own."""


def clones(error: ChildFailedError) -> list[ChildFailedError]:
    return [
        copy.copy(error),
        copy.deepcopy(error),
        *(
            pickle.loads(pickle.dumps(error, protocol))
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
        ),
    ]


@pytest.mark.parametrize("cls", [ChildFailedError, Special])
def test_copies_and_pickles(cls: type[ChildFailedError], theirs: ModuleType) -> None:
    error = cls("job", {3: ProcessFailure(1, 2, -9, "nowhere")})
    error.add_note("a note")
    for clone in clones(error):
        assert type(clone) is type(error)
        assert isinstance(clone, cls)
        assert isinstance(clone, theirs.ChildFailedError)
        assert (clone.name, clone.failures) == (error.name, error.failures)
        assert (clone.args, str(clone)) == (error.args, str(error))
        assert clone.__notes__ == ["a note"]


def test_is_torchs_class_too_once_torch_is_loaded(theirs: ModuleType) -> None:
    failures = {0: ProcessFailure(0, 1, 1, "")}
    for cls in (ChildFailedError, Special):
        error = cls("job", failures)
        assert isinstance(error, (cls, theirs.ChildFailedError))
        assert type(error).__name__ == cls.__name__
        assert type(error).__module__ == cls.__module__
        assert type(cls("job", failures)) is type(error)
        with pytest.raises(theirs.ChildFailedError) as caught:
            raise error
        assert caught.value is error
    both = type("Both", (ChildFailedError, theirs.ChildFailedError), {})
    assert type(both("job", failures)) is both
    assert type(ChildFailedError("job", failures)) is not type(Special("j", failures))


def test_without_torch_it_is_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "torch.distributed.elastic.multiprocessing.errors"
    monkeypatch.delitem(sys.modules, name, raising=False)
    error = ChildFailedError("job", {0: ProcessFailure(0, 1, 1, "")})
    assert type(error) is ChildFailedError
    assert all(type(clone) is ChildFailedError for clone in clones(error))
    monkeypatch.setitem(sys.modules, name, ModuleType("half loaded"))
    assert type(ChildFailedError("job", error.failures)) is ChildFailedError


def test_crosses_from_a_process_with_torch_to_one_without(
    theirs: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pickle.dumps(ChildFailedError("job", {0: ProcessFailure(0, 1, 1, "")}))
    monkeypatch.delitem(sys.modules, theirs.__name__)
    assert type(pickle.loads(data)) is ChildFailedError


PEER = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:4039. This is"


def failed(directory: Path, rank: int, message: str, seconds: int) -> ProcessFailure:
    """Return the failure of a rank that left torch's own error file."""
    record = {**stack(message, str(seconds)), "message": message}
    path = file(directory, f"rank{rank}", record)
    return ProcessFailure(rank, 100 + rank, 1, path)


def test_the_cause_by_evidence_is_said_where_it_is_not_the_first(
    directory: Path,
) -> None:
    failures = {
        0: failed(directory, 0, PEER, 1700000000),
        3: failed(directory, 3, "ValueError: loss is nan", 1700000001),
        5: ProcessFailure(5, 105, -15, "nowhere"),
    }
    error = ChildFailedError("trainer", failures)
    assert error.get_first_failure()[0] == 0
    cause = error.root_cause()
    assert cause is not None
    assert (cause.rank, cause.category) == (3, "nan_loss")
    assert cause.error_file == failures[3].error_file
    line = f"rank 3: nan_loss, confidence {cause.confidence}"
    assert f"\nRoot cause (by evidence): {line}\n" in str(error)
    assert error.format_msg().splitlines()[-1] == "=" * 60


def test_the_first_failure_is_not_said_twice(directory: Path) -> None:
    failures = {
        0: failed(directory, 0, PEER, 1700000001),
        3: failed(directory, 3, "ValueError: loss is nan", 1700000000),
    }
    error = ChildFailedError("trainer", failures)
    assert error.root_cause().rank == error.get_first_failure()[0] == 3
    assert "by evidence" not in str(error)


def test_statuses_alone_tell_who_crashed() -> None:
    failures = {
        rank: ProcessFailure(rank, 100 + rank, status, "nowhere")
        for rank, status in enumerate([-15, -15, -11])
    }
    cause = ChildFailedError("trainer", failures).root_cause()
    assert cause is not None
    assert (cause.rank, cause.category) == (2, "segfault")


def test_failures_that_cannot_be_judged_are_none(directory: Path) -> None:
    failures = {r: failed(directory, r, PEER, 1700000000) for r in (0, 1)}
    error = ChildFailedError("trainer", failures)
    failures[1].exitcode = "odd"
    assert error.root_cause() is None
    failures[1].exitcode = 1
    nested: list[Any] = []
    nested.append(nested)
    failures[1].error_file_data = {"message": nested}
    failures[1].error_file = "\ud800"
    error.root_cause()


def test_a_thousand_failures_are_judged(directory: Path) -> None:
    """The whole text, verdict and all, stays a matter of seconds."""
    long = "ValueError: " + "x" * 30_000
    failures = {r: failed(directory, r, PEER, 1700000000) for r in range(999)}
    failures[999] = failed(directory, 999, long, 1700000003)
    for failure in failures.values():
        failure.error_file_data = {**failure.error_file_data, "padding": "y" * 30_000}
    assert "by evidence): rank 999" in str(ChildFailedError("trainer", failures))
