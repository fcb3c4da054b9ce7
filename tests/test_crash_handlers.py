"""The handlers of others: they are called as without us, and may recover."""

import ctypes
import os
import re
import time
from pathlib import Path
from signal import SIGABRT, SIGKILL, SIGSEGV

import pytest

from conftest import Run
from crashes import comparable, crash, crashed_thread, faults_library, functions

SEGV = int(SIGSEGV)
ABRT = int(SIGABRT)

# What `install` of the faults library takes.
RECOVER, RECOVER_OR_RESTORE, RECOVER_OR_CALL = range(3)
ASK_THREAD, RAISE, EXIT, NEVER, FORK = range(3, 8)


def install(manner: int) -> str:
    return f"install:{manner}:{SEGV}"


# How faulthandler and another decorator can lie around ours: before, under, after.
NEIGHBOURS = {
    "before": (["enable"], "firstfault", []),
    "after": ([], "activate", ["enable"]),
    "after_again": ([], "firstfault", ["enable"]),
    "twice": (["enable"], "firstfault", ["enable", "enable"]),
    "off": ([], "firstfault", ["disable"]),
    "off_and_on": ([], "firstfault", ["disable", "enable"]),
    "off_before": (["enable"], "activate", ["disable"]),
    "ours_twice": ([], "firstfault_twice", []),
    "torch_inside": ([], "torch_in_firstfault", []),
    "torch_around": ([], "firstfault_in_torch", []),
}


@pytest.mark.parametrize("fault", ["read_null", "os_abort", f"kill:{SEGV}"])
@pytest.mark.parametrize("name", NEIGHBOURS)
def test_faulthandler_and_other_decorators(
    directory: Path, tmp_path: Path, name: str, fault: str
) -> None:
    if "torch" in name and fault != "read_null":
        pytest.skip("one fault will do where torch is imported")
    before, under, after = NEIGHBOURS[name]
    (tmp_path / "theirs").mkdir()
    bare = "nothing" if under == "activate" else "torch_handler"
    steps = [*after, fault]
    theirs = crash(tmp_path / "theirs", *steps, under=bare, before=before)
    ours = crash(directory, *steps, under=under, before=before)
    assert ours.status == theirs.status
    assert ours.stdout == ""
    assert comparable(ours.stderr) == comparable(theirs.stderr)
    assert ours.files == ["error.json"]
    record = ours.record()
    assert record["firstfault"]["signal"]["number"] == -ours.status
    assert "main" in functions(crashed_thread(record))


@pytest.mark.parametrize("last", ["enable", "disable"])
def test_faulthandler_is_switched_again_and_again(directory: Path, last: str) -> None:
    switches = ["disable", "enable"] * 20
    ours = crash(directory, *switches, last, "threads:3", "read_null")
    assert (ours.status, ours.files) == (-SIGSEGV, ["error.json"])
    assert ("Fatal Python error" in ours.stderr) == (last == "enable")
    section = ours.record()["firstfault"]
    # Whoever is called by faulthandler's raise(3) does not have the address.
    assert section["signal"]["address"] == "0x10"
    assert section["threads_total"] == 4


def test_a_handler_that_faulthandler_covered_recovers_again(
    directory: Path, tmp_path: Path
) -> None:
    """Switched off, faulthandler puts it back, and it is called as without us."""
    (tmp_path / "theirs").mkdir()
    touches = ["disable", "touch:10", "enable", "disable", "touch:10", "report_files"]
    steps = [*touches, "enable", "read_null"]
    before = [install(RECOVER)]
    theirs = crash(tmp_path / "theirs", *steps, under="torch_handler", before=before)
    ours = crash(directory, *steps, before=before)
    assert ours.status == theirs.status == -SIGSEGV
    assert comparable(ours.stderr) == comparable(theirs.stderr)
    assert ours.stderr.startswith("[]\n")
    assert ours.files == ["error.json"]


