"""Each fault in each context: the process ends as without us, and leaves one record."""

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from signal import Signals
from typing import Any

import pytest

from capture_faults import FAULTS, PARENT_KILLS
from capture_matrix import BESIDE, CHILD, CONTEXTS, OWN, SPARED, Context, Row, rows
from conftest import SPARE_PLACE, read_record, spared
from cores import Core, read_core
from crashes import (
    ROOT,
    Crashed,
    allow_cores,
    comparable,
    crash,
    crashed_thread,
    functions,
    missing,
)

TABLE = ROOT / "docs" / "capture-matrix.md"
PR_SET_CHILD_SUBREAPER = 36
SI_KERNEL = 128

HEAD = """# What a crash leaves, fault by fault and context by context

`make test-all` runs each row, with firstfault and without, and writes this table. In
every row both runs end with the same status and say the same, but for the decorator's
own frame, for stack overflows, which a thread without an alternate signal stack cannot
tell of, and for the notices of a directory that takes nothing. There is at most one
record; it fits the schema and names the signal and the functions that the thread was
in. But for it, the black box and an older file that was in its place nothing is left,
no child either. A record in the spare place is in /dev/shm, and a notice says where.
"The same" core dumps have the same program counter, `si_code` and `si_addr`, but for
addresses of the moment and for the instruction at which a stack was used up; it is the
same signal alone where only firstfault's handler had a stack left to run on.

| context | fault | the process ended | core dump | signal in the record | record |
| --- | --- | --- | --- | --- | --- |
"""

Around = Callable[[Path], dict[str, Any]]
results: dict[tuple[str, str], str] = {}


