"""The native stacks of a crash, and what `firstfault show` makes of them."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from signal import SIGABRT, SIGILL, SIGSEGV
from typing import Any

import pytest

from conftest import PROGRAMS, clean_environment, read_record
from crashes import ROOT, Crashed, crash, crashed_thread, faults_library, missing
from test_crash_stages import stages

CHAIN = ["stack_inner", "stack_middle", "stack_outer"]


def show(path: Path, *options: str) -> str:
    """Return what `firstfault show` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "firstfault", "show", path, *options],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout


def symbolized(path: Path) -> dict[str, Any]:
    """Return a record as `firstfault show --json` prints it."""
    shown: dict[str, Any] = json.loads(show(path, "--json"))
    return shown


def symbols(thread: dict[str, Any]) -> list[str]:
    """Return the names of a thread's native functions, innermost first."""
    return [frame.get("symbol", "?") for frame in thread.get("native", [])]


def check(ours: Crashed, fault: str | None, status: int = -SIGSEGV) -> list[str]:
    """Check that the crashed thread went through the chain; returns its functions."""
    assert (ours.status, ours.files) == (status, ["error.json"])
    record = ours.record()
    assert set(stages(record).values()) <= {"ok", "skipped"}
    path = ours.directory / "error.json"
    found = symbols(crashed_thread(symbolized(path)))
    chain = [name for name in found if name in CHAIN]
    assert chain == CHAIN, found
    if fault:
        assert found.index(fault) < found.index("stack_inner")
    return found


@pytest.mark.parametrize("where", ["main", "python_thread"])
@pytest.mark.parametrize("fault", ["read_null", "c_abort", "illegal_instruction"])
def test_the_functions_are_there_in_order(
    directory: Path, fault: str, where: str
) -> None:
    ours = crash(directory, f"through:{fault}", context=where)
    status = {"read_null": -SIGSEGV, "c_abort": -SIGABRT}.get(fault, -SIGILL)
    found = check(ours, fault, status)
    # Through ctypes and the interpreter to where the thread began.
    assert any(name.startswith("_PyEval_Eval") for name in found), found
    if where == "main":
        assert found[-1] == "_start"


def test_a_call_through_a_null_pointer_keeps_its_stack(directory: Path) -> None:
    ours = crash(directory, "through:call_null")
    found = check(ours, "call_null")
    native = crashed_thread(ours.record())["native"]
    assert native[0] == {"address": "0x0"}
    assert found[:3] == ["?", "call_null", "stack_inner"]


def test_executing_data_keeps_its_stack(directory: Path) -> None:
    found = check(crash(directory, "through:execute_data"), "execute_data")
    assert found[1:3] == ["execute_data", "stack_inner"]


def test_a_native_thread(directory: Path) -> None:
    ours = crash(directory, "native_through:read_null")
    check(ours, "read_null")
    record = ours.record()
    thread, modules = crashed_thread(record), record["firstfault"]["modules"]
    assert thread["name"] == "native"
    # To the thread's own start, which is in the C library.
    assert Path(modules[thread["native"][-1]["module"]]["path"]).name == "libc.so.6"
    # What an unmodified torchrun shows of it: its own native stack, and main's Python.
    text = record["message"]["extraInfo"]["py_callstack"]
    library = faults_library().name
    own, _, rest = text.partition("\nThread '")
    assert own.count(f"\n  {library}+0x") >= 4
    assert "<no Python frame>" in own
    assert 'crash.py", line ' in rest
    assert "in native_through" in rest


def test_a_cpp_exception_in_a_native_thread(directory: Path) -> None:
    ours = crash(directory, "native_through:throw_cpp")
    check(ours, "throw_cpp", -SIGABRT)
    assert "what():  collective timed out" in ours.stderr


@pytest.mark.timeout(120)
def test_torchrun_shows_both_stacks(tmp_path: Path) -> None:
    """In its own summary, of an exception whose library came after activation."""
    library = faults_library()
    steps = ["torch_import", "native_through:throw_cpp"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1"),
            *(f"--log-dir={tmp_path / 'logs'}", PROGRAMS / "crash.py"),
            *(library, "firstfault", "main", "--", *steps),
        ],
        env=clean_environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 1
    _, _, summary = done.stderr.partition("Root Cause (first observed failure):")
    assert "exitcode  : -6" in summary
    said = "aborted with a C++ exception in flight, St13runtime_error"
    assert f"{said}: collective timed out, thread 'native'" in summary
    assert summary.count(f"  {library.name}+0x") >= 4
    for function in ("throw_cpp", *CHAIN):
        assert re.search(rf"  {library.name}\+0x[0-9a-f]+ \({function}\)\n", summary)
    assert re.search(r"  libstdc\+\+\.so\.6\S* \(__cxa_throw\)\n", summary)
    assert re.search(r'crash\.py", line \d+ in native_through', summary)