SWITCHES = """
import faulthandler, pydoc, sys, tempfile

def main():
    print(faulthandler.is_enabled(), faulthandler.disable(), faulthandler.disable())
    print(faulthandler.is_enabled(), faulthandler.enable(), faulthandler.is_enabled())
    for arguments in ((), (7, 8, 9)):
        try:
            faulthandler.enable(*arguments, file="no file")
        except Exception as error:
            print(type(error), error)
    for function in (faulthandler.enable, faulthandler.disable):
        print(function.__name__, function.__module__, function.__doc__)
    with tempfile.TemporaryFile() as file:
        faulthandler.enable(file)
        faulthandler.dump_traceback_later(60)
        faulthandler.cancel_dump_traceback_later()
        faulthandler.disable()
        print(faulthandler.is_enabled())

if sys.argv[1] == "ours":
    from firstfault import record
    main = record(main)
else:
    faulthandler.enable(all_threads=True)  # as torch's `record` does
main()
"""


def test_users_of_faulthandler_see_no_difference(run: Run) -> None:
    theirs, ours = run(SWITCHES, "theirs"), run(SWITCHES, "ours")
    assert (theirs.status, theirs.stderr) == (0, "")
    assert (ours.status, ours.stderr, ours.stdout) == (0, "", theirs.stdout)
    assert theirs.stdout.startswith("True True False\n")


DUMPS = """
import faulthandler, os, re, signal, sys, tempfile, threading

def dumped(file):
    file.seek(0)
    text = re.sub("0x[0-9a-f]+", "0x", file.read().decode())
    # The decorator's own frame is not in the run without it.
    return [line for line in text.splitlines() if "/_record.py" not in line]

def main():
    with tempfile.TemporaryFile() as file:
        faulthandler.register(signal.SIGUSR1, file, all_threads=True, chain=False)
        os.kill(os.getpid(), signal.SIGUSR1)
        print("register", *dumped(file), sep="\\n")
        print(faulthandler.unregister(signal.SIGUSR1))
        print(faulthandler.unregister(signal.SIGUSR1))
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback_later(0.2, file=file)
        never.wait(1)
        print("later", *dumped(file), sep="\\n")
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file)
        print("now", *dumped(file), sep="\\n")

never = threading.Event()
threading.Thread(target=never.wait, daemon=True).start()
if sys.argv[1] == "ours":
    from firstfault import record
    main = record(main)
main()
"""


def test_what_faulthandler_dumps_is_the_same(run: Run) -> None:
    theirs, ours = run(DUMPS, "theirs"), run(DUMPS, "ours")
    assert (theirs.status, theirs.stderr) == (0, "")
    assert (ours.status, ours.stderr, ours.stdout) == (0, "", theirs.stdout)
    assert theirs.stdout.count(" in main") >= 3
    assert theirs.stdout.count(" in wait") >= 2


UNREGISTERS = """
import ctypes, faulthandler, signal, firstfault

@firstfault.record
def main():
    found = [n for n in range(signal.SIGRTMIN, 65) if faulthandler.unregister(n)]
    print(*(signal.SIGRTMAX - n for n in found))
    ctypes.string_at(16)

main()
"""


def test_the_dumper_is_a_registration_that_a_program_can_take_back(run: Run) -> None:
    """It cannot be hidden: what is not registered dumps nothing."""
    ended = run(UNREGISTERS)
    assert (ended.status, ended.files) == (-SIGSEGV, ["error.json"])
    (below,) = map(int, ended.stdout.split())
    assert 0 <= below < 8
    # Where CPython has the function below it by name, that one serves.
    is_exported = hasattr(ctypes.pythonapi, "_Py_DumpTraceback")
    assert ("main" in functions(crashed_thread(ended.record()))) == is_exported


@pytest.mark.parametrize("under", ["activate", "firstfault"])
def test_ten_thousand_recovered_faults_leave_nothing(
    directory: Path, under: str
) -> None:
    steps = "touch:1", "report_files", "touch:9999", "report_files"
    before = [install(RECOVER)]
    if under == "firstfault":
        # faulthandler, enabled on top of such a handler, would end the process.
        before, steps = [], ("disable", install(RECOVER), *steps)
    ours = crash(directory, *steps, under=under, before=before)
    assert (ours.status, ours.stderr) == (0, "[]\n[]\n")
    assert ours.files == []


