"""Brings a fault to a place: ``contexts.py LIBRARY UNDER PLACE [BEFORE…] -- STEP…``.

As `crash`, whose steps it does; the last step is the fault, and the place a function
of `Places`, which says how the program comes to it.
"""

import asyncio
import atexit
import contextlib
import ctypes
import gc
import importlib
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import crash
import surroundings

*FIRST, FAULT = crash.STEPS
KEEP: list[object] = []


class Faults:
    """The faults that neither the library nor `crash` has."""

    @staticmethod
    def thread_kills(number: str) -> None:
        """Be sent a signal by another thread."""
        target = threading.get_ident()
        sender = threading.Thread(
            target=signal.pthread_kill, args=(target, int(number))
        )
        sender.start()
        sender.join()

    @staticmethod
    def fatal_error() -> None:
        ctypes.pythonapi.Py_FatalError(b"the interpreter gave up")

    @staticmethod
    def c_recursion() -> None:
        """Recur through C until the stack is used up."""
        sys.setrecursionlimit(10**9)

        def deeper(_: object) -> int:
            return max([1, 2], key=deeper)

        deeper(1)

    @staticmethod
    def string_at_null() -> None:
        ctypes.string_at(0)

    @staticmethod
    def bad_free() -> None:
        ctypes.CDLL(None).free(ctypes.c_void_p(0x66660010))


def fault() -> None:
    name, *arguments = FAULT.split(":")
    own: Callable[..., None] | None = getattr(Faults, name, None)
    if own:
        own(*arguments)
    else:
        crash.do(FAULT)


def library_function() -> Any:
    """Return the fault as a function that needs no Python."""
    return crash.library_function(FAULT)


CALLBACK = ctypes.CFUNCTYPE(None)


class Broken:
    """Its end is the fault."""

    def __del__(self) -> None:
        fault()


def reap() -> None:
    """Wait for children until there are no more, and say how each ended."""
    with contextlib.suppress(ChildProcessError):
        while True:
            _, status = os.waitpid(-1, 0)
            print("child", os.waitstatus_to_exitcode(status), file=sys.stderr)


