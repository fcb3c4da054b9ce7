"""Each fault, in each context: how the process ends, and the record that it leaves."""

import os
import platform
import signal
from collections.abc import Callable
from pathlib import Path
from signal import (
    SIGABRT,
    SIGBUS,
    SIGFPE,
    SIGILL,
    SIGSEGV,
    SIGSYS,
    SIGTRAP,
    SIGXCPU,
    Signals,
)
from typing import Any

import pytest

import capture_faults
from capture_faults import Fault
from crashes import (
    Crashed,
    comparable,
    crash,
    crashed_thread,
    functions,
    main_thread,
    missing,
)

CRASHES = [SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGTRAP, SIGSYS, SIGXCPU]

Twin = Callable[..., Crashed]


# Those that happen in every context alike, by step.
FAULTS = {
    fault.step: fault
    for fault in capture_faults.FAULTS.values()
    if fault.address or fault.step in ("use_up_time", "os_abort", "c_abort")
}

SENDERS = {
    "kill": "SI_USER",
    "raise_signal": "SI_TKILL",
    "signal_own_thread": "SI_TKILL",
    "queue_signal": "SI_QUEUE",
}


@pytest.fixture
def twin(tmp_path: Path) -> Twin:
    """Run a program as torch's `record` would, and with ours.

    Returns how ours ended, after comparing: the same status, the same standard error,
    nothing on standard output, nothing left but one complete error file.
    """

    def twin(*steps: str, exact: bool = True, **options: Any) -> Crashed:
        ended = {}
        for under in "torch_handler", "firstfault":
            directory = tmp_path / under
            directory.mkdir(exist_ok=True)
            ended[under] = crash(directory, *steps, under=under, **options)
        theirs, ours = ended["torch_handler"], ended["firstfault"]
        assert ours.status == theirs.status, ours.stderr
        assert ours.stdout == ""
        wanted, found = comparable(theirs.stderr), comparable(ours.stderr)
        if exact:
            assert found == wanted
        else:
            assert found[:2] == wanted[:2]
            fatal = [
                sum("Fatal Python error" in line for line in x) for x in (wanted, found)
            ]
            assert fatal[1] == fatal[0] <= 1
        assert ours.files == ["error.json"]
        return ours

    return twin


