"""Requests to end: a snapshot is left beside, and the program goes its own way."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGHUP, SIGKILL, SIGQUIT, SIGSEGV, SIGTERM, SIGUSR1, SIGUSR2, Signals
from typing import Any

import pytest

from conftest import Run
from crashes import Crashed, crash, crashed_thread, functions, main_thread

REQUESTS = [SIGTERM, SIGHUP, SIGQUIT]
TERM = int(SIGTERM)


def sending(number: int) -> Callable[[int], None]:
    return lambda pid: os.kill(pid, number)


def own_name() -> str:
    return Path("/proc/self/comm").read_text().strip()


def snapshot_of(ours: Crashed) -> str:
    return f"error.{ours.pid}.term.json"


@pytest.mark.parametrize("under", ["activate", "firstfault"])
@pytest.mark.parametrize("number", REQUESTS, ids=lambda number: number.name)
def test_a_process_that_dies_by_it(
    directory: Path, tmp_path: Path, number: Signals, under: str
) -> None:
    (tmp_path / "theirs").mkdir()
    bare = "nothing" if under == "activate" else "torch_handler"
    steps = ["threads:3"]
    theirs = crash(tmp_path / "theirs", *steps, under=bare, while_ready=sending(number))
    ours = crash(directory, *steps, under=under, while_ready=sending(number))
    assert ours.status == theirs.status == -number
    assert (ours.stdout, ours.stderr) == (theirs.stdout, theirs.stderr) == ("", "")
    assert ours.files == [snapshot_of(ours)]
    record = ours.record(snapshot_of(ours))
    section = record["firstfault"]
    assert (section["kind"], section["final"]) == ("terminated", True)
    assert section["signal"]["name"] == number.name
    sender = {"pid": os.getpid(), "uid": os.getuid(), "comm": own_name()}
    assert section["signal"]["sender"] == sender
    said = record["message"]["message"]
    assert f"): sent by process {os.getpid()} '{own_name()}' of user " in said
    assert section["threads_total"] == 4
    assert "ready" in functions(main_thread(record))
    waiting = [t for t in section["threads"] if "waiting" in functions(t)]
    assert len(waiting) == 3


# What is there for SIGTERM before or after us: a handler in Python, one in C.
HANDLERS = {"python": f"handle:{TERM}", "c": f"install:5:{TERM}"}


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("name", HANDLERS)
def test_a_handler_of_the_programs_own(
    directory: Path, tmp_path: Path, name: str, where: str
) -> None:
    (tmp_path / "theirs").mkdir()
    handler = [HANDLERS[name]]
    before, after = (handler, []) if where == "before" else ([], handler)
    steps = [*after, "threads:2", f"kill:{TERM}", f"kill:{TERM}", "exit:0"]
    theirs = crash(tmp_path / "theirs", *steps, under="nothing", before=before)
    ours = crash(directory, *steps, under="activate", before=before)
    assert ours.status == theirs.status == (0 if name == "python" else 3)
    assert ours.stderr == theirs.stderr == ("handled\n" * 2 if not ours.status else "")
    if where == "after":
        assert ours.files == []
        return
    assert ours.files == [snapshot_of(ours)]
    record = ours.record(snapshot_of(ours))
    section = record["firstfault"]
    assert (section["kind"], section["final"]) == ("terminated", False)
    assert "kill" in functions(crashed_thread(record))
    # A living process was not disturbed: nobody else's stack.
    assert len(section["threads"]) == 1
    assert section["threads_total"] == 3
    stages = {stage["name"]: stage["status"] for stage in section["stages"]}
    assert stages["own_python_stack"] == "ok"
    assert stages["park"] == stages["other_python_stacks"] == "skipped"


def test_a_living_process_shows_all_its_threads_where_that_is_wanted(
    directory: Path,
) -> None:
    ours = crash(
        directory,
        *("threads:3", f"kill:{TERM}", "exit:0"),
        under="activate",
        before=[f"handle:{TERM}"],
        env={"FIRSTFAULT_SNAPSHOT": "all"},
    )
    assert (ours.status, ours.stderr) == (0, "handled\n")
    section = ours.record(snapshot_of(ours))["firstfault"]
    assert section["final"] is False
    assert len([t for t in section["threads"] if "waiting" in functions(t)]) == 3


def test_a_living_process_dumps_whole_stacks_afterwards(directory: Path) -> None:
    """CPython's dumper serves nobody any more once it was cut short."""
    steps = ["threads:3", f"kill:{TERM}", "read_null"]
    ours = crash(directory, *steps, under="activate", before=[f"handle:{TERM}"])
    assert ours.status == -SIGSEGV
    later = f"error.{ours.pid}.term.{ours.pid}.json"
    assert ours.files == sorted([snapshot_of(ours), later])
    record = ours.record(later)
    section = record["firstfault"]
    assert section["signal"]["name"] == "SIGSEGV"
    assert section["threads_total"] == 4
    assert "main" in functions(crashed_thread(record))
    assert len([t for t in section["threads"] if "waiting" in functions(t)]) == 3


