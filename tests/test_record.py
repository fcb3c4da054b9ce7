"""The decorator: what it keeps, whom it calls, what it does without a target."""

import functools
import inspect
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import firstfault
from conftest import Run, read_record
from firstfault import record
from firstfault._wrapping import wraps


class TestTheWrapper:
    def test_is_like_the_function(self) -> None:
        def main(a: int, *, b: str = "b") -> float:
            """Do it."""
            return a + len(b)

        wrapped = record(main)
        assert wrapped.__wrapped__ is main  # type: ignore[attr-defined]
        assert inspect.signature(wrapped) == inspect.signature(main)
        for name in ("__name__", "__qualname__", "__doc__", "__module__"):
            assert getattr(wrapped, name) == getattr(main, name)
        assert wrapped.__annotations__ == main.__annotations__

    @pytest.mark.parametrize(
        "fn", [functools.partial(max, 1), abs, Path, str.upper, read_record, Path()]
    )
    def test_is_as_functools_would_make_it(self, fn: Any) -> None:
        ours, theirs = wraps(fn)(lambda: None), functools.wraps(fn)(lambda: None)
        assert vars(ours) == vars(theirs)
        for name in functools.WRAPPER_ASSIGNMENTS:
            if hasattr(fn, name):
                assert getattr(ours, name) == getattr(theirs, name) == getattr(fn, name)

    @pytest.mark.parametrize(
        "kind", ["partial", "object", "method", "builtin", "class"]
    )
    def test_wraps_any_callable(self, kind: str, run: Run) -> None:
        ended = run(
            """
import functools, sys
from firstfault import record, ErrorHandler

class Handler(ErrorHandler):
    def record_success(self):
        print(self._fn_name)

class Callable:
    def __call__(self, x):
        return x + 1
    def method(self, x):
        return x + 2

fn = {
    "partial": functools.partial(lambda x, y: x + y, 2),
    "object": Callable(),
    "method": Callable().method,
    "builtin": abs,
    "class": int,
}[sys.argv[1]]
print(record(fn, Handler())(1), record(fn, error_handler=Handler())(1))
""",
            kind,
        )
        name = {"method": "Callable.method", "builtin": "abs", "class": "int"}.get(kind)
        value = {"partial": 3, "object": 2, "method": 3, "builtin": 1, "class": 1}[kind]
        assert ended.stdout == f"{name}\n{name}\n{value} {value}\n"
        assert ended.files == []

    def test_decorates_methods(self, run: Run) -> None:
        ended = run("""
from firstfault import record
class Trainer:
    @record
    def main(self, x): raise ValueError(x)
Trainer().main(7)
""")
        section = ended.record()["firstfault"]
        assert section["process"]["entrypoint"] == "Trainer.main"

    def test_adds_one_frame(self, run: Run) -> None:
        ended = run("""
from firstfault import record
@record
def main(): 1 / 0
main()
""")
        assert ended.stderr.count("_record.py") == 1
        assert ", in wrapper\n    return fn(*args, **kwargs)\n" in ended.stderr

    def test_leaves_the_exception_as_it_is(self, run: Run) -> None:
        ended = run("""
from firstfault import record
import pickle

class Twisted(Exception):
    def __str__(self):
        self.__cause__ = KeyError("from __str__")
        raise self

for kind in (ValueError("x"), Twisted("y")):
    @record
    def main(): raise kind
    before = dict(kind.__dict__)
    try:
        main()
    except BaseException as e:
        names = []
        step = e.__traceback__
        while step:
            names.append(step.tb_frame.f_code.co_name)
            step = step.tb_next
        print(e is kind, names, e.__context__, e.__cause__, e.__suppress_context__,
              e.__dict__ == before, getattr(e, "__notes__", None))
""")
        line = "True ['<module>', 'wrapper', 'main'] None None False True None\n"
        assert ended.stdout == line * 2

    def test_records_coroutine_functions(self, run: Run) -> None:
        ended = run("""
import asyncio, functools
from firstfault import record

@record
async def fine(): return 5

@record
async def cancelled(): await asyncio.sleep(9)

async def fail(x): raise ValueError(x)

async def both():
    print(await fine())
    try: await asyncio.wait_for(cancelled(), 0.01)
    except TimeoutError: print("cancelled")

asyncio.run(both())
import inspect
print(inspect.iscoroutinefunction(fine))
asyncio.run(record(functools.partial(fail, "late"))())
""")
        assert ended.stdout == "5\ncancelled\nTrue\n"
        assert ended.status == 1
        record = ended.record()
        assert record["message"]["message"] == "ValueError: late"
        before = record["firstfault"]["preceded_by"]
        assert [entry["message"] for entry in before] == ["CancelledError: "]

    def test_works_on_other_threads(self, run: Run) -> None:
        ended = run("""
import os, threading
from firstfault import record
@record
def work(): raise ValueError("in a thread")
thread = threading.Thread(target=work)
thread.start(); thread.join()
os._exit(4)
""")
        record = ended.record()
        assert record["message"]["message"] == "ValueError: in a thread"
        assert record["firstfault"]["final"] is False  # the process went on

    def test_main_overrules_other_threads(self, run: Run) -> None:
        ended = run("""
import threading
from firstfault import record
@record
def work(): raise ValueError("in a thread")
@record
def main():
    thread = threading.Thread(target=work)
    thread.start(); thread.join()
    raise RuntimeError("a thread died")
main()
""")
        record = ended.record()
        assert record["message"]["message"] == "RuntimeError: a thread died"
        assert record["firstfault"]["final"] is True
        before = record["firstfault"]["preceded_by"]
        assert [entry["message"] for entry in before] == ["ValueError: in a thread"]
        assert before[0]["time_ns"] < record["firstfault"]["time_ns"]
        assert before[0]["kind"] == "exception"

    def test_records_before_teardown_can_block(self, run: Run) -> None:
        ended = run("""
import atexit, os
from firstfault import record
def last():
    print(os.path.exists(os.environ["TORCHELASTIC_ERROR_FILE"]))
    os._exit(3)
atexit.register(last)
@record
def main(): raise ValueError("x")
main()
""")
        assert (ended.status, ended.stdout) == (3, "True\n")

    @pytest.mark.parametrize(
        "blocks",
        [
            "threading.Thread(target=wait).start()",
            "import atexit; atexit.register(wait)",
        ],
    )
    def test_the_report_names_it_while_the_process_cannot_end(
        self, blocks: str, run: Run, directory: Path, tmp_path: Path
    ) -> None:
        program = f"""
import atexit, os, threading, time
from firstfault import record
def wait():
    while not os.path.exists("go"): time.sleep(0.01)
@record
def main():
    {blocks}
    raise ValueError("x")
main()
"""
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(run, program)
            while not (directory / "error.json").exists() and not running.done():
                time.sleep(0.01)
            cause = firstfault.report(directory).root_cause
            is_alive = not running.done()
            (tmp_path / "go").touch()
            ended = running.result()
        assert is_alive
        assert ended.status == 1
        assert cause is not None
        assert cause.title == "ValueError: x"


