"""Does one step after the other inside a main function; the last is usually a fault.

``crash.py LIBRARY UNDER CONTEXT [BEFORE…] -- STEP…``: the faults library, what records
main, where the steps run, and the steps before and after that is in place. A step is
``name`` or ``name:argument``: a function of `Steps` or else of the faults library,
which is called with the GIL held if ``held.`` stands before its name.
"""

import ctypes
import faulthandler
import importlib
import importlib.util
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

LIBRARY, UNDER, CONTEXT, *REST = sys.argv[1:]
BEFORE, STEPS = REST[: REST.index("--")], REST[REST.index("--") + 1 :]
released = ctypes.CDLL(LIBRARY, use_errno=False)
held = ctypes.PyDLL(LIBRARY)


def plain(main: Callable[[], None]) -> Callable[[], None]:
    return main


def activated(main: Callable[[], None]) -> Callable[[], None]:
    from firstfault import _hooks, _native

    _hooks.install()
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    _native.activate(error_file=path, entrypoint=None, argv=sys.argv)
    return main


def firstfault(main: Callable[[], None]) -> Callable[[], None]:
    from firstfault import record

    return record(main)


def torch_record(main: Callable[[], None]) -> Callable[[], None]:
    from torch.distributed.elastic.multiprocessing.errors import record

    return record(main)


