"""Until the first record is there, the handler calls no allocator, lock or loader."""

import re
from pathlib import Path
from signal import SIGABRT, SIGFPE, SIGSEGV, Signals

import pytest

from crashes import built_library, crash

FOUND = 97
FORBIDDEN = [
    *("malloc", "calloc", "realloc", "free"),
    *("pthread_mutex_lock", "dlopen", "dlsym", "dl_iterate_phdr"),
]


def watching(module: str) -> dict[str, str | None]:
    """Return an environment in which the handlers of a module are watched."""
    library = str(built_library("firstfault-detector"))
    return {"LD_PRELOAD": library, "DETECTOR_WATCHES": module}


# Step, signal, and where it happens.
FAULTS = {
    "fault": ("read_null", SIGSEGV, "main"),
    "fault with the GIL held": ("held.read_null", SIGSEGV, "main"),
    "abort": ("c_abort", SIGABRT, "main"),
    "overflow": ("overflow", SIGSEGV, "main"),
    "sent": (f"kill:{SIGFPE:d}", SIGFPE, "main"),
    "inside malloc": ("fault_in_malloc", SIGSEGV, "main"),
    "exception": ("throw_runtime_error", SIGABRT, "native_thread"),
    "native thread": ("read_null", SIGSEGV, "native_thread"),
    "Python thread": ("read_null", SIGSEGV, "python_thread"),
    "child": ("read_null", SIGSEGV, "forked_child"),
}


@pytest.mark.parametrize("under", ["activate", "firstfault"])
@pytest.mark.parametrize("name", FAULTS)
def test_nothing_forbidden_before_the_first_record(
    directory: Path, name: str, under: str
) -> None:
    step, number, place = FAULTS[name]
    ours = crash(
        directory,
        *("threads:3", step),
        under=under,
        context=place,
        before=["load_cpp"],
        program="contexts.py",
        env=watching("firstfault/_native"),
    )
    assert "before the first record" not in ours.stderr
    in_child = place == "forked_child"
    assert ours.status == (0 if in_child else -number)
    assert in_child == (f"child {-number}" in ours.stderr)
    (file,) = ours.files
    assert ours.record(file)["firstfault"]["signal"]["name"] == Signals(number).name
    print(
        "after the first record:", re.findall("after the .* record: (.*)", ours.stderr)
    )


@pytest.mark.parametrize("name", FORBIDDEN)
def test_the_detector_finds_each_call(directory: Path, name: str) -> None:
    ours = crash(
        directory,
        f"call_{name}",
        context="handler_on_alternate_stack",
        program="contexts.py",
        under="nothing",
        env=watching("firstfault_faults"),
    )
    assert ours.status == FOUND, ours.stderr
    assert ours.stderr == f"before the first record: {name}\n"


def test_the_detector_sees_the_first_record(directory: Path) -> None:
    """The handler of a program is called behind it, and may do what it likes."""
    before = [f"install:7:{SIGSEGV:d}"]
    ours = crash(
        directory,
        "read_null",
        under="activate",
        before=before,
        env=watching("firstfault/_native"),
    )
    assert "after the first record: " in ours.stderr