def test_a_living_process_keeps_the_files_that_it_opened(directory: Path) -> None:
    """The number of the dump's own descriptor may be one of theirs by now."""
    steps = ["close_all", "reopen_all", f"kill:{TERM}", "write_to_all", "exit:0"]
    ours = crash(directory, *steps, under="activate", before=[f"handle:{TERM}"])
    assert (ours.status, ours.stderr) == (0, "handled\n")
    assert ours.files == sorted([snapshot_of(ours), "other.txt"])
    assert (directory / "other.txt").read_text() == "." * 596


PROGRAM = """
import os, signal, sys
from firstfault import record

def on_term(number, frame):
    raise {raised}

signal.signal(signal.SIGTERM, on_term)
before = signal.getsignal(signal.SIGTERM)

@record
def main():
    assert signal.getsignal(signal.SIGTERM) is before
    os.kill(os.getpid(), {number})
    raise ValueError("a failure of its own")

print(os.getpid(), flush=True)
main()
"""


@pytest.mark.parametrize("switch", [None, "0"])
@pytest.mark.parametrize("raised", ["SystemExit(143)", "RuntimeError('asked to end')"])
def test_a_failure_after_it_is_no_failure_of_the_job(
    run: Run, raised: str, switch: str | None
) -> None:
    program = PROGRAM.format(raised=raised, number=TERM)
    ended = run(program, env={"FIRSTFAULT_SNAPSHOT": switch})
    assert ended.status != 0
    pid = int(ended.stdout)
    stem = f"error.{pid}.term"
    if switch == "0":
        assert ended.files == [f"{stem}.json"]
        last = f"{stem}.json"
    else:
        assert ended.files == [f"{stem}.{pid}.json", f"{stem}.json"]
        assert ended.record(f"{stem}.json")["firstfault"]["kind"] == "terminated"
        last = f"{stem}.{pid}.json"
    assert ended.record(last)["firstfault"]["exception"]["type"] in raised


def test_a_failure_without_it_keeps_the_error_file(run: Run) -> None:
    ended = run(PROGRAM.format(raised="SystemExit(1)", number="signal.SIGCONT"))
    assert ended.files == ["error.firstfault.json", "error.json"]


@pytest.mark.parametrize("number", REQUESTS, ids=lambda number: number.name)
def test_snapshots_can_be_switched_off(directory: Path, number: Signals) -> None:
    off = {"FIRSTFAULT_SNAPSHOT": "0"}
    ours = crash(directory, while_ready=sending(number), env=off)
    assert (ours.status, ours.files) == (-number, [])


@pytest.mark.parametrize("number", REQUESTS, ids=lambda number: number.name)
def test_an_ignored_request_stays_ignored(directory: Path, number: Signals) -> None:
    steps = [f"kill:{number:d}", "exit:4"]
    ours = crash(directory, *steps, under="activate", before=[f"ignore:{number:d}"])
    assert (ours.status, ours.files) == (4, [])


def test_what_python_says_of_its_handlers_stays_the_same(run: Run) -> None:
    ended = run(
        """
import signal
from firstfault import ErrorHandler

before = {n: signal.getsignal(n) for n in signal.valid_signals()}
ErrorHandler().initialize()
assert {n: signal.getsignal(n) for n in signal.valid_signals()} == before
assert signal.signal(signal.SIGTERM, lambda *_: print("ours")) is signal.SIG_DFL
ErrorHandler().initialize()
signal.raise_signal(signal.SIGTERM)
assert signal.signal(signal.SIGTERM, signal.SIG_DFL) is not signal.SIG_DFL
signal.raise_signal(signal.SIGTERM)
"""
    )
    assert (ended.status, ended.stdout) == (-TERM, "ours\n")


ACTION = """
import ctypes, os
from firstfault import ErrorHandler

def action():
    room = (ctypes.c_ulong * 32)()
    assert ctypes.CDLL(None).sigaction({number:d}, None, room) == 0
    return room[0]

before = action()
ErrorHandler().initialize()
"""


# CPython ignores the last two, and what is ignored nobody would touch.
OTHERS = [SIGUSR1, SIGUSR2, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ]


@pytest.mark.parametrize("number", OTHERS, ids=lambda number: number.name)
def test_no_other_signal_is_touched(run: Run, number: Signals) -> None:
    for first in "", f"import signal; signal.signal({number:d}, signal.SIG_DFL)\n":
        ended = run(first + ACTION.format(number=number) + "assert action() == before")
        assert (ended.status, ended.stderr) == (0, "")


