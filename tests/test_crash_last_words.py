"""What a process said before it aborted is in its record."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from signal import SIGABRT, SIGSEGV

import pytest

from crashes import Crashed, crash, crashed_thread, functions, main_thread, missing

WHAT = "rank 3 lost its peer"
WHOLE = f"{WHAT}\nframe #0: somewhere"

# What is thrown: its type, its text, and the one line that says so.
EXCEPTIONS = {
    "throw_runtime_error": ("std::runtime_error", WHOLE, f"std::runtime_error: {WHAT}"),
    "throw_int": ("int", "", "int"),
    "throw_text": ("char const*", "a text", "char const*: a text"),
}

# How the runtime learns of libstdc++: before activation, or not before the end.
LOADED = {"before": ["load_cpp"], "after": []}


def both(
    directory: Path, tmp_path: Path, *steps: str, before: Sequence[str] = ()
) -> Crashed:
    """Run a program without us and with us; returns how ours ended."""
    (tmp_path / "theirs").mkdir()
    theirs = crash(tmp_path / "theirs", *steps, under="nothing", before=before)
    ours = crash(directory, *steps, under="activate", before=before)
    assert ours.status == theirs.status == -SIGABRT
    assert (ours.stdout, ours.stderr) == (theirs.stdout, theirs.stderr)
    assert ours.files == ["error.json"]
    return ours


def test_an_abort_of_the_first_process(directory: Path) -> None:
    """The kernel ignores its SIGABRT, so abort(3) ends it in another way."""
    prefix = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        missing("private PID namespaces")
    ours = crash(directory, "libc:__assert_fail", prefix=prefix)
    assert ours.status == -SIGSEGV
    record = ours.record()
    said = "abort() as process 1, which SIGABRT does not end: glibc: "
    assert f": {said}" in record["message"]["message"]
    assert (
        "train.c:12: step: Assertion `loss < inf' failed."
        in (record["firstfault"]["abort_message"])
    )
    assert record["firstfault"]["signal"]["name"] == "SIGSEGV"


@pytest.mark.parametrize("where", ["main", "bare_thread"])
@pytest.mark.parametrize("loaded", LOADED)
@pytest.mark.parametrize("name", EXCEPTIONS)
def test_an_uncaught_cpp_exception(
    directory: Path, tmp_path: Path, name: str, loaded: str, where: str
) -> None:
    type_name, what, line = EXCEPTIONS[name]
    step = name if where == "main" else f"bare_thread:{name}"
    ours = both(directory, tmp_path, step, before=LOADED[loaded])
    record = ours.record()
    if loaded == "after":
        # Without memory to allocate the name stays as the compiler made it.
        type_name = {"std::runtime_error": "St13runtime_error", "int": "i"}.get(
            type_name, "PKc"
        )
        line = f"{type_name}: {line.split(': ')[1]}" if ": " in line else type_name
    start = (
        "uncaught C++ exception "
        if loaded == "before"
        else "aborted with a C++ exception in flight, "
    )
    thread = (
        "pt_nccl_watchdg" if where == "bare_thread" else main_thread(record)["name"]
    )
    said = record["message"]["message"]
    assert said == f"SIGABRT (Aborted): {start}{line}, thread '{thread}'"
    section = record["firstfault"]
    assert section["cpp_exception"] == {"type": type_name, "what": what}
    assert what in record["message"]["extraInfo"]["py_callstack"]
    assert "main" in functions(main_thread(record))


def test_torchs_own_exception_in_a_native_thread(directory: Path) -> None:
    """As NCCL's watchdog ends a rank."""
    ours = crash(
        directory,
        "bare_thread:throw_dist_backend_error",
        before=["torch_import"],
    )
    assert ours.status == -SIGABRT
    record = ours.record()
    said = record["message"]["message"]
    assert said == (
        "SIGABRT (Aborted): uncaught C++ exception c10::DistBackendError:"
        f" {WHAT}, thread 'pt_nccl_watchdg'"
    )
    stack = record["message"]["extraInfo"]["py_callstack"]
    assert stack.startswith(said)
    assert "frame #0: somewhere" in stack
    assert "in main" in stack
    assert crashed_thread(record)["name"] == "pt_nccl_watchdg"
    # Still printed, as without us.
    assert "terminate called after throwing an instance of 'c10::" in ours.stderr


def test_terminate_without_an_exception(directory: Path, tmp_path: Path) -> None:
    ours = both(directory, tmp_path, "terminate", before=["load_cpp"])
    said = ours.record()["message"]["message"]
    assert "): std::terminate was called without a C++ exception, thread" in said


def test_a_terminate_handler_of_the_programs_own(
    directory: Path, tmp_path: Path
) -> None:
    steps = ["set_terminate_abort", "throw_runtime_error"]
    ours = both(directory, tmp_path, *steps, before=["load_cpp"])
    section = ours.record()["firstfault"]
    assert section["cpp_exception"]["what"] == WHOLE


def test_a_terminate_handler_that_calls_ours(directory: Path) -> None:
    steps = ["set_terminate_chain", "activate_again", "throw_runtime_error"]
    ours = crash(directory, *steps, under="activate", before=["load_cpp"])
    assert ours.status == -SIGABRT
    said = ours.record()["message"]["message"]
    assert "uncaught C++ exception std::runtime_error" in said


# glibc's own words, and what it calls the fault.
GLIBC = {
    "libc:__assert_fail": "step: Assertion `loss < inf' failed.",
    "free_twice": "free(): double free detected in tcache 2",
    "libc:__stack_chk_fail": "*** stack smashing detected ***: terminated",
    "libc:__chk_fail": "*** buffer overflow detected ***: terminated",
}


@pytest.mark.parametrize("context", ["main", "python_thread"])
@pytest.mark.parametrize("name", GLIBC)
def test_glibcs_message(
    directory: Path, tmp_path: Path, name: str, context: str
) -> None:
    (tmp_path / "theirs").mkdir()
    theirs = crash(tmp_path / "theirs", name, under="nothing", context=context)
    ours = crash(directory, name, under="activate", context=context)
    assert ours.status == theirs.status == -SIGABRT
    assert ours.stderr == theirs.stderr
    record = ours.record()
    message = record["firstfault"]["abort_message"]
    assert message.endswith(GLIBC[name])
    assert f"): glibc: {message}, thread '" in record["message"]["message"]


def test_an_old_message_is_not_the_reason_of_another_signal(directory: Path) -> None:
    ours = crash(directory, "fork:libc:__assert_fail", "read_null")
    section = ours.record()["firstfault"]
    assert "abort_message" not in section
    assert "cpp_exception" not in section
    (child,) = set(ours.files) - {"error.json"}
    assert "Assertion" in ours.record(child)["firstfault"]["abort_message"]


def test_a_plain_abort_says_nothing_of_the_kind(directory: Path) -> None:
    ours = crash(directory, "c_abort", before=["load_cpp"])
    record = ours.record()
    assert "raised by the process itself" in record["message"]["message"]
    assert not {"abort_message", "cpp_exception"} & set(record["firstfault"])