class TestDisabled:
    SCRIPT = """
import os, sys, faulthandler
from firstfault import record, ErrorHandler
class Handler(ErrorHandler):
    def __getattribute__(self, name):
        print("called", name)
        return super().__getattribute__(name)
way = sys.argv[1]
def main():
    if way == "return": return 5
    if way == "raise": raise ValueError("x")
    sys.exit(int(way))
import firstfault
wrapped = record(main, Handler() if len(sys.argv) > 2 else None)
if len(sys.argv) > 3: os.environ["FIRSTFAULT_DISABLE"] = sys.argv[3]
try:
    print(wrapped())
except BaseException as e:
    print(repr(e))
print(faulthandler.is_enabled(), "FIRSTFAULT_CLAIM" in os.environ)
"""

    @pytest.mark.parametrize("handler", [(), ("handler", "1")])
    @pytest.mark.parametrize(
        ("way", "result"),
        [
            ("return", "5"),
            ("raise", "ValueError('x')"),
            ("0", "SystemExit(0)"),
            ("3", "SystemExit(3)"),
        ],
    )
    def test_just_calls(
        self, way: str, result: str, handler: tuple[str, ...], run: Run
    ) -> None:
        env = {} if handler else {"FIRSTFAULT_DISABLE": "1"}
        ended = run(self.SCRIPT, way, *handler, env=env)
        assert ended.stdout == f"{result}\nFalse False\n"
        assert ended.stderr == ""
        assert ended.files == []

    @pytest.mark.parametrize("value", ["", "0", None])
    def test_by_one_value_only(self, value: str | None, run: Run) -> None:
        ended = run(self.SCRIPT, "0", env={"FIRSTFAULT_DISABLE": value})
        assert ended.stdout == "None\nTrue True\n"


