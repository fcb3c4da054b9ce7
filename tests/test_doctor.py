"""`firstfault doctor`: each probe against something that breaks what it probes."""

import importlib.resources
import json
import resource
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from signal import SIGRTMAX, SIGSEGV, SIGTRAP

import jsonschema
import pytest

from conftest import Run, clean_environment
from crashes import faults_library, missing
from mounts import served
from seccomp import refuse

Probe = Mapping[str, str]


def run_doctor(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    program: str | None = None,
    prefix: Sequence[str] = (),
    limits: Callable[[], None] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the doctor; `program` is Python that runs before its main function."""
    start = "from firstfault.__main__ import main; sys.exit(main())"
    how = ["-c", f"import sys; {program}; {start}"] if program else ["-m", "firstfault"]
    return subprocess.run(
        [*prefix, sys.executable, *how, "doctor", *arguments],
        env=clean_environment(**(env or {})),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limits,
        cwd=cwd,
        timeout=60,
    )


def doctor(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    program: str | None = None,
    prefix: Sequence[str] = (),
    limits: Callable[[], None] | None = None,
    cwd: Path | None = None,
) -> dict[str, Probe]:
    """Return what the doctor found, by the names of its probes."""
    done = run_doctor(
        "--json",
        *arguments,
        env=env,
        program=program,
        prefix=prefix,
        limits=limits,
        cwd=cwd,
    )
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    schema = importlib.resources.files("firstfault") / "schema" / "doctor.json"
    jsonschema.validate(found, json.loads(schema.read_text()))
    probes = {probe["name"]: probe for probe in found["probes"]}
    assert len(probes) == len(found["probes"])
    statuses = {probe["status"] for probe in probes.values()}
    assert done.returncode == ("problem" in statuses)
    assert found["status"] == max(statuses, key=["ok", "note", "problem"].index)
    for probe in probes.values():
        assert ("advice" in probe) == (probe["status"] != "ok")
    return probes


def within(setup: str) -> list[str]:
    """Return the start of a command that has a mount namespace, so prepared."""
    prefix = ["unshare", "--mount", "sh", "-ec", f'{setup}\nexec "$@"', "sh"]
    tried = subprocess.run([*prefix, "true"], capture_output=True, check=False)
    if tried.returncode:
        missing(f"a mount namespace: {tried.stderr.decode()}")
    return prefix


def limited(what: int, soft: int) -> Callable[[], None]:
    """Return a function that lowers a limit of its process."""

    def lower() -> None:
        resource.setrlimit(what, (soft, resource.getrlimit(what)[1]))

    return lower


def module(directory: Path, source: str) -> tuple[str, ...]:
    """Return the arguments that let the doctor import a module with this source."""
    (directory / "their_library.py").write_text(source)
    return "--import", "their_library"


def test_where_all_is_well(directory: Path) -> None:
    env = {"TORCHELASTIC_ERROR_FILE": str(directory / "error.json")}
    env["FIRSTFAULT_DIR"] = str(directory / "archive")
    probes = doctor(env=env)
    # Of the machine that runs the tests nothing is known.
    machine = {"clock", "core dumps", "open files", "stack", "/dev/shm", "ptrace"}
    unwell = {name for name, probe in probes.items() if probe["status"] != "ok"}
    assert unwell <= machine
    assert probes["capture"]["found"] == "in force"
    assert probes["error file"]["found"].startswith(f"{directory}/error.json: ")
    assert probes["SIGSEGV"]["found"] == "firstfault, then faulthandler"
    assert probes["SIGTRAP"]["found"] == "firstfault, then the default"
    assert [path for path in directory.rglob("*") if path.is_file()] == []


def test_the_text_is_readable(directory: Path) -> None:
    env = {"TORCHELASTIC_ERROR_FILE": str(directory / "error.json")}
    done = run_doctor(env=env, limits=limited(resource.RLIMIT_NOFILE, 100))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    at = next(i for i, line in enumerate(lines) if line.startswith("note     open fi"))
    assert "of at most 100" in lines[at]
    assert (
        lines[at + 1].strip() == "-> data loaders and stores need many: ulimit -n 65536"
    )
    assert lines[-1].startswith("no problems, ")


def test_nothing_is_said_of_where_records_go() -> None:
    probes = doctor()
    for name in ("error file", "archive"):
        assert probes[name]["status"] == "note"
        assert probes[name]["found"].endswith("is not set")
    assert probes["black box"]["status"] == "note"
    probes = doctor(env={"TORCHELASTIC_ERROR_FILE": "/dev/null"})
    assert "is /dev/null: no file" in probes["error file"]["found"]


def test_switched_off() -> None:
    probes = doctor(env={"FIRSTFAULT_DISABLE": "1"})
    assert probes["capture"]["status"] == "problem"
    assert "FIRSTFAULT_DISABLE" in probes["capture"]["found"]


# Options of a file system, and what stands in the way there.
PLACES = {
    "full": ("size=256k", "No space left on device"),
    "read_only": ("ro", "Read-only file system"),
}


@pytest.mark.parametrize("name", PLACES)
def test_the_place_cannot_be_written(directory: Path, name: str) -> None:
    options, reason = PLACES[name]
    where = shlex.quote(str(directory))
    prefix = within(f"mount -t tmpfs -o {options} tmpfs {where}")
    env = {"TORCHELASTIC_ERROR_FILE": str(directory / "error.json")}
    probe = doctor(env=env, prefix=prefix)["error file"]
    assert probe["status"] == "problem"
    assert f"tmpfs: {reason}" in probe["found"]


def test_the_place_is_not_there(directory: Path) -> None:
    env = {"TORCHELASTIC_ERROR_FILE": str(directory / "gone" / "error.json")}
    probe = doctor(env=env)["error file"]
    assert probe["status"] == "problem"
    assert "No such file or directory" in probe["found"]
    (directory / "file").touch()
    probes = doctor(env={"FIRSTFAULT_DIR": str(directory / "file" / "x")})
    assert probes["archive"]["status"] == probes["capture"]["status"] == "problem"
    assert str(directory / "file") in probes["capture"]["found"]


def test_the_place_is_a_mount_point(directory: Path) -> None:
    log = directory / "termination log"
    log.touch()
    where = shlex.quote(str(log))
    prefix = within(f"mount --bind {where} {where}")
    probe = doctor(env={"TORCHELASTIC_ERROR_FILE": str(log)}, prefix=prefix)
    assert probe["error file"]["status"] == "note"
    assert "written in place" in probe["error file"]["found"]
    assert log.read_bytes() == b""


def test_the_place_has_little_room(directory: Path) -> None:
    where = shlex.quote(str(directory))
    prefix = within(f"mount -t tmpfs -o size=8m tmpfs {where}")
    env = {"TORCHELASTIC_ERROR_FILE": str(directory / "error.json")}
    probe = doctor(env=env, prefix=prefix)["error file"]
    assert (probe["status"], probe["found"]) == (
        "note",
        f"{directory}/error.json: tmpfs, 7 MiB free",
    )
    assert "make room" in probe["advice"]


def test_the_place_is_on_the_network(directory: Path) -> None:
    where = shlex.quote(str(directory))
    prefix = within(f"""
        DIRECTORY={where}
        {served().script}
        "$@" && status=0 || status=$?
        kill -KILL $FILE_SERVER
        exit $status
    """)
    env = {"TORCHELASTIC_ERROR_FILE": str(directory / "error.json")}
    probes = doctor(env=env, prefix=prefix)
    assert probes["error file"]["status"] == "note"
    assert probes["error file"]["found"].endswith(" MiB free, over a network")
    assert "a network file system; it is /dev/shm/" in probes["black box"]["found"]


def test_memory_cannot_be_read_in_any_way() -> None:
    prefix = within("mount -t tmpfs tmpfs /proc")
    probe = doctor(prefix=prefix, limits=refuse("process_vm_readv"))["reading memory"]
    assert probe["status"] == "problem"
    assert probe["found"] == "process_vm_readv(2) and /proc/self/mem are refused"


# A system call, the probe that needs it, what that says, and how bad it is.
CALLS = {
    "memfd_create": ("memory file", "fails", "problem"),
    "process_vm_readv": ("reading memory", "/proc/self/mem serves", "note"),
    "linkat": ("error file", "by a named temporary file", "note"),
    "timer_create": ("watchdog", "fails", "note"),
    "adjtimex": ("clock", "is refused", "note"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_system_call_is_refused(directory: Path, call: str) -> None:
    name, found, status = CALLS[call]
    env = {"TORCHELASTIC_ERROR_FILE": str(directory / "error.json")}
    probes = doctor(env=env, limits=refuse(call))
    assert probes["seccomp"]["found"].startswith("a filter is in force")
    assert probes[name]["status"] == status
    assert found in probes[name]["found"]
    # Without a file for the dumper there is no dumper either.
    assert (probes["Python stacks"]["status"] == "ok") == (call != "memfd_create")


def test_without_proc() -> None:
    probes = doctor(prefix=within("mount -t tmpfs tmpfs /proc"))
    assert probes["memory map"]["status"] == "problem"
    assert probes["seccomp"]["status"] == "note"


def test_a_library_puts_its_handler_above(tmp_path: Path) -> None:
    library = faults_library()
    source = f"import ctypes; ctypes.CDLL({str(library)!r}).install(0, {SIGSEGV:d})"
    source += "; print('loaded')"
    done = run_doctor("--json", *module(tmp_path, source), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "loaded\n")
    probes = doctor(*module(tmp_path, source), cwd=tmp_path)
    assert probes["SIGSEGV"]["status"] == "problem"
    assert library.name in probes["SIGSEGV"]["found"]
    assert "above firstfault" in probes["SIGSEGV"]["found"]
    assert probes["SIGBUS"]["status"] == "ok"


def test_an_unknown_handler_is_below() -> None:
    library = faults_library()
    program = f"import ctypes; ctypes.CDLL({str(library)!r}).install(0, {SIGTRAP:d})"
    probe = doctor(program=program)["SIGTRAP"]
    assert probe["status"] == "note"
    assert probe["found"].startswith("firstfault, then ")
    assert library.name in probe["found"]


def test_a_library_removes_our_handler(tmp_path: Path) -> None:
    source = f"import signal; signal.signal({SIGTRAP:d}, signal.SIG_DFL)"
    probe = doctor(*module(tmp_path, source), cwd=tmp_path)["SIGTRAP"]
    assert probe["status"] == "problem"
    assert "has removed firstfault's handler" in probe["found"]


def test_a_signal_is_ignored_and_another_handled_in_python() -> None:
    ignored = f"signal.signal({SIGTRAP:d}, signal.SIG_IGN)"
    handled = "signal.signal(signal.SIGTERM, lambda *_: None)"
    probes = doctor(program=f"import signal; {ignored}; {handled}")
    assert probes["SIGTRAP"]["status"] == "note"
    assert "ignored" in probes["SIGTRAP"]["found"]
    assert "a handler in Python" in probes["SIGTERM"]["found"]


ALTERNATE_STACK = """
import ctypes

class Stack(ctypes.Structure):
    _fields_ = [
        ("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)
    ]

room = ctypes.create_string_buffer(32 * 1024)
stack = Stack(ctypes.addressof(room), FLAGS, len(room))
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None) == 0
"""


@pytest.mark.parametrize(("flags", "status"), [(2, "problem"), (0, "note")])
def test_a_library_takes_the_alternate_stack(
    tmp_path: Path, flags: int, status: str
) -> None:
    source = ALTERNATE_STACK.replace("FLAGS", str(flags))
    probe = doctor(*module(tmp_path, source), cwd=tmp_path)["alternate stack"]
    assert probe["status"] == status


def test_the_dumper_is_hidden() -> None:
    hide = "import faulthandler; faulthandler.register = lambda *_, **__: None"
    probes = doctor(program=hide)
    assert probes["Python stacks"]["status"] == "problem"
    assert probes["capture"]["status"] == "ok"
    # What it costs is the dumper alone.
    probes = doctor(program="import faulthandler; faulthandler.register = None")
    assert probes["Python stacks"]["status"] == "problem"
    assert probes["SIGSEGV"]["found"] == "firstfault, then faulthandler"


def test_real_time_signals_are_taken(tmp_path: Path) -> None:
    take = "import signal; take = lambda n: signal.signal(n, lambda *_: None)"
    source = f"{take}; take({SIGRTMAX - 1})"
    probe = doctor(*module(tmp_path, source), cwd=tmp_path)["own signals"]
    assert probe["status"] == "note"
    assert f"{SIGRTMAX - 1} is used by a handler in Python" in probe["found"]
    everything = "list(map(take, range(signal.SIGRTMIN, signal.SIGRTMAX + 1)))"
    probe = doctor(program=f"{take}; {everything}")["capture"]
    assert probe["status"] == "problem"
    assert probe["found"] == "no real-time signal is free"


# A limit, what it is lowered to, and what is said then.
LIMITS = {
    "core": (resource.RLIMIT_CORE, 0, "core dumps", "none: the "),
    "files": (resource.RLIMIT_NOFILE, 100, "open files", "of at most 100"),
    "stack": (resource.RLIMIT_STACK, 512 * 1024, "stack", "at most 512 KiB"),
    "no_stack": (resource.RLIMIT_STACK, resource.RLIM_INFINITY, "stack", "unlimited"),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_is_low(name: str) -> None:
    what, soft, probe, found = LIMITS[name]
    patterned = Path("/proc/sys/kernel/core_pattern").read_text()
    if name == "core" and patterned.startswith("|"):
        pytest.skip("core dumps are handed to a program, whatever their limit")
    hard = resource.getrlimit(what)[1]
    if hard not in (resource.RLIM_INFINITY, -1) and soft > hard:
        pytest.skip("the hard limit is lower")
    probes = doctor(limits=limited(what, soft))
    assert probes[probe]["status"] == "note"
    assert found in probes[probe]["found"]


# What the kernel is told of core dumps, with their limit above 0, and what is said.
PATTERNS = {
    "|/usr/lib/collector %p": ("ok", "handed to /usr/lib/collector"),
    "/cores/%p": ("note", "cut at 5 MiB"),
    "": ("note", "kernel.core_pattern is empty"),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_core_dumps(tmp_path: Path, pattern: str) -> None:
    status, found = PATTERNS[pattern]
    (tmp_path / "pattern").write_text(f"{pattern}\n")
    where = shlex.quote(str(tmp_path / "pattern"))
    prefix = within(f"mount --bind {where} /proc/sys/kernel/core_pattern")
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("the hard limit is 0")
    limits = limited(resource.RLIMIT_CORE, 5 << 20)
    probe = doctor(prefix=prefix, limits=limits)["core dumps"]
    assert probe["status"] == status
    assert found in probe["found"]


# Options of /dev/shm, and what is said.
SHARED = {
    "size=64m": "64 MiB, 64 MiB free",
    "size=128m": "128 MiB, 48 MiB free",
    "ro": "read-only",
}


@pytest.mark.parametrize("options", SHARED)
def test_shared_memory(options: str) -> None:
    setup = f"mount -t tmpfs -o {options} tmpfs /dev/shm"
    if options == "size=128m":
        setup += "\nfallocate -l 80m /dev/shm/left"
    probe = doctor(prefix=within(setup))["/dev/shm"]
    assert (probe["status"], probe["found"]) == ("note", SHARED[options])


def test_who_may_attach(tmp_path: Path) -> None:
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if not scope.exists():
        pytest.skip("this kernel has no Yama")
    (tmp_path / "scope").write_text("1\n")
    prefix = within(f"mount --bind {shlex.quote(str(tmp_path / 'scope'))} {scope}")
    probe = doctor(prefix=prefix)["ptrace"]
    assert (probe["status"], probe["found"]) == (
        "note",
        "only a parent may attach (Yama)",
    )


def test_a_module_that_cannot_be_imported(tmp_path: Path) -> None:
    arguments = module(tmp_path, "raise RuntimeError('no licence')")
    done = run_doctor(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "RuntimeError: no licence" in done.stderr
    assert done.stderr.endswith("firstfault: cannot import their_library: no licence\n")


LIVE = """
import firstfault

@firstfault.record
def main():
    print(firstfault.doctor())

print(firstfault.doctor())
main()
"""


def test_a_running_job_looks_at_itself(run: Run) -> None:
    ended = run(LIVE)
    assert (ended.status, ended.stderr, ended.files) == (0, "", [])
    before, during = ended.stdout.split("\n\n\n")[0], ended.stdout
    assert before.startswith("problem  capture          not in force")
    assert "\nok       capture          in force\n" in during
    # A long path is broken where a line ends.
    assert f"{ended.directory}/error.json" in "".join(during.split())