class Places:
    """Where the fault happens."""

    @staticmethod
    def main() -> None:
        fault()

    @staticmethod
    def python_thread() -> None:
        thread = threading.Thread(target=fault)
        thread.start()
        thread.join()

    @staticmethod
    def small_thread() -> None:
        """A Python thread with the smallest stack that Python allows."""
        threading.stack_size(32 * 1024)
        Places.python_thread()

    @staticmethod
    def native_thread() -> None:
        crash.released.in_bare_thread(library_function())

    @staticmethod
    def native_thread_in_python() -> None:
        """A thread of the library's that calls into Python."""
        crash.released.in_bare_thread(CALLBACK(fault))

    @staticmethod
    def signal_handler() -> None:
        crash.released.in_signal_handler(CALLBACK(fault), 0)

    @staticmethod
    def handler_on_alternate_stack() -> None:
        crash.released.in_signal_handler(library_function(), 1)

    @staticmethod
    def python_handler() -> None:
        signal.signal(signal.SIGUSR1, lambda *_: fault())
        signal.raise_signal(signal.SIGUSR1)

    @staticmethod
    def sort_callback() -> None:
        """Python called by C called by Python."""
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

        def compare(*_: object) -> int:
            fault()
            return 0

        array = (ctypes.c_int * 2)(2, 1)
        ctypes.CDLL(None).qsort(array, 2, 4, kind(compare))

    @staticmethod
    def at_exit() -> None:
        atexit.register(fault)

    @staticmethod
    def c_at_exit() -> None:
        """After the interpreter is gone."""
        crash.released.at_exit(library_function())

    @staticmethod
    def finalization() -> None:
        """While the interpreter lets its modules go."""
        KEEP.append(Broken())

    @staticmethod
    def thread_during_finalization() -> None:
        """In a native thread, while the interpreter ends."""
        atexit.register(Places.native_thread)

    @staticmethod
    def forked_child() -> None:
        if os.fork() == 0:
            fault()
            os._exit(0)
        reap()

    @staticmethod
    def raw_clone_child() -> None:
        """A child that neither the interpreter nor the C library knows of."""
        if crash.raw_clone() == 0:
            fault()
            os._exit(0)
        reap()

    @staticmethod
    def vfork_child() -> None:
        """A child in the memory of its parent, which waits for its end."""
        status = crash.released.in_vfork_child(library_function())
        print("child", os.waitstatus_to_exitcode(status), file=sys.stderr)

    @staticmethod
    def grandchild() -> None:
        if os.fork() == 0:
            Places.forked_child()
            os._exit(0)
        reap()

    @staticmethod
    def child_of_a_thread() -> None:
        # Python 3.12 and later warn of it, with the process's ID.
        warnings.simplefilter("ignore", DeprecationWarning)
        thread = threading.Thread(target=Places.forked_child)
        thread.start()
        thread.join()

    @staticmethod
    def pool_worker() -> None:
        """As a worker of a DataLoader: forked by multiprocessing, with threads."""
        context = multiprocessing.get_context("fork")
        child = context.Process(target=fault)
        child.start()
        child.join()
        print("child", child.exitcode, file=sys.stderr)

    @staticmethod
    def sub_interpreter() -> None:
        """In another interpreter of this process."""
        name = f"in_another_interpreter({crash.LIBRARY!r}, {FAULT!r})"
        code = (
            "import ctypes\n"
            "def in_another_interpreter(library, name):\n"
            "    getattr(ctypes.CDLL(library), name)()\n"
        )
        crash.run_in_another_interpreter(code + name)

    @staticmethod
    def beside_a_sub_interpreter() -> None:
        """While a thread waits in another interpreter."""
        reading, writing = os.pipe()
        code = f"import os, time; os.write({writing}, b'x'); time.sleep(100)"
        run = crash.run_in_another_interpreter
        threading.Thread(target=run, args=(code,), daemon=True).start()
        os.read(reading, 1)
        fault()

    @staticmethod
    def coroutine() -> None:
        async def waits() -> None:
            await asyncio.sleep(0)
            fault()

        asyncio.run(waits())

    @staticmethod
    def task_in_executor() -> None:
        async def waits() -> None:
            await asyncio.get_running_loop().run_in_executor(None, fault)

        asyncio.run(waits())

    @staticmethod
    def generator() -> None:
        def produces() -> Iterator[int]:
            fault()
            yield 1

        next(produces())

    @staticmethod
    def executed() -> None:
        exec("def of_a_string():\n    fault()\nof_a_string()", {"fault": fault})

    @staticmethod
    def during_import() -> None:
        Path("imported.py").write_text(
            "import __main__\ndef at_import():\n    __main__.fault()\nat_import()\n"
        )
        sys.path.insert(0, os.getcwd())
        importlib.import_module("imported")

    @staticmethod
    def during_load() -> None:
        """In a constructor of a library, with the loader's lock held."""
        copy = Path("copy.so").absolute()
        shutil.copy(crash.LIBRARY, copy)
        os.environ["FAULT_AT_LOAD"] = FAULT
        ctypes.CDLL(str(copy))

    @staticmethod
    def collector_callback() -> None:
        def collecting(*_: object) -> None:
            fault()

        gc.callbacks.append(collecting)
        gc.collect()

    @staticmethod
    def finalizer() -> None:
        """In ``__del__``, called by the collector."""
        broken: Any = Broken()
        broken.itself = broken
        del broken
        gc.collect()

    @staticmethod
    def trace_function() -> None:
        def tracing(*_: object) -> None:
            sys.settrace(None)
            fault()

        sys.settrace(tracing)
        (lambda: None)()

    @staticmethod
    def exception_handler() -> None:
        """While an exception is in flight."""
        try:
            raise ValueError("the first trouble")
        except ValueError:
            fault()

    @staticmethod
    def class_body() -> None:
        class InItsBody:
            fault()

    @staticmethod
    def deep_python_stack() -> None:
        def deeper(depth: int) -> None:
            if depth:
                deeper(depth - 1)
            else:
                fault()

        deeper(800)

    @staticmethod
    def deep_native_stack() -> None:
        crash.released.stack_deep(5000, library_function())

    @staticmethod
    def non_ascii_names() -> None:
        code = "def größer():\n    fault()\ngrößer()"
        name = os.fsdecode(b'caf\xe9 "quoted"\n.py')
        exec(compile(code, name, "exec"), {"fault": fault})

    @staticmethod
    def thread_with_odd_name() -> None:
        name = ctypes.create_string_buffer(b'\xff"\\\n\x01')

        def named() -> None:
            ctypes.CDLL(None).prctl(15, name, 0, 0, 0)
            fault()

        thread = threading.Thread(target=named)
        thread.start()
        thread.join()


def main() -> None:
    for step in FIRST:
        surroundings.do(step)
    getattr(Places, crash.CONTEXT)()


if __name__ == "__main__":
    for step in crash.BEFORE:
        surroundings.do(step)
    crash.DECORATORS[crash.UNDER](main)()