class TestNoTarget:
    SCRIPT = """
import sys
if "logging" in sys.argv:
    import logging; logging.basicConfig(format="%(name)s %(levelname)s %(message)s")
from firstfault import record
@record
def inner(): raise ValueError("x")
@record
def main(): inner()
main()
"""

    @pytest.mark.parametrize("value", [None, "", "/dev/null"])
    def test_goes_to_the_log(self, value: str | None, run: Run) -> None:
        ended = run(self.SCRIPT, "logging", env={"TORCHELASTIC_ERROR_FILE": value})
        prefix = "firstfault ERROR no error file defined, the error is only logged: "
        logged = [
            line.removeprefix(prefix)
            for line in ended.stderr.splitlines()
            if line.startswith(prefix)
        ]
        assert len(logged) == 1
        assert json.loads(logged[0])["message"]["message"] == "ValueError: x"
        assert ended.files == []
        assert ended.status == 1
        assert Path(os.devnull).is_char_device()

    @pytest.mark.parametrize("value", [None, "", "/dev/null"])
    def test_adds_nothing_to_stderr_where_no_log_is(
        self, value: str | None, run: Run
    ) -> None:
        ended = run(self.SCRIPT, env={"TORCHELASTIC_ERROR_FILE": value})
        assert ended.stderr.startswith("Traceback (most recent call last):\n")
        assert ended.stderr.endswith("\nValueError: x\n")
        assert ended.stderr.count("Traceback") == 1

    def test_an_archive_is_a_target(self, run: Run, tmp_path: Path) -> None:
        archive = tmp_path / "archive"
        env = {"TORCHELASTIC_ERROR_FILE": None, "FIRSTFAULT_DIR": str(archive)}
        ended = run(self.SCRIPT, "logging", env=env)
        assert "no error file" not in ended.stderr
        files = [
            path for path in archive.rglob("*.json") if "firstfault" not in path.name
        ]
        assert len(files) == 1
        assert read_record(files[0])["message"]["message"] == "ValueError: x"