def test_after_its_first_recovery_a_handler_is_called_first(directory: Path) -> None:
    steps = ["watch", "touch:1", "report_seen", "touch:100", "report_seen"]
    ours = crash(directory, *steps, under="activate", before=[install(RECOVER)])
    assert (ours.status, ours.stderr, ours.files) == (0, "seen 1\nseen 1\n", [])


def test_a_child_of_a_handler_crashes(directory: Path) -> None:
    ours = crash(directory, "read_null", under="activate", before=[install(FORK)])
    assert ours.status == -SIGSEGV
    child, own = ours.files
    assert own == "error.json"
    assert child.startswith(f"error.{ours.pid}.child_")
    assert ours.record(child)["firstfault"]["signal"]["name"] == "SIGABRT"
    assert ours.record()["firstfault"]["signal"]["name"] == "SIGSEGV"


def test_a_handler_installed_after_us_recovers(directory: Path) -> None:
    ours = crash(directory, install(RECOVER), "touch:10000")
    assert (ours.status, ours.stderr, ours.files) == (0, "", [])


# What puts our handlers back above those that we know.
REASSERTED = {
    "activated again": ("activate", ["activate_again", "activate_again"]),
    "activated in record": ("firstfault", ["activate_again"]),
    "faulthandler on": ("activate", ["enable"]),
    "faulthandler on again": ("firstfault", ["enable", "enable"]),
}


@pytest.mark.parametrize("again", REASSERTED)
def test_we_never_come_above_a_handler_that_we_do_not_know(
    directory: Path, again: str
) -> None:
    """It came after us and sees each fault first: no file, not for a moment."""
    under, steps = REASSERTED[again]
    # faulthandler's own, enabled only now, would be above it, and end the process.
    steps = (
        ["enable", install(RECOVER), *steps]
        if under == "activate"
        else ([install(RECOVER), *steps])
    )
    ours = crash(
        directory,
        *steps,
        "watch",
        "touch:1000",
        "report_seen",
        "report_files",
        under=under,
    )
    assert (ours.status, ours.stderr, ours.files) == (0, "seen 0\n[]\n", [])


@pytest.mark.parametrize("again", REASSERTED)
def test_the_record_names_whom_it_lets_be_above_us(directory: Path, again: str) -> None:
    under, steps = REASSERTED[again]
    first = ["enable"] if under == "activate" else []
    steps = [*first, install(RECOVER_OR_CALL), *steps, "read_null"]
    ours = crash(directory, *steps, under=under)
    assert (ours.status, ours.files) == (-SIGSEGV, ["error.json"])
    handlers = ours.record()["firstfault"]["handlers"]
    above = {found["signal"]: found.get("above", "") for found in handlers}
    path, _, offset = above.pop("SIGSEGV").rpartition("+")
    assert Path(path).samefile(faults_library())
    assert int(offset, 16) > 0
    assert not any(above.values())


def test_other_threads_run_on_while_one_recovers(directory: Path) -> None:
    steps = ["threads:20", "touch:100", "exit:7"]
    ours = crash(directory, *steps, under="activate", before=[install(RECOVER)])
    assert (ours.status, ours.stderr, ours.files) == (7, "", [])


@pytest.mark.parametrize("where", ["before", "after"])
def test_threads_recover_at_once(directory: Path, where: str) -> None:
    before = [install(RECOVER)] if where == "before" else []
    after = [] if before else [install(RECOVER)]
    steps = [*after, "touch_together:8:2000"]
    ours = crash(directory, *steps, under="activate", before=before)
    assert (ours.status, ours.stderr, ours.files) == (0, "", [])


@pytest.mark.parametrize("recoveries", [0, 1, 5])
@pytest.mark.parametrize("manner", [RECOVER, RECOVER_OR_RESTORE, RECOVER_OR_CALL])
def test_a_handler_that_gives_up(directory: Path, manner: int, recoveries: int) -> None:
    first = [f"touch:{recoveries}"] if recoveries else []
    steps = [*first, "report_files", "threads:3", "read_null"]
    ours = crash(directory, *steps, under="activate", before=[install(manner)])
    assert ours.status == -SIGSEGV
    assert ours.stderr == "[]\n"
    assert ours.files == ["error.json"]
    record = ours.record()
    assert record["firstfault"]["signal"]["address"] == "0x10"
    assert record["firstfault"]["threads_total"] == 4