def test_offsets_are_those_of_the_calls(directory: Path) -> None:
    """A reader needs no rule: every offset lies inside its instruction."""
    ours = crash(directory, "through:read_null")
    record = ours.record()
    section = record["firstfault"]
    own, *callers = crashed_thread(record)["native"]
    for frame, back in [(own, 0), *((caller, 1) for caller in callers)]:
        module = section["modules"][frame["module"]]
        offset = int(frame["offset"], 16)
        assert int(module["base"], 16) + offset == int(frame["address"], 16) - back
    paths = [module["path"] for module in section["modules"]]
    assert len(set(paths)) == len(paths)
    # Only those that frames are in.
    used = {
        frame["module"]
        for thread in section["threads"]
        for frame in thread.get("native", [])
        if "module" in frame
    }
    assert used == set(range(len(paths)))
    files = [m for m in section["modules"] if m["path"].startswith("/")]
    assert all(re.fullmatch("[0-9a-f]{32,64}", m["build_id"]) for m in files)


@pytest.mark.parametrize("fault", ["lost_stack_pointer", "smashed_stack"])
def test_a_broken_stack_still_leaves_a_whole_file(directory: Path, fault: str) -> None:
    ours = crash(directory, "threads:3", f"through:{fault}")
    assert (ours.status, ours.files) == (-SIGILL, ["error.json"])
    record = ours.record()
    found = stages(record)
    # There is one frame or a few; what matters is that all others are as ever.
    found.pop("own_native_stack")
    assert set(found.values()) == {"ok"}
    thread = crashed_thread(symbolized(directory / "error.json"))
    assert symbols(thread)[0] == fault
    assert thread["python"]
    others = [t for t in record["firstfault"]["threads"] if not t["crashed"]]
    assert len(others) == 3
    assert all(len(t["native"]) > 5 for t in others)


def test_reading_memory_is_refused(directory: Path) -> None:
    """As by the seccomp filters of old container runtimes; /proc/self/mem serves."""
    check(crash(directory, "refuse_memory_reads", "through:read_null"), "read_null")


def test_fifty_threads(directory: Path) -> None:
    ours = crash(directory, "threads:50", "through:read_null")
    check(ours, "read_null")
    threads = ours.record()["firstfault"]["threads"]
    assert len(threads) == 51
    assert all(len(thread["native"]) > 5 for thread in threads)
    text = show(directory / "error.json")
    assert re.search(r"^THREAD '.*' \(\d+\) and 49 more with these stacks$", text, re.M)


def test_a_deep_stack_is_cut_and_counted(directory: Path) -> None:
    ours = crash(directory, "deep:1000:read_null")
    assert (ours.status, ours.files) == (-SIGSEGV, ["error.json"])
    record = ours.record()
    native = crashed_thread(record)["native"]
    assert len(native) == 256
    assert record["firstfault"]["truncated"]["native_stacks"] == 1
    text = record["message"]["extraInfo"]["py_callstack"]
    assert "\n  and 224 more\n" in text


def test_a_module_that_was_loaded_later(directory: Path, tmp_path: Path) -> None:
    """Its unwind tables are found at the time of the walk."""
    copy = tmp_path / "later.so"
    shutil.copy(faults_library(), copy)
    ours = crash(directory, f"load_and_call:{copy}:read_null")
    assert (ours.status, ours.files) == (-SIGSEGV, ["error.json"])
    found = symbols(crashed_thread(symbolized(directory / "error.json")))
    assert "read_null" in found
    assert found[-1] == "_start"


def test_a_signal_handler_above_the_crash(directory: Path) -> None:
    """Through the handler's frame to what the first signal interrupted."""
    found = check(crash(directory, "through:fault_in_handler"), "read_null")
    assert found.index("handler_that_faults") < found.index("fault_in_handler")


# Without the frames that gdb tells from debug information: of inlined functions, and of
# calls in last place.
GDB_SCRIPT = """
run
python
frame = gdb.newest_frame()
while frame:
    if frame.type() in (gdb.NORMAL_FRAME, gdb.SIGTRAMP_FRAME):
        print("frame", hex(frame.pc()))
    frame = frame.older()
end
kill
quit
"""


def test_gdb_finds_the_same_frames(directory: Path, tmp_path: Path) -> None:
    if not shutil.which("gdb"):
        missing("gdb")
    script = tmp_path / "script"
    script.write_text(GDB_SCRIPT)
    ours = crash(
        directory,
        "through:read_null",
        under="nothing",
        prefix=["gdb", "-batch", "-nx", "-x", str(script), "--args"],
    )
    # An address's place in its page is constant.
    theirs = re.findall(r"^frame 0x[0-9a-f]*([0-9a-f]{3})$", ours.stdout, re.M)
    if not theirs:
        missing("a gdb that can run a program")
    check(crash(directory, "through:read_null"), "read_null")
    thread = crashed_thread(read_record(directory / "error.json"))
    found = [frame["address"][-3:] for frame in thread["native"]]
    # The decorator's frames, which gdb's program has not, are in the middle.
    assert len(found) - len(theirs) in range(8), (found, theirs)
    assert found[:10] == theirs[:10]
    assert found[-6:] == theirs[-6:]


