"""`firstfault.report`: the analysis from Python, on files and in memory."""

import dataclasses
import importlib.resources
import json
import os
import signal
import subprocess
import sys
import types
import typing
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import firstfault
from conftest import Run

CORPUS = Path(__file__).parent / "data" / "corpus"
CASES = ["segv_0", "raise_0", "config_0", "sigkill_0", "console_plain_raise"]


def in_memory(directory: Path) -> dict[str, bytes]:
    """Return a directory's files by their relative paths."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def as_json(value: Any) -> Any:
    """Return a report as its JSON form has it."""
    if dataclasses.is_dataclass(value):
        return {
            field.name.removesuffix("_"): as_json(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if not field.name.startswith("_")
        }
    return [as_json(item) for item in value] if isinstance(value, tuple) else value


def command_line(*arguments: str) -> str:
    """Return what the command line prints."""
    command = [sys.executable, "-m", "firstfault", "report", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("case", CASES)
def test_is_what_the_command_line_says(case: str) -> None:
    path = CORPUS / case
    report = firstfault.report(path)
    printed = json.loads(command_line(str(path), "--format", "json"))
    if printed["root_cause"] is not None:
        printed["root_cause"].setdefault("step", None)
        printed["root_cause"].setdefault("breadcrumbs", [])
    assert as_json(report) == printed
    assert str(report) == command_line(str(path))


def test_takes_several_paths_and_what_is_known_of_the_job() -> None:
    nodes = [str(CORPUS / "segv_0" / "node0"), CORPUS / "segv_0" / "node1"]
    report = firstfault.report(nodes, world_size=6)
    assert (report.job.world_size, report.ranks.silent) == (6, "4-5")


@pytest.mark.parametrize("case", CASES)
def test_files_in_memory_are_judged_alike(
    case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    report = firstfault.report(in_memory(CORPUS / case))
    monkeypatch.chdir(CORPUS / case)
    on_disk = json.dumps(as_json(firstfault.report("."))).replace("./", "")
    assert json.dumps(as_json(report)) == on_disk
    assert list(tmp_path.iterdir()) == []


def test_values_are_frozen_and_compare() -> None:
    report = firstfault.report(CORPUS / "segv_0")
    assert report == firstfault.report(CORPUS / "segv_0")
    assert hash(report) == hash(firstfault.report(CORPUS / "segv_0"))
    assert report.root_cause is not None
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.root_cause.rank = 3  # type: ignore[misc]


def test_redacts() -> None:
    report = firstfault.report(CORPUS / "segv_0", redact=True)
    assert report.root_cause is not None
    assert report.root_cause.host == "node-a"
    assert "node0" not in f"{report!r} {report}"


RULES = """
[[rule]]
id = "site-sample"
role = "primary"
category = "site_sample"
text = ["bad sample"]
samples = ["ValueError: bad sample 7"]
"""


def test_rules_hold_for_their_call_alone(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    error = {"message": "ValueError: bad sample 7", "timestamp": "1700000000"}
    job = {"error.json": json.dumps(error).encode()}

    def category(given: Path | None) -> str:
        cause = firstfault.report(job, rules=given).root_cause
        assert cause is not None
        return cause.category

    with ThreadPoolExecutor() as pool:
        found = list(pool.map(category, [None, rules] * 8))
    assert found == ["python_exception", "site_sample"] * 8
    rules.write_text(RULES.replace("bad sample 7", "good sample"))
    with pytest.raises(
        firstfault.RulesError, match=r"rules\.toml: rule `site-sample`: samples"
    ):
        category(rules)


def test_errors_name_the_path(tmp_path: Path) -> None:
    with pytest.raises(firstfault.UnreadablePathError) as missing:
        firstfault.report(tmp_path / "nowhere")
    assert isinstance(missing.value, OSError)
    assert missing.value.filename == str(tmp_path / "nowhere")
    assert "No such file" in str(missing.value)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(firstfault.UnreadablePathError, match="a FIFO"):
        firstfault.report(tmp_path / "fifo")
    with pytest.raises(firstfault.NothingFoundError, match=str(tmp_path)) as nothing:
        firstfault.report([tmp_path])
    assert "--log-dir" in nothing.value.help_text
    with pytest.raises(firstfault.NothingFoundError):
        firstfault.report({})


@pytest.mark.parametrize("name", ["../out", "/etc/x", "", ".", "a/../b", "a\0b"])
def test_files_in_memory_stay_below_their_directory(name: str) -> None:
    with pytest.raises(firstfault.UnreadablePathError) as refused:
        firstfault.report({name: b"{}"})
    assert refused.value.filename == name


def plain(hint: Any) -> Any:
    """Return a hint without None, and whether None is allowed."""
    if not isinstance(hint, types.UnionType):
        return hint, False
    parts = [part for part in typing.get_args(hint) if part is not type(None)]
    assert len(parts) == 1
    return parts[0], True


def check(hint: Any, schema: dict[str, Any], definitions: dict[str, Any]) -> None:
    """Compare a field's type with what the schema says of it."""
    hint, optional = plain(hint)
    if "anyOf" in schema:
        assert optional
        assert schema["anyOf"][1] == {"type": "null"}
        schema = schema["anyOf"][0]
    elif isinstance(schema.get("type"), list):
        assert optional
        schema = {**schema, "type": schema["type"][0]}
    else:
        assert not optional
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if "oneOf" in schema:
        values = [one["const"] for one in schema["oneOf"]]
        assert sorted(typing.get_args(hint)) == sorted(values)
    elif schema["type"] == "object":
        check_fields(hint, schema, definitions)
    elif schema["type"] == "array":
        assert typing.get_origin(hint) is tuple
        check(typing.get_args(hint)[0], schema["items"], definitions)
    else:
        assert hint is {"string": str, "integer": int}[schema["type"]]