def torch_handler(main: Callable[[], None]) -> Callable[[], None]:
    """What torch's `record` does first, without the seconds of importing torch."""
    torch = importlib.util.find_spec("torch")
    assert torch
    assert torch.origin
    path = "distributed/elastic/multiprocessing/errors/error_handler.py"
    spec = importlib.util.spec_from_file_location("h", Path(torch.origin).parent / path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ErrorHandler().initialize()
    return main


DECORATORS: dict[str, Callable[[Callable[[], None]], Callable[[], None]]] = {
    "nothing": plain,
    "activate": activated,
    "firstfault": firstfault,
    "torch": torch_record,
    "torch_handler": torch_handler,
    "firstfault_in_torch": lambda main: torch_record(firstfault(main)),
    "torch_in_firstfault": lambda main: firstfault(torch_record(main)),
    "firstfault_twice": lambda main: firstfault(firstfault(main)),
}


def library_function(name: str) -> Any:
    whose, _, rest = name.rpartition(".")
    return getattr(held if whose == "held" else released, rest)


def mapped(path: str, wanted: range) -> Iterator[tuple[int, int, str]]:
    """Yield address, length and modes of the mappings of a part of a file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, modes, offset, *_, name = line.split(maxsplit=5)
        if name == path:
            start, end = (int(address, 16) for address in span.split("-"))
            begin = int(offset, 16)
            first = max(wanted.start, begin)
            last = min(wanted.stop, begin + end - start)
            if first < last:
                yield start + first - begin, last - first, modes


def scramble(path: str, wanted: range, noise: random.Random) -> None:
    """Overwrite many or few bytes of a part of a file where it is mapped."""
    libc = ctypes.CDLL(None, use_errno=True)
    share = 0.5 ** noise.randrange(8)
    for address, length, _ in mapped(path, wanted):
        page = address // 4096 * 4096
        span = ctypes.c_void_p(page), ctypes.c_size_t(address + length - page)
        assert libc.mprotect(*span, 3) == 0, ctypes.get_errno()  # read and write
        there = (ctypes.c_ubyte * length).from_address(address)
        for index in range(length):
            if noise.random() < share:
                there[index] = noise.choice([0, 127, 128, 255])


def forget_pages(file: BinaryIO, wanted: range = range(sys.maxsize)) -> None:
    """Have the kernel drop what it holds of a mapped file, but for what was written."""
    libc = ctypes.CDLL(None, use_errno=True)
    for address, length, modes in mapped(file.name, wanted):
        if "w" not in modes:
            advice = ctypes.c_void_p(address), ctypes.c_size_t(length), 4
            assert libc.madvise(*advice) == 0, ctypes.get_errno()  # MADV_DONTNEED
    begin, length = wanted.start, len(wanted)
    os.posix_fadvise(file.fileno(), begin, length, os.POSIX_FADV_DONTNEED)


def run_in_another_interpreter(source: str) -> None:
    """Run source in an interpreter that shares this one's GIL, in this thread."""
    if sys.version_info >= (3, 13):
        interpreters = importlib.import_module("_interpreters")
        interpreter = interpreters.create("legacy")
    else:
        interpreters = importlib.import_module("_xxsubinterpreters")
        interpreter = interpreters.create(isolated=False)
    interpreters.run_string(interpreter, source)


def waiting(started: threading.Semaphore, never: threading.Event) -> None:
    started.release()
    never.wait()


def churning(started: threading.Semaphore) -> None:
    started.release()
    while True:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()


def raw_clone() -> int:
    """Do what fork(2) does, and tell neither the interpreter nor the C library."""
    number = 56 if os.uname().machine == "x86_64" else 220
    child: int = ctypes.CDLL(None).syscall(number, signal.SIGCHLD, 0, 0, 0, 0)
    return child


class Steps:
    """The steps that the library has no function for."""

    @staticmethod
    def threads(count: str) -> None:
        started, never = threading.Semaphore(0), threading.Event()
        for _ in range(int(count)):
            threading.Thread(target=waiting, args=(started, never), daemon=True).start()
        for _ in range(int(count)):
            started.acquire()

    @staticmethod
    def named_threads(*names: str) -> None:
        """Start threads that wait, under these names of the kernel's."""
        started, never = threading.Semaphore(0), threading.Event()
        prctl = ctypes.CDLL(None).prctl

        def named(name: str) -> None:
            prctl(15, name.encode(), 0, 0, 0)  # PR_SET_NAME
            waiting(started, never)

        for name in names:
            threading.Thread(target=named, args=[name], daemon=True).start()
            started.acquire()

    @staticmethod
    def while_another_holds_the_gil(fault: str) -> None:
        """Crash in a native thread while a thread of Python's keeps the GIL."""

        def holding() -> None:
            released.await_call()
            held.hold_for_ever()

        threading.Thread(target=holding, daemon=True).start()
        released.call_while_held(library_function(fault))

    @staticmethod
    def deep_threads(count: str, depth: str) -> None:
        """Start threads that wait behind so many calls of a long name."""
        started, never = threading.Semaphore(0), threading.Event()

        def dive(left: int) -> None:
            if left:
                dive(left - 1)
            else:
                waiting(started, never)

        dive.__code__ = dive.__code__.replace(co_name="dive" * 25)
        for _ in range(int(count)):
            threading.Thread(target=dive, args=[int(depth)], daemon=True).start()
        for _ in range(int(count)):
            started.acquire()

    @staticmethod
    def churn(count: str) -> None:
        started = threading.Semaphore(0)
        for _ in range(int(count)):
            threading.Thread(target=churning, args=(started,), daemon=True).start()
        for _ in range(int(count)):
            started.acquire()

    @staticmethod
    def asleep(count: str) -> None:
        """Wait until so many threads sleep."""
        tasks = Path("/proc/self/task")
        while sum(") S " in stat.read_text() for stat in tasks.glob("*/stat")) < int(
            count
        ):
            os.sched_yield()

    @staticmethod
    def ready(descriptor: str) -> None:
        """Tell the parent, and wait for what it does."""
        os.write(int(descriptor), b"x")
        while True:
            signal.pause()

    @staticmethod
    def tell(descriptor: str) -> None:
        """Tell the parent, and go on."""
        os.write(int(descriptor), b"x")

    @staticmethod
    def through(fault: str) -> None:
        released.stack_outer(library_function(fault))

    @staticmethod
    def deep(depth: str, fault: str) -> None:
        released.stack_deep(int(depth), library_function(fault))

    @staticmethod
    def load_far(path: str) -> None:
        """Load the library from another file."""
        ctypes.CDLL(shutil.copy(LIBRARY, path))

    @staticmethod
    def through_far(path: str, fault: str) -> None:
        """Go through that file, which does not answer any more, nor is in memory."""

        def near() -> None:
            with open(path, "rb") as file:
                forget_pages(file)
            Steps.stop("FILE_SERVER")
            library_function(fault)()

        ctypes.CDLL(path).stack_outer(ctypes.CFUNCTYPE(None)(near))

    @staticmethod
    def native_through(fault: str) -> None:
        """Go through the functions in a thread that Python knows nothing of."""
        released.in_native_thread_through(library_function(fault))

    @staticmethod
    def load_and_call(library: str, fault: str) -> None:
        getattr(ctypes.CDLL(library), fault)()

    @staticmethod
    def unlink_and_call(library: str, fault: str) -> None:
        function = getattr(ctypes.CDLL(library), fault)
        os.unlink(library)
        function()

    @staticmethod
    def scramble_and_call(
        library: str, start: str, end: str, seed: str, fault: str
    ) -> None:
        """Overwrite a part of a library in memory by noise, then call into it."""
        function = getattr(ctypes.CDLL(library), fault)
        scramble(library, range(int(start), int(end)), random.Random(int(seed)))
        function()

    @staticmethod
    def terminate_far(library: str, path: str, start: str, end: str) -> None:
        """Terminate in a copy of libstdc++ a part of which is not to be had."""
        shutil.copy(library, path)
        terminate = ctypes.CDLL(path)._ZSt9terminatev
        with open(path, "rb") as file:
            file.read()
            forget_pages(file, range(int(start), int(end)))
        Steps.stop("FILE_SERVER")
        terminate()

    @staticmethod
    def os_abort() -> None:
        os.abort()

    @staticmethod
    def kill(number: str) -> None:
        os.kill(os.getpid(), int(number))

    @staticmethod
    def raise_signal(number: str) -> None:
        signal.raise_signal(int(number))

    @staticmethod
    def enable() -> None:
        faulthandler.enable()

    @staticmethod
    def disable() -> None:
        faulthandler.disable()

    @staticmethod
    def torch_import() -> None:
        import torch  # noqa: F401

    @staticmethod
    def torch_stack_traces() -> None:
        """Let c10 ask every thread for its stack at a fatal signal."""
        import torch

        torch._C._set_print_stack_traces_on_fatal_signal(True)

    @staticmethod
    def ignore(number: str) -> None:
        signal.signal(int(number), signal.SIG_IGN)

    @staticmethod
    def default(number: str) -> None:
        signal.signal(int(number), signal.SIG_DFL)

    @staticmethod
    def handle(number: str) -> None:
        """Handle a signal in Python."""
        signal.signal(int(number), lambda *_: os.write(2, b"handled\n"))

    @staticmethod
    def close_all() -> None:
        os.closerange(3, 65_536)

    @staticmethod
    def reopen_all() -> None:
        """Let the numbers of closed descriptors mean a file of the program's own."""
        directory = Path(os.environ["TORCHELASTIC_ERROR_FILE"]).parent
        other = os.open(directory / "other.txt", os.O_WRONLY | os.O_CREAT)
        for number in range(other + 1, 600):
            os.dup2(other, number)

    @staticmethod
    def write_to_all() -> None:
        """Write a byte to each of the numbers of `reopen_all`."""
        for number in range(4, 600):
            os.write(number, b".")

    @staticmethod
    def other_record(key: str) -> None:
        """Write the error file as another process would, after this one began."""
        path = Path(os.environ["TORCHELASTIC_ERROR_FILE"])
        path.write_text(f'{{"{key}": {{"final": true}}}}')

    @staticmethod
    def remove(directory: str) -> None:
        shutil.rmtree(directory)

    @staticmethod
    def use_up_descriptors() -> None:
        limit = 64
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            while True:
                os.dup(2)
        except OSError:
            pass

    @staticmethod
    def limit_signals() -> None:
        """Let no real-time signal be pending, so that none can be sent."""
        resource.setrlimit(resource.RLIMIT_SIGPENDING, (0, 0))

    @staticmethod
    def no_large_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    @staticmethod
    def chdir(path: str) -> None:
        os.chdir(path)

    @staticmethod
    def stop(variable: str, seconds: str = "") -> None:
        """Stop the process that a variable names, for ever or for so long."""
        pid = os.environ[variable]
        if seconds:
            # Before: it may have a file to close that the stopped process serves.
            resume = f"sleep {seconds}; kill -CONT {pid}"
            subprocess.Popen(["sh", "-c", resume], stderr=subprocess.DEVNULL)
        os.kill(int(pid), signal.SIGSTOP)

    @staticmethod
    def sleep(seconds: str) -> None:
        time.sleep(float(seconds))

    @staticmethod
    def stderr(path: str) -> None:
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), 2)

    @staticmethod
    def fsfreeze(directory: str, seconds: str) -> None:
        """Let nobody write to a file system for so long."""
        subprocess.run(["fsfreeze", "-f", directory], check=True)
        thaw = f"sleep {seconds}; fsfreeze -u {directory}"
        subprocess.Popen(["sh", "-c", thaw])

    @staticmethod
    def older_file() -> None:
        """Let an earlier attempt have left an error file."""
        path = Path(os.environ["TORCHELASTIC_ERROR_FILE"])
        path.write_text("old")
        os.utime(path, (1_000_000, 1_000_000))

    @staticmethod
    def setenv(name: str, value: str) -> None:
        os.environ[name] = value

    @staticmethod
    def at_exit(fault: str) -> None:
        released.at_exit(library_function(fault))

    @staticmethod
    def together(count: str, even: str, odd: str) -> None:
        released.crash_together(
            int(count), library_function(even), library_function(odd)
        )

    @staticmethod
    def python_together(count: str, fault: str) -> None:
        """Let several Python threads crash at the same moment."""
        barrier = threading.Barrier(int(count))

        def crashing() -> None:
            barrier.wait()
            library_function(fault)()

        threads = [threading.Thread(target=crashing) for _ in range(int(count))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @staticmethod
    def activate_again() -> None:
        activated(main)

    @staticmethod
    def bare_thread(function: str) -> None:
        released.in_bare_thread(library_function(function))

    @staticmethod
    def held_native_thread(function: str) -> None:
        """Wait for a thread of the library's with the GIL held."""
        held.in_native_thread(library_function(function))

    @staticmethod
    def tell_waiting(function: str) -> None:
        released.tell_waiting(library_function(function))

    @staticmethod
    def protect(expected: str) -> None:
        """Protect the native threads, and compare how many they are."""
        import firstfault

        found = firstfault.protect_native_threads()
        assert found == int(expected), found

    @staticmethod
    def keep_protecting() -> None:
        """Protect the native threads again and again, meanwhile."""
        import firstfault

        began = threading.Semaphore(0)

        def protecting() -> None:
            while True:
                firstfault.protect_native_threads()
                began.release()

        threading.Thread(target=protecting, daemon=True).start()
        began.acquire()

    @staticmethod
    def without_main(function: str) -> None:
        released.fault_without_main(library_function(function))

    @staticmethod
    def sub_interpreter(*source: str) -> None:
        """Run source in an interpreter of its own, in this thread."""
        run_in_another_interpreter(":".join(source))

    @staticmethod
    def libc(function: str) -> None:
        """Call one of the functions by which glibc ends a process."""
        call = getattr(ctypes.CDLL(None), function)
        if function == "__assert_fail":
            call(b"loss < inf", b"train.c", 12, b"step")
        call()

    @staticmethod
    def free_twice() -> None:
        library = ctypes.CDLL(None)
        library.malloc.restype = ctypes.c_void_p
        library.free.argtypes = [ctypes.c_void_p]
        block = library.malloc(24)
        library.free(block)
        library.free(block)

    @staticmethod
    def touch(times: str) -> None:
        assert released.touch(int(times)) == 0, "errno was not kept"
        assert released.wrong() == 0, (
            "the handler got other arguments than the kernel's"
        )

    @staticmethod
    def touch_together(threads: str, times: str) -> None:
        assert released.touch_together(int(threads), int(times)) == 0
        assert released.wrong() == 0
        assert released.recovered() == int(threads) * int(times), released.recovered()

    @staticmethod
    def watch() -> None:
        released.watch(os.environ["TORCHELASTIC_ERROR_FILE"].encode())

    @staticmethod
    def report_seen() -> None:
        print("seen", released.files_seen(), file=sys.stderr)

    @staticmethod
    def corrupt(whose: str, how: str) -> None:
        """Overwrite the state of a Python thread, then crash."""
        address = 0x1111_1111_1111_1111
        if how == "hang":
            released.page_that_hangs.restype = ctypes.c_size_t
            address = released.page_that_hangs()
            if not address:
                sys.exit(77)
        get = ctypes.pythonapi.PyThreadState_Get
        get.restype = ctypes.c_void_p
        states = []
        never, started = threading.Event(), threading.Semaphore(0)

        def other() -> None:
            states.append(get())
            waiting(started, never)

        if whose == "other":
            threading.Thread(target=other, daemon=True).start()
            started.acquire()
            Steps.threads("1")
        else:
            states.append(get())
        # With the GIL held, nobody else trips over it before the crash.
        held.corrupt_and_read_null(ctypes.c_void_p(states[0]), ctypes.c_size_t(address))

    @staticmethod
    def report_files() -> None:
        """Say on stderr which error files are there now."""
        directory = Path(os.environ["TORCHELASTIC_ERROR_FILE"]).parent
        files = (path for path in directory.iterdir() if path.suffix != ".box")
        print(sorted(path.name for path in files), file=sys.stderr)

    @staticmethod
    def fork(*step: str) -> None:
        """Do a step in a forked child, and say how it ended."""
        in_child(os.fork(), step)

    @staticmethod
    def raw_clone(*step: str) -> None:
        """The same in a child of a raw clone(2)."""
        in_child(raw_clone(), step)

    @staticmethod
    def vfork(fault: str) -> None:
        """The same in a child that shares the memory of this process."""
        status = released.in_vfork_child(library_function(fault))
        status = os.waitstatus_to_exitcode(status)
        print(f"child ended with {status}", file=sys.stderr)

    @staticmethod
    def raise_error(text: str) -> None:
        raise ValueError(text)

    @staticmethod
    def raise_from(directory: str) -> None:
        """Raise in a module there, which does not answer any more by then."""
        (Path(directory) / "far.py").write_text(
            "def fail(text):\n    raise ValueError(text)\n"
        )
        sys.path.insert(0, directory)
        far = importlib.import_module("far")
        # The interpreter would read the module too, to show its own traceback.
        sys.excepthook = lambda *_: None
        Steps.stop("FILE_SERVER")
        far.fail("out of reach")

    @staticmethod
    def record_error(text: str) -> None:
        """Record an exception by hand, and go on."""
        from firstfault import get_error_handler

        get_error_handler().record_exception(ValueError(text))

    @staticmethod
    def both(first: str, second: str) -> None:
        """Do one step, whose arguments follow commas, and then another."""
        do(first.replace(",", ":"))
        do(second)

    @staticmethod
    def fail_and_crash(text: str, fault: str) -> None:
        """Fail as a program of its own would, and crash on the way out."""
        from firstfault import _error_handler, get_error_handler

        _error_handler.leaving.set(True)
        get_error_handler().record_exception(ValueError(text))
        library_function(fault)()

    @staticmethod
    def take_over(path: str) -> None:
        """Make a child's record this process's own."""
        from firstfault import get_error_handler

        get_error_handler().dump_error_file(path)

    @staticmethod
    def exit(status: str) -> None:
        sys.exit(int(status))


def in_child(child: int, step: tuple[str, ...]) -> None:
    """Do a step in the child, and say in the parent how that ended."""
    if child == 0:
        do(":".join(step))
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(f"child {child} ended with {status}", file=sys.stderr)


def do(step: str) -> None:
    name, *arguments = step.split(":")
    function = getattr(Steps, name, None)
    if function is not None:
        function(*arguments)
    else:
        library_function(name)(*map(int, arguments))


def steps() -> None:
    for step in STEPS:
        do(step)


def main() -> None:
    if CONTEXT == "main":
        steps()
    elif CONTEXT == "python_thread":
        thread = threading.Thread(target=steps)
        thread.start()
        thread.join()
    elif CONTEXT == "native_thread":
        *first, last = STEPS
        for step in first:
            do(step)
        released.in_native_thread(library_function(last))


if __name__ == "__main__":
    for step in BEFORE:
        do(step)
    entry = DECORATORS[UNDER](main)
    entry()
