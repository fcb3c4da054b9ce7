"""A crash record names the handlers that stand above and below ours."""

from pathlib import Path
from signal import SIGBUS, SIGSEGV, SIGTRAP, SIGXCPU

from conftest import read_record
from crashes import Crashed, crash, faults_library
from seccomp import refuse
from test_crash_native import show, symbolized

# What `install` of the faults library takes.
RECOVER, RECOVER_OR_CALL = 0, 2


def handlers(ours: Crashed) -> dict[str, dict[str, str]]:
    """Return the neighbours of ours by signal."""
    assert (ours.status, ours.files) == (-SIGSEGV, ["error.json"])
    found = ours.record()["firstfault"]["handlers"]
    neighbours = {handler.pop("signal"): handler for handler in found}
    assert len(neighbours) == len(found) == 8
    return neighbours


def module(handler: str) -> Path:
    """Return the file of a handler."""
    path, offset = handler.rsplit("+", 1)
    assert int(offset, 16) > 0
    return Path(path)


def test_faulthandler_is_below(directory: Path) -> None:
    found = handlers(crash(directory, "read_null"))
    for name in ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT"):
        (where,) = found[name]
        assert where == "below"
        # Of the interpreter, or of the library that it is in.
        assert "python" in module(found[name]["below"]).name
    for name in ("SIGTRAP", "SIGSYS", "SIGXCPU"):
        assert found[name] == {}


def test_faulthandler_is_known_without_its_dumper(directory: Path) -> None:
    """Then it is no handler that may recover: everything is recorded before it."""
    ours = crash(directory, "threads:3", "read_null", limits=refuse("memfd_create"))
    assert set(handlers(ours)["SIGSEGV"]) == {"below"}
    section = ours.record()["firstfault"]
    assert (section["signal"]["address"], section["threads_total"]) == ("0x10", 4)


def test_an_unknown_one_displaced_us(directory: Path) -> None:
    """It hands on what is not its own; of another signal it is only said."""
    steps = [f"install:{RECOVER_OR_CALL}:{number:d}" for number in (SIGBUS, SIGSEGV)]
    ours = crash(directory, *steps, "read_null", under="activate")
    found = handlers(ours)
    library = faults_library()
    for name in ("SIGSEGV", "SIGBUS"):
        (where,) = found[name]
        assert where == "above"
        assert module(found[name]["above"]).samefile(library)
    assert found["SIGFPE"] == {}
    path = directory / "error.json"
    (symbol,) = {
        handler["above_symbol"]
        for handler in symbolized(path)["firstfault"]["handlers"]
        if "above" in handler
    }
    assert "handlers::on_signal" in symbol
    (line,) = [line for line in show(path).splitlines() if "on_signal" in line]
    assert line.startswith("  SIGBUS, SIGSEGV: firstfault_faults::handlers::on_signal")


def test_an_unknown_one_is_below(directory: Path) -> None:
    """It gives up, and puts the default back: nobody is above."""
    before = [f"install:{RECOVER}:{SIGSEGV:d}"]
    found = handlers(crash(directory, "read_null", under="activate", before=before))
    (where,) = found["SIGSEGV"]
    assert where == "below"
    assert module(found["SIGSEGV"]["below"]).samefile(faults_library())


def test_signals_that_are_not_ours(directory: Path) -> None:
    before = [f"ignore:{SIGXCPU:d}"]
    steps = [f"default:{SIGTRAP:d}", f"install_code:{SIGBUS:d}", "read_null"]
    found = handlers(crash(directory, *steps, under="activate", before=before))
    assert found["SIGXCPU"] == {"above": "SIG_IGN"}
    assert found["SIGTRAP"] == {"above": "SIG_DFL"}
    # In no file: code that was made at run time.
    assert int(found["SIGBUS"]["above"], 16) > 0


def test_a_forked_child_says_it_too(directory: Path) -> None:
    steps = [f"install:{RECOVER_OR_CALL}:{SIGSEGV:d}", "fork:read_null"]
    ours = crash(directory, *steps, under="activate")
    (child,) = ours.files
    assert child.startswith(f"error.{ours.pid}.child_")
    found = read_record(directory / child)["firstfault"]["handlers"]
    assert [handler["signal"] for handler in found if "above" in handler] == ["SIGSEGV"]