@pytest.mark.parametrize("manner", [RECOVER_OR_RESTORE, RECOVER_OR_CALL])
def test_a_handler_above_us_hands_on(directory: Path, manner: int) -> None:
    steps = [install(manner), "touch:5", "threads:3", "read_null"]
    ours = crash(directory, *steps, under="activate")
    assert (ours.status, ours.stderr, ours.files) == (-SIGSEGV, "", ["error.json"])
    record = ours.record()
    assert record["firstfault"]["signal"]["address"] == "0x10"
    assert record["firstfault"]["threads_total"] == 4


# A previous handler's manner, and how the process ends by it.
ENDINGS = {ASK_THREAD: -SEGV, RAISE: -SEGV, EXIT: 3}


@pytest.mark.parametrize("under", ["activate", "firstfault"])
@pytest.mark.parametrize("manner", ENDINGS)
def test_a_handler_that_ends_the_process(
    directory: Path, tmp_path: Path, manner: int, under: str
) -> None:
    (tmp_path / "theirs").mkdir()
    steps = ["threads:3", "read_null"]
    bare = "nothing" if under == "activate" else "torch_handler"
    before = [install(manner)]
    theirs = crash(tmp_path / "theirs", *steps, under=bare, before=before)
    ours = crash(directory, *steps, under=under, before=before)
    assert ours.status == theirs.status == ENDINGS[manner]
    assert comparable(ours.stderr)[:2] == comparable(theirs.stderr)[:2]
    assert ours.files == ["error.json"]
    assert ours.record()["firstfault"]["signal"]["address"] == "0x10"


@pytest.mark.parametrize("under", ["activate", "firstfault"])
@pytest.mark.parametrize("manner", [RECOVER, RAISE])
def test_a_handler_that_gives_up_a_sent_signal(
    directory: Path, tmp_path: Path, manner: int, under: str
) -> None:
    (tmp_path / "theirs").mkdir()
    bare = "nothing" if under == "activate" else "torch_handler"
    before, steps = [install(manner)], [f"kill:{SEGV}", "exit:5"]
    theirs = crash(tmp_path / "theirs", *steps, under=bare, before=before)
    ours = crash(directory, *steps, under=under, before=before)
    assert ours.status == theirs.status
    # A signal that was sent does not strike again: who puts back the default and
    # returns has let the process live.
    if manner == RAISE:
        assert ours.status == -SIGSEGV
        assert ours.record()["firstfault"]["signal"]["code"] == "SI_USER"
    else:
        assert ours.status == 5
        assert all(name != "error.json" for name in ours.files) or (
            ours.record()["firstfault"]["kind"] == "exit"
        )


def test_a_handler_that_never_returns_has_the_minimal_file_before_it(
    directory: Path,
) -> None:
    def kill_when_written(pid: int) -> None:
        while not (directory / "error.json").exists():
            time.sleep(0.01)
        os.kill(pid, SIGKILL)

    ours = crash(
        directory,
        "tell",
        "read_null",
        under="activate",
        before=[install(NEVER)],
        while_ready=kill_when_written,
    )
    assert ours.status == -SIGKILL
    assert ours.files == ["error.json"]
    record = ours.record()
    assert record["firstfault"]["signal"]["address"] == "0x10"
    assert record["firstfault"].get("stages", []) == []
    below = [found.get("below") for found in record["firstfault"]["handlers"]]
    (path,) = [below.rsplit("+", 1)[0] for below in below if below]
    assert Path(path).samefile(faults_library())


@pytest.mark.parametrize("under", ["activate", "firstfault"])
def test_an_ignored_signal_stays_ignored(
    directory: Path, tmp_path: Path, under: str
) -> None:
    (tmp_path / "theirs").mkdir()
    steps = [f"kill:{ABRT}", "exit:4"]
    before = [f"ignore:{ABRT}"]
    bare = "nothing" if under == "activate" else "torch_handler"
    theirs = crash(tmp_path / "theirs", *steps, under=bare, before=before)
    ours = crash(directory, *steps, under=under, before=before)
    assert ours.status == theirs.status
    assert comparable(ours.stderr) == comparable(theirs.stderr)
    assert ours.status == 4
    if under == "firstfault":
        assert ours.record()["firstfault"]["kind"] == "exit"