@pytest.fixture(scope="module", autouse=True)
def _orphans_come_to_us() -> Iterator[None]:
    """Let any child that a dying process leaves become one of this process."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture(scope="module", autouse=True)
def _write_table() -> Iterator[None]:
    """Write the table of results, if all of the matrix was run."""
    yield
    every = [(row.context, row.fault) for row in rows()]
    if set(results) == set(every):
        TABLE.parent.mkdir(exist_ok=True)
        TABLE.write_text(table(every))


@pytest.fixture
def around() -> Iterator[Callable[[Context], tuple[Path, dict[str, Any]]]]:
    """Prepare the surroundings of a context, in a short path that others may enter."""
    made = []

    def around(context: Context) -> tuple[Path, dict[str, Any]]:
        where = Path("/dev/shm") if context.around == "tmpfs" else None
        base = Path(tempfile.mkdtemp(prefix="matrix-", dir=where))
        made.append(base)
        (base / "errors").mkdir()
        prepare = getattr(Surroundings, context.around, None)
        return base, prepare(base) if prepare else {}

    yield around
    for base in made:
        shutil.rmtree(base)


def in_namespaces(script: str, *options: str) -> dict[str, Any]:
    """Return what runs a program in namespaces of its own, after a script.

    They have a /dev/shm of their own. What is in it and in the directory of error files
    is copied before it goes.
    """
    unshare = ("unshare", "-m", *options)
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        missing("private namespaces")
    script = f"""
        mount -t tmpfs none /dev/shm
        {script}
        status=0; "$@" & wait $! || status=$?
        mkdir kept; cp -a errors/. /dev/shm/. kept
        exit $status
    """
    return {"prefix": [*unshare, "sh", "-ec", script, "sh"]}


class Surroundings:
    """What is the matter with the place where the process runs."""

    @staticmethod
    def relative(base: Path) -> dict[str, Any]:
        (base / "elsewhere").mkdir()
        return {"env": {"TORCHELASTIC_ERROR_FILE": "errors/error.json"}}

    @staticmethod
    def empty_file(base: Path) -> dict[str, Any]:
        (base / "errors" / "error.json").touch()
        return {}

    @staticmethod
    def old_file(base: Path) -> dict[str, Any]:
        path = base / "errors" / "error.json"
        path.write_text("of an earlier run")
        os.utime(path, (1_000_000, 1_000_000))
        return {}

    @staticmethod
    def open_directory(base: Path) -> dict[str, Any]:
        if os.getuid():
            missing("the rights of root")
        base.chmod(0o777)
        (base / "errors").chmod(0o777)
        return {}

    @staticmethod
    def process_namespace(base: Path) -> dict[str, Any]:
        prefix = ("unshare", "--pid", "--fork", "--mount-proc")
        done = subprocess.run([*prefix, "true"], capture_output=True, check=False)
        if done.returncode:
            missing("PID namespaces")
        return {"prefix": prefix}

    @staticmethod
    def no_shared_memory(base: Path) -> dict[str, Any]:
        return in_namespaces("mount -t tmpfs -o ro none /dev/shm")

    @staticmethod
    def no_proc(base: Path) -> dict[str, Any]:
        return in_namespaces("mount -t tmpfs none /proc")

    @staticmethod
    def full_disk(base: Path) -> dict[str, Any]:
        fill = "head -c 16384 /dev/zero > errors/filler || true"
        return in_namespaces(f"mount -t tmpfs -o size=16k none errors\n{fill}")

    @staticmethod
    def read_only(base: Path) -> dict[str, Any]:
        return in_namespaces("mount --bind -o ro errors errors")

    @staticmethod
    def switched_off(base: Path) -> dict[str, Any]:
        return {"env": {"FIRSTFAULT_DISABLE": "1"}}


@dataclass(frozen=True)
class Ran:
    """How a row ended, with or without us."""

    ended: Crashed
    core: Core | None
    files: list[str]


def children() -> set[int]:
    """Return the children of this process, also dead ones that nobody waited for."""
    while True:
        lists = Path("/proc/self/task").glob("*/children")
        try:
            return {int(pid) for each in lists for pid in each.read_text().split()}
        except (FileNotFoundError, ProcessLookupError):
            continue  # A thread has ended meanwhile; its children are another's now.


def execute(row: Row, under: str, around: Any, dumps: bool) -> Ran:
    """Run one row and look at what is there afterwards."""
    context, details = CONTEXTS[row.context], FAULTS[row.fault]
    base, options = around(context)
    if details.step == PARENT_KILLS:
        options["while_ready"] = lambda pid: os.kill(pid, details.signal)
    steps = [*context.steps, *filter(None, [details.step])]
    spare = spared()
    before = children()  # Other tests keep the server that forks their ranks.
    ended = crash(
        base / "errors",
        *steps,
        under=under,
        context=context.place,
        before=[*details.before, *context.before],
        program="contexts.py",
        cwd=base,
        limits=allow_cores if dumps else None,
        **options,
    )
    extra = children() - before
    assert not extra, "children, running or dead, that a parent would not expect"
    # Others may run on this machine; in a PID namespace of its own it is process 1.
    pid = 1 if context.around == "process_namespace" else ended.pid
    spare = {name for name in spared() - spare if f".{pid}." in name}
    assert not spare, f"left in {SPARE_PLACE}"
    kept = base / "kept"
    directory = kept if kept.exists() else base / "errors"
    files = sorted(path.name for path in directory.iterdir())
    # A core may not come to its end, by umask(2) or a limit.
    whole = [path for path in base.glob("**/core*") if path.stat().st_size > 4096]
    cores = [read_core(path) for path in whole]
    assert len(cores) <= 1
    stderr = ended.stderr.replace(str(base), "…")
    ended = replace(ended, stderr=stderr, directory=directory)
    return Ran(ended, cores[0] if cores else None, files)


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            row,
            marks=() if row.is_quick else pytest.mark.slow,
            id=f"{row.context}-{row.fault}",
        )
        for row in rows()
    ],
)
def test_row(row: Row, around: Any, pytestconfig: pytest.Config) -> None:
    key = row.context, row.fault
    results[key] = "FAILED"
    is_full = "not slow" not in pytestconfig.getoption("markexpr")
    try:
        results[key] = check(row, around, row.has_core and is_full)
    except pytest.skip.Exception as e:
        results[key] = f"not run: {e}"
        raise


def check(row: Row, around: Any, dumps: bool) -> str:
    """Compare a row with the run without us; returns what to say of it."""
    context, details = CONTEXTS[row.context], FAULTS[row.fault]
    without, under = context.under
    theirs, ours = (execute(row, each, around, dumps) for each in (without, under))
    assert ours.ended.status == theirs.ended.status, ours.ended.stderr
    assert ours.ended.stdout == theirs.ended.stdout
    said, notices = apart(ours.ended.stderr)
    assert bool(notices) == (context.record == SPARED), notices
    wanted, found = comparable(theirs.ended.stderr), comparable(said)
    if not context.exact:
        start = wanted[:2]
        assert found[: len(start)] == start
    elif details.reason.startswith("stack overflow"):
        # Without us the thread may have no stack left for saying what happened.
        assert [line for line in found if line in wanted] == wanted
    else:
        assert found == wanted
    cores = compared(ours.core, theirs.core, details.reason, context.exact)
    end = f"{ended(ours.ended.status)} | {cores}"
    why = context.without.get(row.fault) or context.without.get("*")
    left = [name for name in ours.files if name not in theirs.files]
    if why:
        assert [name for name in left if not name.endswith(".box")] == []
        return f"{end} | | none: {why}"
    name = record_name(context, ours, left)
    if context.record == SPARED:
        assert f"record is in {SPARE_PLACE / name}: " in notices[-1]
    record = read_record(ours.ended.directory / name)
    section = record["firstfault"]
    assert (section["kind"], section["final"]) == ("signal", True)
    own = f".{section['process']['pid']}."
    assert all(own in each for each in left if each != name)
    details, why = context.instead.get(row.fault, (details, ""))
    assert section["signal"]["name"] == details.signal.name
    assert section["signal"]["code"].startswith(details.code)
    assert details.reason in record["message"]["message"]
    found = functions(crashed_thread(record))
    wanted = context.stack if details.stack is None else details.stack
    assert in_order(wanted, found), found
    told = f"{section['signal']['name']}, {section['signal']['code']}"
    return f"{end} | {told} | {context.record}{why and f': {why}'}"


def apart(stderr: str) -> tuple[str, list[str]]:
    """Return what the program said, and what we said of a target that takes nothing."""
    ours = re.compile(
        r"^firstfault: .*\n"
        r"|^.*UserWarning: Unable to prepare for crashes.*\n(?:  .*\n)?",
        re.MULTILINE,
    )
    return ours.sub("", stderr), ours.findall(stderr)


def record_name(context: Context, ours: Ran, left: list[str]) -> str:
    """Return the name of the one record that a run has left, and nothing else."""
    name = {
        OWN: r"error\.json",
        BESIDE: r"error\.\d+\.json",
        CHILD: r"error\.\d+\.child_\d+\.json",
        SPARED: r"firstfault\.\d+\.\d+\.\d+\.json",
    }[context.record]
    present = [each for each in ours.files if re.fullmatch(name, each)]
    assert len(present) == 1, ours.files
    litter = [each for each in left if each != present[0]]
    kept = [each for each in litter if each.endswith(".replaced.json")]
    assert len(kept) == context.keeps
    # A child has none, and its parent's is gone with it.
    boxes = [each for each in litter if each.endswith(".box")]
    assert len(boxes) == (context.record != CHILD)
    assert len(litter) == len(boxes) + len(kept), litter
    return present[0]


def compared(ours: Core | None, theirs: Core | None, reason: str, exact: bool) -> str:
    """Compare two core dumps; an address of the moment is another in each run.

    Returns what to say of them.
    """
    assert (ours is None) == (theirs is None)
    if ours is None or theirs is None:
        return ""
    assert ours.signal == theirs.signal
    is_overflow = reason.startswith("stack overflow")
    if is_overflow and (theirs.code == SI_KERNEL or not exact):
        # Without us the kernel found no stack for the handler that was there, or
        # that handler used up one without a guard.
        return "the same signal"
    assert ours.code == theirs.code
    # A used-up stack ends at any instruction that pushes something.
    if not is_overflow:
        assert ours.program_counter == theirs.program_counter
    if not reason.endswith("0x") and reason != "no memory behind the address":
        assert ours.address == theirs.address
    return "the same"


def in_order(wanted: Sequence[str], found: Sequence[str]) -> bool:
    """Return whether all that is wanted is found in this order."""
    rest = iter(found)
    return all(name in rest for name in wanted)


def ended(status: int) -> str:
    """Return an exit status in words."""
    return f"by {Signals(-status).name}" if status < 0 else f"with {status}"


def table(every: Sequence[tuple[str, str]]) -> str:
    """Return the table of results."""
    lines = [f"| {' | '.join(key)} | {results[key]} |" for key in sorted(every)]
    return HEAD + "".join(f"{line}\n" for line in lines)