class TestHandlers:
    def test_is_looked_up_at_the_time_of_use(self, run: Run) -> None:
        ended = run("""
import firstfault, firstfault._error_handler
from firstfault import record, ErrorHandler, set_error_handler, get_error_handler
class Handler(ErrorHandler):
    def __init__(self, name): self.name = name
    def initialize(self): print("initialize", self.name, self._fn_name)
    def record_success(self): print("success", self.name)
@record
def main(): pass
assert type(get_error_handler()) is ErrorHandler
assert get_error_handler() is not get_error_handler()
main()
set_error_handler(one := Handler("set")); main()
assert get_error_handler() is firstfault.get_error_handler() is one
set_error_handler(None); main()
original = firstfault.get_error_handler
firstfault.get_error_handler = lambda: Handler("package"); main()
del firstfault.get_error_handler; main()
firstfault._error_handler.get_error_handler = lambda: Handler("module"); main()
firstfault._error_handler.get_error_handler = original; main()
from unittest import mock
with mock.patch("firstfault.get_error_handler", lambda: Handler("mock")): main()
main()
""")
        names = ["set", "package", "module", "mock"]
        expected = "".join(f"initialize {n} main\nsuccess {n}\n" for n in names)
        assert (ended.stdout, ended.stderr) == (expected, "")

    @pytest.mark.parametrize("base", ["ours", "torch"])
    def test_subclasses_are_called_in_order(self, base: str, run: Run) -> None:
        ended = run(
            """
import sys
from firstfault import record
if sys.argv[1] == "ours": from firstfault import ErrorHandler
else: from torch_errors import ErrorHandler
class Handler(ErrorHandler):
    def set_entrypoint_fn_name(self, name): print("name", name)
    def initialize(self): print("initialize"); super().initialize()
    def record_exception(self, e):
        print("exception", repr(e))
        super().record_exception(e)
    def record_success(self): print("success")
def main(way):
    if way == "raise": raise ValueError("x")
    if way == "base": raise KeyboardInterrupt
    if way == "exit": sys.exit(3)
    if way == "zero": sys.exit(0)
for way in ("return", "raise", "base", "exit", "zero"):
    try: print(record(main, Handler())(way))
    except BaseException: pass
""",
            base,
        )
        start = "name main\ninitialize\n"
        assert ended.stdout == (
            f"{start}success\nNone\n"
            f"{start}exception ValueError('x')\n"
            f"{start}exception KeyboardInterrupt()\n"
            f"{start}exception SystemExit(3)\n"
            f"{start}None\n"
        )
        if base == "ours":
            assert ended.record()["message"]["message"] == "ValueError: x"
            assert ended.record()["firstfault"]["final"] is True
        else:  # torch's last one wins
            message = json.loads((ended.directory / "error.json").read_text())[
                "message"
            ]
            assert message["message"] == "SystemExit: 3"
            assert message["extraInfo"]["py_callstack"].endswith("SystemExit: 3\n")

    def test_an_old_handler_has_no_newer_hooks(self, run: Run) -> None:
        ended = run("""
from firstfault import record
class Old:
    def initialize(self): print("initialize")
    def record_exception(self, e): print("exception", e)
print(record(lambda: 5, Old())())
try: record(lambda: 1 / 0, Old())()
except ZeroDivisionError: pass
""")
        assert ended.stdout == "initialize\n5\ninitialize\nexception division by zero\n"

    def test_a_failing_recorder_is_a_warning(self, run: Run) -> None:
        ended = run("""
from firstfault import record, ErrorHandler
class Handler(ErrorHandler):
    def record_exception(self, e): raise OSError("quota")
@record
def outer(): record(lambda: 1 / 0, Handler())()
outer()
""")
        assert "UserWarning: Unable to record ZeroDivisionError. OSError: quota" in (
            ended.stderr
        )
        assert ended.stderr.endswith("\nZeroDivisionError: division by zero\n")
        assert ended.record()["message"]["message"].startswith("ZeroDivisionError")

    def test_a_failing_record_success_is_no_failure_of_main(self, run: Run) -> None:
        ended = run("""
from firstfault import record, ErrorHandler
class Handler(ErrorHandler):
    def record_success(self): raise OSError("telemetry")
record(lambda: 5, Handler())()
""")
        assert ended.stderr.endswith("\nOSError: telemetry\n")
        assert ended.files == []

    def test_the_path_can_be_overridden(self, run: Run, tmp_path: Path) -> None:
        ended = run(
            """
import sys
from firstfault import record, ErrorHandler
class Handler(ErrorHandler):
    def _get_error_file_path(self): return sys.argv[1]
record(lambda: 1 / 0, Handler())()
""",
            str(tmp_path / "mine.json"),
        )
        assert ended.files == []
        message = read_record(tmp_path / "mine.json")["message"]["message"]
        assert message == "ZeroDivisionError: division by zero"
        assert (tmp_path / "mine.firstfault.json").exists()

    def test_faulthandler_needs_no_stderr(self, run: Run) -> None:
        ended = run("""
import io, sys, warnings
from firstfault import record
real, sys.stderr = sys.stderr, io.StringIO()
record(lambda: None)()
print(sys.stderr.getvalue().splitlines()[0])
""")
        assert "UserWarning: Unable to enable fault handler. " in ended.stdout
        assert ended.stdout.rstrip().endswith("UnsupportedOperation: fileno")

    def test_our_own_initialize_enables_faulthandler(self, run: Run) -> None:
        script = """
import faulthandler
from {} import record
record(lambda: print(faulthandler.is_enabled()))()
"""
        for library in ("firstfault", "torch_errors"):
            assert run(script.format(library)).stdout == "True\n"