def check(ours: Crashed, fault: Fault, number: int) -> dict[str, Any]:
    """Check the facts that every record has; returns the record."""
    record = ours.record()
    message, section = record["message"], record["firstfault"]
    name, description = fault.signal.name, signal.strsignal(fault.signal)
    assert message["message"].startswith(f"{name} ({description}): {fault.reason}")
    assert message["errorCode"] == -number
    assert message["extraInfo"]["timestamp"] == str(section["time_ns"] // 10**9)
    assert message["extraInfo"]["py_callstack"].startswith(message["message"])
    assert (section["kind"], section["final"]) == ("signal", True)
    assert ours.began_ns <= section["time_ns"] <= ours.ended_ns
    assert section["process"]["pid"] == ours.pid
    assert section["process"]["ppid"] == os.getpid()
    signal_facts = section["signal"]
    assert signal_facts["number"] == number
    assert signal_facts["name"] == name
    assert signal_facts["code"] == fault.code
    if fault.address is None:
        assert "address" not in signal_facts
    elif fault.address == "0x":
        assert int(signal_facts["address"], 16) > 0xFFFF
    else:
        assert signal_facts["address"] == fault.address
    assert signal_facts["tid"] == crashed_thread(record)["tid"]
    stages = {stage["name"]: stage["status"] for stage in section["stages"]}
    if fault.address != "0x0":
        assert stages.pop("module") == "ok"
    if fault.address in ("0x10", "0x7ffffffff123"):
        assert f"{fault.address}, in libfirstfault_faults.so" in message["message"]
    assert {stages[name] for name in stages if name != "module"} <= {"ok", "skipped"}
    return record


@pytest.mark.parametrize("context", ["main", "held", "python_thread", "native_thread"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault(twin: Twin, name: str, context: str) -> None:
    fault = FAULTS[name]
    if name == "os_abort" and context in ("held", "native_thread"):
        pytest.skip("a Python function")
    if name == "use_up_time" and context in ("held", "python_thread"):
        pytest.skip("the limit is the process's, and each run takes a second")
    where = "main" if context == "held" else context
    step = f"held.{name}" if context == "held" else name
    # Where the main thread is just then is not the same in two runs.
    ours = twin(step, context=where, exact=context != "python_thread")
    assert ours.status == -fault.signal
    record = check(ours, fault, fault.signal)
    crashed, main = crashed_thread(record), main_thread(record)
    assert functions(main)[-3:] == ["main", "wrapper", "<module>"]
    if context == "python_thread":
        assert functions(crashed)[-3:] == ["run", "_bootstrap_inner", "_bootstrap"]
        assert "steps" in functions(crashed)
    elif context == "native_thread":
        assert functions(crashed) == []
        assert crashed["name"] == "native"
    else:
        assert crashed == main
        assert functions(main)[:2] in (["do", "steps"], ["os_abort", "do"])
    assert record["firstfault"]["threads_total"] == 1 + ("thread" in context)


@pytest.mark.parametrize("sender", [*SENDERS, "parent"])
@pytest.mark.parametrize("number", CRASHES, ids=lambda number: number.name)
def test_a_signal_that_was_sent(twin: Twin, number: Signals, sender: str) -> None:
    reason = "raised by the process itself"
    if sender == "parent":
        name = Path("/proc/self/comm").read_text().strip()
        reason = f"sent by process {os.getpid()} '{name}' of user {os.getuid()}"
        ours = twin(while_ready=lambda pid: os.kill(pid, number), exact=False)
    else:
        ours = twin(f"{sender}:{int(number)}")
    assert ours.status == -number
    code = SENDERS.get(sender, "SI_USER")
    record = check(ours, Fault("", number, code, reason), number)
    pid = os.getpid() if sender == "parent" else ours.pid
    found = {"pid": pid, "uid": os.getuid()}
    if sender == "parent":
        found["comm"] = name
    assert record["firstfault"]["signal"]["sender"] == found


@pytest.mark.parametrize("where", ["main", "held", "native_thread"])
@pytest.mark.parametrize("count", [1, 20, 150])
def test_all_threads_are_recorded(twin: Twin, count: int, where: str) -> None:
    fault = "held.read_null" if where == "held" else "read_null"
    context = "main" if where == "held" else where
    ours = twin(f"threads:{count}", fault, exact=False, context=context)
    record = check(ours, FAULTS["read_null"], SIGSEGV)
    section = record["firstfault"]
    assert section["threads_total"] == 1 + count + (where == "native_thread")
    assert (
        len({thread["tid"] for thread in section["threads"]})
        == section["threads_total"]
    )
    waiting = [t for t in section["threads"] if "waiting" in functions(t)]
    assert len(waiting) == count
    assert "main" in functions(main_thread(record))


def test_threads_without_python_are_parked_on_their_small_stacks(twin: Twin) -> None:
    ours = twin("sleepers:20:16384", "read_null")
    section = ours.record()["firstfault"]
    assert section["threads_total"] == 21
    assert all(functions(thread) == [] for thread in section["threads"][1:])


@pytest.mark.parametrize("step", ["read_null", "os_abort", "sleepers:20:65536"])
def test_the_same_as_under_torchs_record_itself(tmp_path: Path, step: str) -> None:
    steps = [step] if step != "sleepers:20:65536" else [step, "held.read_null"]
    ended = []
    for under in "torch", "firstfault":
        (tmp_path / under).mkdir()
        ended.append(crash(tmp_path / under, *steps, under=under))
    theirs, ours = ended
    assert theirs.files == []
    assert ours.status == theirs.status
    assert comparable(ours.stderr) == comparable(theirs.stderr)


@pytest.mark.parametrize(
    "name", ["read_null", "divide_by_zero", "os_abort", "call_null"]
)
def test_activated_alone_nothing_is_written_and_the_status_is_the_same(
    tmp_path: Path, name: str
) -> None:
    if name not in FAULTS:
        missing(f"{name} on {platform.machine()}")
    ended = []
    for under in "nothing", "activate":
        (tmp_path / under).mkdir()
        ended.append(crash(tmp_path / under, name, under=under))
    bare, ours = ended
    assert ours.status == bare.status == -FAULTS[name].signal
    assert (ours.stdout, ours.stderr) == (bare.stdout, bare.stderr) == ("", "")
    record = check(ours, FAULTS[name], FAULTS[name].signal)
    assert "main" in functions(crashed_thread(record))