def of_copy(record: dict[str, Any], frame: dict[str, Any]) -> bool:
    """Return whether a frame is in the copied library."""
    modules = record["firstfault"]["modules"]
    path = modules[frame["module"]]["path"] if "module" in frame else ""
    return bool(path.endswith("/libcopied.so"))


def test_show_says_what_it_cannot_know(directory: Path, tmp_path: Path) -> None:
    """Without the module's own file there is what the record has: exported names."""
    copy = tmp_path / "libcopied.so"
    shutil.copy(faults_library(), copy)
    ours = crash(directory, "through:read_null", library=copy)
    check(ours, "read_null")
    path = directory / "error.json"
    raw = symbols(crashed_thread(ours.record()))
    copy.unlink()
    shown = symbolized(path)
    assert shown["firstfault"]["modules"] == ours.record()["firstfault"]["modules"]
    mine = [f for f in crashed_thread(shown)["native"] if of_copy(shown, f)]
    assert [f.get("symbol", "?") for f in mine] == raw[:5] == ["?", "read_null", *CHAIN]
    assert not any("line" in frame or "inlined" in frame for frame in mine)
    assert {"path": str(copy), "reason": "not on this machine"} in shown[
        "without_symbols"
    ]
    note = "no functions of libcopied.so but exported ones: not on this machine"
    assert note in show(path)
    shutil.copy(shutil.which("true") or "/bin/true", copy)
    shown = symbolized(path)
    mine = [f for f in crashed_thread(shown)["native"] if of_copy(shown, f)]
    assert not any("line" in frame for frame in mine)
    assert "another build on this machine" in json.dumps(shown["without_symbols"])


def test_show_quotes_the_program(directory: Path) -> None:
    crash(directory, "through:read_null")
    text = show(directory / "error.json")
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    lines = text.splitlines()
    assert lines[0].startswith("SIGSEGV (Segmentation fault): null pointer at 0x10")
    quoted = r"^    through \(crash\.py:\d+\)\n      released\.stack_outer\("
    assert re.search(quoted, text, re.M)
    assert re.search(r"^    stack_middle \(libfirstfault_faults\.so", text, re.M)


def test_show_gives_lines_and_names_as_in_the_source(directory: Path) -> None:
    """From debug information where the library has it, and from C++'s encoded names."""
    crash(directory, "native_through:throw_runtime_error", before=["load_cpp"])
    text = show(directory / "error.json")
    for name in CHAIN:
        quoted = rf"^    {name} \(libfirstfault_faults\.so, stacks\.rs:\d+\)$"
        assert re.search(quoted, text, re.M), text
    assert re.search(r"^    std::terminate\(\) \(libstdc\+\+\.so", text, re.M)
    assert "firstfault_faults::cpp::throw (libfirstfault_faults.so, cpp.rs:" in text
    assert "_ZSt9terminatev" not in text
    source = (ROOT / "tests/faults/src/stacks.rs").read_text().splitlines()
    frames = crashed_thread(symbolized(directory / "error.json"))["native"]
    inner = next(frame for frame in frames if frame.get("symbol") == "stack_inner")
    assert Path(inner["file"]).name == "stacks.rs"
    assert source[inner["line"] - 1] == "    fault();"


def test_show_of_a_python_failure(run: Any) -> None:
    ended = run(
        "import firstfault\n@firstfault.record\ndef main():\n"
        "    raise ValueError('loss is nan')\nmain()\n"
    )
    text = show(ended.directory / "error.json")
    assert text.startswith("ValueError: loss is nan\n")
    assert "\n    raise ValueError('loss is nan')\n" in text
    assert re.search(r"in\s+main$", text, re.M)


@pytest.mark.parametrize("path", ["/dev/null", "/", "/nonexistent", __file__])
def test_show_of_what_is_no_error_file(path: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "firstfault", "show", path],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"firstfault: {path}: ")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ten_thousand_walks_in_torch() -> None:
    """From random instructions of libtorch, none of which may fault."""
    torch = pytest.importorskip("torch")
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    environment = {**os.environ, "FIRSTFAULT_TEST_LIBRARY": str(library)}
    subprocess.run(
        ["cargo", "test", "--locked", "-p", "firstfault-unwind", "--test", "walks"],
        cwd=ROOT,
        env=environment,
        check=True,
        timeout=1200,
    )