@pytest.mark.parametrize("under", ["activate", "firstfault"])
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_handler_in_python(
    directory: Path, tmp_path: Path, where: str, under: str
) -> None:
    (tmp_path / "theirs").mkdir()
    handle = [f"handle:{ABRT}"]
    before, after = (handle, []) if where == "before" else ([], handle)
    steps = [*after, f"kill:{ABRT}", "report_files", f"kill:{ABRT}"]
    bare = "nothing" if under == "activate" else "torch_handler"
    theirs = crash(tmp_path / "theirs", *steps, under=bare, before=before)
    ours = crash(directory, *steps, under=under, before=before)
    assert theirs.status == 0
    assert theirs.stderr.endswith("handled\n[]\nhandled\n")
    assert (ours.status, ours.files) == (0, [])
    assert comparable(ours.stderr) == comparable(theirs.stderr)


def test_an_abort_that_is_handled_in_python_still_dies(directory: Path) -> None:
    """abort(3) puts back the default and raises once more when a handler returns."""
    ours = crash(directory, "os_abort", under="activate", before=[f"handle:{ABRT}"])
    assert ours.status == -SIGABRT


@pytest.mark.parametrize("fault", ["read_null", f"kill:{SEGV}", "c_abort"])
def test_somebody_put_ours_back_without_its_flags(directory: Path, fault: str) -> None:
    number = ABRT if fault == "c_abort" else SEGV
    steps = [f"put_back_without_flags:{number}", "threads:3", fault]
    ours = crash(directory, *steps)
    assert ours.status == -number
    assert ours.files == ["error.json"]
    record = ours.record()
    assert "its information was lost" in record["message"]["message"]
    assert record["firstfault"]["threads_total"] == 4
    assert "main" in functions(crashed_thread(record))


@pytest.mark.parametrize("fault", ["read_null", "os_abort"])
@pytest.mark.parametrize("where", ["before", "after"])
def test_torchs_own_fatal_handler_gets_its_answers(
    directory: Path, tmp_path: Path, where: str, fault: str
) -> None:
    """It asks every thread for its stack by a signal, and waits for the answers."""
    (tmp_path / "theirs").mkdir()
    traces = ["torch_stack_traces"]
    before, after = (traces, []) if where == "before" else (["torch_import"], traces)
    steps = [*after, "threads:4", fault]
    theirs = crash(tmp_path / "theirs", *steps, under="torch_handler", before=before)
    ours = crash(directory, *steps, before=before)
    assert ours.status == theirs.status
    answers = theirs.stderr.count("stacktraceSignalHandler")
    assert answers > 4
    assert ours.stderr.count("stacktraceSignalHandler") == answers
    assert ours.files == ["error.json"]
    record = ours.record()
    assert "main" in functions(crashed_thread(record))


def test_a_loader_worker_that_crashes(directory: Path, tmp_path: Path) -> None:
    """torch's own handlers are above ours there; the parent raises, as without us."""
    (tmp_path / "theirs").mkdir()
    ended = [
        crash(where, program="loader.py", under=under)
        for where, under in ((tmp_path / "theirs", "torch"), (directory, "firstfault"))
    ]
    theirs, ours = ended
    assert ours.status == theirs.status == 1
    told = [
        re.sub(r"\d+", "…", "\n".join(re.findall("RuntimeError: .*", each.stderr)))
        for each in (theirs, ours)
    ]
    assert "killed by signal: Segmentation fault" in told[0]
    assert told[0] == told[1]
    record = ours.record()
    assert record["firstfault"]["kind"] == "exception"
    assert record["firstfault"]["process"]["pid"] == ours.pid
    child, *own = ours.files
    assert own == ["error.firstfault.json", "error.json"]
    assert child.startswith(f"error.{ours.pid}.child_")
    section = ours.record(child)["firstfault"]
    assert section["signal"]["name"] == "SIGSEGV"
    assert "__getitem__" in functions(crashed_thread(ours.record(child)))
    assert section["process"]["ppid"] == ours.pid