@pytest.mark.parametrize("number", REQUESTS, ids=lambda number: number.name)
def test_a_forked_child_has_its_parents_old_action(run: Run, number: Signals) -> None:
    check = """
assert action() != before
if not os.fork():
    assert action() == before
    os._exit(5)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 5
"""
    ended = run(ACTION.format(number=number) + check)
    assert (ended.status, ended.stderr) == (0, "")


CHILDREN = {
    "fork": """
child = os.fork()
if not child:
    signal.pause()
time.sleep(0.1)
os.kill(child, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
    "raw_clone": """
import ctypes
clone = 56 if os.uname().machine == "x86_64" else 220
child = ctypes.CDLL(None).syscall(clone, signal.SIGCHLD, 0, 0, 0, 0)
if not child:
    signal.pause()
time.sleep(0.1)
os.kill(child, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
    "pool": """
import multiprocessing
with multiprocessing.get_context("fork").Pool(4) as pool:
    pool.map_async(time.sleep, [60] * 4)
    time.sleep(0.3)
    workers = list(pool._pool)
for worker in workers:
    worker.join()
print(min(worker.exitcode for worker in workers))
""",
    "activated": """
child = os.fork()
if not child:
    record(signal.pause)()
time.sleep(0.3)
os.kill(child, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
}


@pytest.mark.parametrize("name", CHILDREN)
@pytest.mark.filterwarnings("ignore")
def test_a_child_dies_by_it_and_leaves_nothing(run: Run, name: str) -> None:
    body = CHILDREN[name].strip().replace("\n", "\n    ")
    ended = run(
        f"""
import os, signal, sys, time
from firstfault import record

@record
def main():
    {body}

main()
""",
        flags=("-W", "ignore"),
    )
    assert (ended.status, ended.stderr) == (0, "")
    assert int(ended.stdout) == -TERM
    assert ended.files == []


def test_a_child_of_a_terminated_process_keeps_its_own_name(directory: Path) -> None:
    steps = [f"kill:{TERM}", "fork:read_null", "exit:0"]
    ours = crash(directory, *steps, before=[f"handle:{TERM}"])
    assert ours.status == 0
    snapshot, child = sorted(ours.files, key=lambda name: ".child_" in name)
    assert snapshot == snapshot_of(ours)
    assert ours.record(child)["firstfault"]["signal"]["name"] == "SIGSEGV"


def test_a_snapshot_is_bounded(directory: Path) -> None:
    ours = crash(directory, "deep_threads:200:60", while_ready=sending(TERM))
    assert ours.status == -TERM
    path = directory / snapshot_of(ours)
    check_bounds(ours.record(path.name)["firstfault"], 201)
    assert 256 * 1024 < path.stat().st_size <= 512 * 1024


def check_bounds(section: dict[str, Any], threads: int) -> None:
    assert section["threads_total"] == threads
    assert section["truncated"]["threads"] == threads - len(section["threads"]) > 0
    # The crashed thread comes first, then main; of neither anything is cut.
    assert "main" in [f["function"] for f in section["threads"][0]["python"]]
    assert {stage["status"] for stage in section["stages"]} == {"ok"}


@pytest.mark.slow
def test_a_crash_record_is_bounded(directory: Path) -> None:
    """It stays far below what a report reads of one file."""
    ours = crash(directory, "deep_threads:900:99", "read_null")
    path = directory / "error.json"
    section = ours.record()["firstfault"]
    assert section["threads_total"] == 901
    assert 4 << 20 < path.stat().st_size <= 8 << 20
    assert section["truncated"]["threads"] == 901 - len(section["threads"]) > 0


def test_it_does_not_cut_a_crash_record_short(directory: Path) -> None:
    """The thread that gets it waits for the one that crashes."""
    for _ in range(5):
        for path in directory.iterdir():
            path.unlink()

        def end(pid: int) -> None:
            while not (directory / "error.json").exists():
                time.sleep(0.0001)
            os.kill(pid, SIGTERM)

        ours = crash(directory, "threads:200", "tell", "read_null", while_ready=end)
        assert ours.status in (-SIGSEGV, -TERM)
        assert "error.json" in ours.files
        assert json.loads((directory / "error.json").read_bytes())


def test_killed_in_the_middle_the_snapshot_is_whole_or_absent(directory: Path) -> None:
    for delay in range(12):
        for path in directory.iterdir():
            path.unlink()

        def end(pid: int, after: float = delay / 1000) -> None:
            os.kill(pid, SIGTERM)
            time.sleep(after)
            os.kill(pid, SIGKILL)

        ours = crash(directory, "threads:50", while_ready=end)
        assert ours.status in (-SIGKILL, -TERM)
        for name in ours.files:
            if name.endswith(".json"):
                assert ours.record(name)