def check_fields(
    cls: type, schema: dict[str, Any], definitions: dict[str, Any]
) -> None:
    """Compare a class with an object of the schema."""
    hints = {
        field.name.removesuffix("_"): field.type
        for field in dataclasses.fields(cls)
        if not field.name.startswith("_")
    }
    assert set(hints) == set(schema["properties"]), cls
    for name, hint in hints.items():
        check(hint, schema["properties"][name], definitions)


def test_the_classes_are_those_of_the_schema() -> None:
    shipped = importlib.resources.files("firstfault") / "schema" / "report.json"
    schema = json.loads(shipped.read_text())
    check_fields(firstfault.Report, schema, schema["$defs"])


INTERRUPTED = """
import os, signal, sys, threading
import firstfault

main = threading.main_thread().ident

def interrupt():
    # It sees the analysis run only if that lets other threads run.
    while sys._current_frames()[main].f_code.co_name != "report":
        pass
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    firstfault.report(sys.argv[1])
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_ends_a_long_analysis(run: Run, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    first = logs / "0.log"
    first.write_bytes(b"[rank0]: a line: with text\n" * (8 << 20 >> 5))
    # Some minutes of work.
    for number in range(1, 2000):
        os.link(first, logs / f"{number}.log")
    ended = run(INTERRUPTED, str(logs))
    assert (ended.status, ended.stdout, ended.stderr) == (0, "interrupted\n", "")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


FORKED = """
import json, os, pathlib, signal, sys
import firstfault
from seccomp import refuse

def error_file(rank):
    path = pathlib.Path(sys.argv[1], f"{rank}.json")
    info = {"py_callstack": "Traceback (most recent call last):", "timestamp": "1790"}
    message = {"message": f"ValueError: {rank}", "extraInfo": info}
    path.write_text(json.dumps({"message": message}))
    return str(path)

files = [error_file(rank) for rank in range(16)]

def judged():
    ranks = {r: firstfault.ProcessFailure(r, r + 1, 1, f) for r, f in enumerate(files)}
    error = firstfault.ChildFailedError("train.py", ranks)
    return error.root_cause(), firstfault.report(sys.argv[1]).root_cause

before = judged()
child = os.fork()
if child == 0:
    signal.alarm(30)
    if sys.argv[2] == "no threads":
        refuse("clone3")()
    # More than once: a thread may stand in for a pool only once.
    same = all(judged() == before for _ in range(2))
    os._exit(0 if same and None not in before else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("left", ["threads", "no threads"])
def test_a_forked_child_needs_no_thread_of_its_parent_and_none_of_its_own(
    left: str, run: Run, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    if left == "no threads":
        # Long enough to be searched by several threads, and soon read.
        (logs / "train.log").write_bytes(b"x" * (17 << 20))
    ended = run(FORKED, str(logs), left, env={"PYTHONPATH": str(Path(__file__).parent)})
    assert (ended.stdout, ended.stderr) == ("0\n", "")
