"""A signal that turns out to be no death leaves everything as it was."""

import json
import os

import pytest

from conftest import Run
from crashes import faults_library

PYTHON_HANDLER = """
import os, signal, sys
signal.signal(signal.SIGABRT, lambda *_: None)
from firstfault import ErrorHandler, record

@record
def main():
    if sys.argv[1] == "provisional":
        ErrorHandler().record_exception(ValueError("the real failure"))
    else:
        open(os.environ["TORCHELASTIC_ERROR_FILE"], "w").write(sys.argv[1])
    os.kill(os.getpid(), signal.SIGABRT)
    files = os.listdir(os.path.dirname(os.environ["TORCHELASTIC_ERROR_FILE"]))
    print(*sorted(name for name in files if not name.endswith(".box")))
    if sys.argv[2:] == ["raise"]:
        raise KeyError("the last failure")

main()
"""


def test_a_provisional_record_is_put_back(run: Run) -> None:
    ended = run(PYTHON_HANDLER, "provisional")
    assert (ended.status, ended.stdout) == (0, "error.json\n")
    record = ended.record()
    assert record["message"]["message"] == "ValueError: the real failure"
    assert record["firstfault"]["final"] is False


def test_a_record_that_was_put_back_is_replaced_by_a_final_one(run: Run) -> None:
    ended = run(PYTHON_HANDLER, "provisional", "raise")
    assert ended.status == 1
    assert ended.files == ["error.firstfault.json", "error.json"]
    section = ended.record()["firstfault"]
    assert section["exception"]["type"] == "KeyError"
    (before,) = section["preceded_by"]
    assert before["message"] == "ValueError: the real failure"


def test_another_recorders_file_is_put_back(run: Run) -> None:
    theirs = json.dumps({"message": "of another"})
    ended = run(PYTHON_HANDLER, theirs)
    assert (ended.status, ended.stdout) == (0, "error.json\n")
    assert (ended.directory / "error.json").read_text() == theirs


intel = pytest.mark.skipif(os.uname().machine != "x86_64", reason="x86-64 assembly")

JUMP = """
import ctypes, os, sys
lib = ctypes.CDLL(sys.argv[1])
lib.install_jumping(11)
from firstfault import _native
error_file = os.environ["TORCHELASTIC_ERROR_FILE"]
_native.activate(error_file=error_file, entrypoint=None, argv=[])
"""


@intel
def test_a_handler_that_jumps_out_has_recovered(run: Run) -> None:
    program = JUMP + (
        "print(lib.fault_and_be_jumped_out())\n"
        "assert _native.commit(None, b'{}', b'{}', final=False, copy=False) is None\n"
    )
    ended = run(program, str(faults_library()))
    assert (ended.status, ended.stdout, ended.files) == (0, "1\n", [])


@intel
def test_a_crash_after_a_jump_is_a_crash(run: Run) -> None:
    ended = run(
        JUMP + "lib.fault_and_be_jumped_out()\nos.abort()\n", str(faults_library())
    )
    assert ended.status == -6
    assert ended.record()["firstfault"]["signal"]["name"] == "SIGABRT"


@intel
def test_after_its_first_jump_a_handler_is_called_first(run: Run) -> None:
    # The first jump is noticed at the second fault; from then on there is no file.
    program = JUMP + (
        "for _ in range(100): lib.fault_and_be_jumped_out()\n"
        "files = os.listdir(os.path.dirname(error_file))\n"
        "print(*(name for name in files if not name.endswith('.box')))\n"
    )
    ended = run(program, str(faults_library()))
    assert (ended.status, ended.stdout, ended.files) == (0, "\n", [])
