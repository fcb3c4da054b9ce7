"""Until the first record is there, the handler calls no allocator, lock or loader."""

import re
from pathlib import Path
from signal import SIGABRT, SIGFPE, SIGSEGV, SIGTERM, Signals

import pytest

from crashes import built_library, crash

FOUND = 97
FORBIDDEN = [
    *("malloc", "calloc", "realloc", "free"),
    *("posix_memalign", "aligned_alloc", "memalign"),
    *("pthread_mutex_lock", "pthread_mutex_trylock", "pthread_spin_lock"),
    *("pthread_rwlock_rdlock", "pthread_rwlock_wrlock", "pthread_once"),
    *("pthread_cond_wait", "pthread_cond_signal", "pthread_cond_broadcast"),
    *("dlopen", "dlclose", "dlsym", "dlerror", "dladdr", "dl_iterate_phdr"),
]


def watching(module: str, directory: Path) -> dict[str, str | None]:
    """Return an environment in which the handlers of a module are watched."""
    return {
        "LD_PRELOAD": str(built_library("firstfault-detector")),
        "DETECTOR_WATCHES": module,
        "DETECTOR_LOOKS_IN": str(directory),
    }


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
    "request to end": (f"kill:{SIGTERM:d}", SIGTERM, "main"),
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
        env=watching("firstfault/_native", directory),
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
        env=watching("firstfault_faults", directory),
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
        env=watching("firstfault/_native", directory),
    )
    assert "after the first record: " in ours.stderr