class TestByHand:
    def test_is_provisional_and_mentioned_by_the_final_one(self, run: Run) -> None:
        ended = run("""
import json, os
from firstfault import record, ErrorHandler
@record
def main():
    for number in range(3):
        try: raise OSError(f"attempt {number}")
        except OSError as e: ErrorHandler().record_exception(e)
    now = json.load(open(os.environ["TORCHELASTIC_ERROR_FILE"]))
    print(now["message"]["message"], now["firstfault"]["final"])
    raise ValueError("given up")
main()
""")
        assert ended.stdout.split("\n")[0].endswith(" False")
        record = ended.record()
        assert record["message"]["message"] == "ValueError: given up"
        assert [e["message"] for e in record["firstfault"]["preceded_by"]] == [
            f"OSError: attempt {number}" for number in range(3)
        ]

    def test_and_raised_on_is_the_same_failure_at_its_first_time(
        self, run: Run
    ) -> None:
        ended = run("""
import json, os, time
from firstfault import record, ErrorHandler
@record
def main():
    try: raise OSError(5, "disk")
    except OSError as e:
        ErrorHandler().record_exception(e)
        print(json.load(open(os.environ["TORCHELASTIC_ERROR_FILE"]))["firstfault"]["time_ns"])
        time.sleep(0.02)
        raise
main()
""")
        section = ended.record()["firstfault"]
        assert section["final"] is True
        assert "preceded_by" not in section
        assert section["time_ns"] == int(ended.stdout)

    def test_keeps_no_frames_alive(self, run: Run) -> None:
        ended = run("""
import weakref
from firstfault import ErrorHandler
class Tensor: pass
def step():
    tensor = Tensor()
    global alive
    alive = weakref.ref(tensor)
    raise ValueError("x", 3)
try: step()
except ValueError as e: ErrorHandler().record_exception(e)
print(alive())
""")
        assert ended.stdout == "None\n"

    def test_needs_no_exception_in_flight(self, run: Run) -> None:
        ended = run("""
from firstfault import ErrorHandler
def fail(): raise ValueError("earlier")
try: fail()
except ValueError as e: kept = e
try: raise KeyError("in flight")
except KeyError: ErrorHandler().record_exception(kept)
""")
        stack = ended.record()["message"]["extraInfo"]["py_callstack"]
        assert ", in fail\n" in stack
        assert stack.endswith("\nValueError: earlier\n")

    def test_an_override_that_calls_super_stays_final(self, run: Run) -> None:
        ended = run("""
from firstfault import record, ErrorHandler
class Handler(ErrorHandler):
    def record_exception(self, e):
        super().record_exception(RuntimeError(f"rank 3: {e}"))
record(lambda: 1 / 0, Handler())()
""")
        record = ended.record()
        assert record["message"]["message"] == "RuntimeError: rank 3: division by zero"
        assert record["firstfault"]["final"] is True

    def test_only_so_many_are_mentioned(self, run: Run) -> None:
        ended = run("""
from firstfault import record, ErrorHandler
@record
def main():
    for number in range(50): ErrorHandler().record_exception(OSError(f"{number}"))
    raise ValueError("x")
main()
""")
        messages = [e["message"] for e in ended.record()["firstfault"]["preceded_by"]]
        assert len(messages) == 16
        assert messages[0] == "OSError: 0"
        assert messages[-1] == "OSError: 49"


def test_interruptions_wait_for_the_record(run: Run) -> None:
    ended = run("""
import os, signal, sys
from firstfault import record
signal.signal(signal.SIGINT, signal.default_int_handler)
import firstfault._error_record as inside
make = inside._full
def slow(*args):
    inside._full = make
    signal.raise_signal(signal.SIGINT)
    return make(*args)
inside._full = slow
@record
def main(): raise ValueError("first")
main()
""")
    assert ended.status == -2
    assert ended.record()["message"]["message"] == "ValueError: first"


def test_an_exception_that_exits_while_it_is_recorded(run: Run) -> None:
    ended = run("""
from firstfault import record
class Hostile(Exception):
    @property
    def __notes__(self): raise SystemExit(5)
@record
def main(): raise Hostile("x")
main()
""")
    assert ended.status == 5  # as under torch, but recorded
    assert ended.record()["message"]["message"] == "Hostile: x"


def test_a_forked_child_has_no_earlier_failures(run: Run) -> None:
    ended = run("""
import os
from firstfault import record, ErrorHandler
@record
def main():
    ErrorHandler().record_exception(OSError("parent's"))
    pid = os.fork()
    if pid == 0: raise ValueError("child's")
    os.waitpid(pid, 0)
    raise RuntimeError("a child failed")
main()
""")
    assert ended.record()["message"]["message"] == "RuntimeError: a child failed"
    children = [name for name in ended.files if ".child_" in name]
    (child,) = [name for name in children if "firstfault" not in name]
    section = ended.record(child)["firstfault"]
    assert section["exception"]["message"] == "child's"
    assert "preceded_by" not in section


def test_types() -> None:
    assert record.__module__ == firstfault.record.__module__ == "firstfault"
    signature: Any = inspect.signature(record)
    assert list(signature.parameters) == ["fn", "error_handler"]
    assert signature.parameters["error_handler"].default is None
