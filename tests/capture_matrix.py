"""The contexts of the capture matrix, and what is expected of each fault in them."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from signal import SIGSEGV

from capture_faults import FAULTS, Fault

EVERY = tuple(FAULTS)
OF_A_THREAD = tuple(name for name, fault in FAULTS.items() if not fault.to_process)
NATIVE = tuple(name for name, fault in FAULTS.items() if fault.native)
SOME = (
    "read of a null pointer",
    "abort",
    "stack overflow",
    "illegal instruction",
    "C++ exception",
)
SOME_OF_PYTHON = (*SOME, "os.abort", "free of a free block", "kill by itself")
SOME_OF_A_THREAD = tuple(name for name in SOME_OF_PYTHON if name in OF_A_THREAD)
TWO = ("read of a null pointer", "abort")
# Whose core dumps are compared: faults of the kernel's, one of them with the stack used
# up, and signals that the process sends to itself, one of them out of the C++ library.
DUMPED = ("read of a null pointer", "stack overflow", "C++ exception", "abort")

# Where the record is.
OWN, CHILD, BESIDE = "own file", "child's file", "beside"
SPARED = "spare place"


@dataclass(frozen=True)
class Context:
    """Where a fault happens, and what is the matter with the process by then."""

    faults: tuple[str, ...] = SOME_OF_PYTHON
    place: str = "main"
    # Python functions of the crashed thread, innermost first; others lie between.
    stack: tuple[str, ...] = ("fault", "main", "<module>")
    before: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    under: tuple[str, str] = ("torch_handler", "firstfault")
    # A function of test_capture_matrix.py that prepares the surroundings.
    around: str = ""
    record: str = OWN
    # Whether an older file at the error file's path is kept beside.
    keeps: bool = False
    # Faults that leave no record here, and why; an asterisk is all others.
    without: dict[str, str] = field(default_factory=dict)
    # Faults that are recorded as another here, and why.
    instead: dict[str, tuple[Fault, str]] = field(default_factory=dict)
    # Else only the first lines of faulthandler's dump are the same in two runs: where
    # other threads are is not.
    exact: bool = True


BARE = ("nothing", "activate")
NO_ALTERNATE_STACK = {
    "stack overflow": "the thread has no alternate signal stack",
    "stack overflow by large frames": "the thread has no alternate signal stack",
    "recursion through C": "the thread has no alternate signal stack",
}
IN_MAIN = ("main", "<module>")
IN_THREAD = ("run", "_bootstrap_inner", "_bootstrap")

# CPython's dumper shows the frames of one interpreter: before 3.12, of the main one.
IN_ANOTHER_INTERPRETER = ("sub_interpreter", *IN_MAIN)
if sys.version_info >= (3, 12):
    IN_ANOTHER_INTERPRETER = ("in_another_interpreter", "<module>")

CONTEXTS = {
    "main thread": Context(EVERY),
    "main thread, activated alone": Context(EVERY, under=BARE),
    "Python thread": Context(
        OF_A_THREAD,
        place="python_thread",
        stack=("fault", *IN_THREAD),
        exact=False,
    ),
    "native thread": Context(
        NATIVE, place="native_thread", stack=(), without=NO_ALTERNATE_STACK
    ),
    "Python thread with a small stack": Context(
        SOME, place="small_thread", stack=("fault", *IN_THREAD), exact=False
    ),
    "native thread that called into Python": Context(
        SOME_OF_A_THREAD,
        place="native_thread_in_python",
        stack=("fault",),
        exact=False,
        without=NO_ALTERNATE_STACK,
    ),
    "signal handler": Context(
        place="signal_handler", stack=("fault", "signal_handler", *IN_MAIN)
    ),
    "signal handler on the alternate stack": Context(
        SOME,
        place="handler_on_alternate_stack",
        stack=IN_MAIN,
        # faulthandler's own stack has no guard: its overflow overwrites what the heap
        # has below it, and the dump without us shows wrong lines then.
        exact=False,
    ),
    "signal handler in Python": Context(
        place="python_handler", stack=("fault", "<lambda>", "python_handler", *IN_MAIN)
    ),
    "callback of qsort": Context(
        place="sort_callback", stack=("fault", "compare", "sort_callback", *IN_MAIN)
    ),
    "atexit": Context(place="at_exit", stack=("fault",)),
    "atexit of C": Context(SOME, place="c_at_exit", stack=()),
    "finalization of the interpreter": Context(
        place="finalization", stack=("fault", "__del__")
    ),
    "native thread while the interpreter ends": Context(
        SOME,
        place="thread_during_finalization",
        stack=(),
        without=NO_ALTERNATE_STACK,
    ),
    "forked child": Context(
        place="forked_child", stack=("fault", "forked_child", *IN_MAIN), record=CHILD
    ),
    "child of a raw clone": Context(
        SOME,
        place="raw_clone_child",
        stack=("fault", "raw_clone_child", *IN_MAIN),
        record=CHILD,
    ),
    "child in its parent's memory": Context(
        SOME, place="vfork_child", stack=("vfork_child", *IN_MAIN), record=CHILD
    ),
    "child of a child": Context(
        place="grandchild",
        stack=("fault", "forked_child", "grandchild", *IN_MAIN),
        record=CHILD,
    ),
    "child of a thread": Context(
        place="child_of_a_thread",
        stack=("fault", "forked_child", *IN_THREAD),
        record=CHILD,
    ),
    "worker of multiprocessing": Context(
        place="pool_worker", stack=("fault", "run", "pool_worker"), record=CHILD
    ),
    "another interpreter": Context(
        SOME, place="sub_interpreter", stack=IN_ANOTHER_INTERPRETER
    ),
    "beside another interpreter": Context(
        SOME, place="beside_a_sub_interpreter", exact=False
    ),
    "coroutine": Context(
        place="coroutine", stack=("fault", "waits", "run", "coroutine", *IN_MAIN)
    ),
    "executor of a coroutine": Context(
        SOME, place="task_in_executor", stack=("fault", *IN_THREAD), exact=False
    ),
    "generator": Context(
        place="generator", stack=("fault", "produces", "generator", *IN_MAIN)
    ),
    "exec of a string": Context(
        place="executed",
        stack=("fault", "of_a_string", "<module>", "executed", *IN_MAIN),
    ),
    "import of a module": Context(
        place="during_import",
        stack=("fault", "at_import", "<module>", "during_import", *IN_MAIN),
    ),
    "constructor of a library, loader locked": Context(
        TWO, place="during_load", stack=("during_load", *IN_MAIN)
    ),
    "callback of the collector": Context(
        place="collector_callback",
        stack=("fault", "collecting", "collector_callback", *IN_MAIN),
    ),
    "__del__": Context(
        place="finalizer", stack=("fault", "__del__", "finalizer", *IN_MAIN)
    ),
    "trace function": Context(
        place="trace_function", stack=("fault", "tracing", "trace_function", *IN_MAIN)
    ),
    "exception in flight": Context(
        place="exception_handler", stack=("fault", "exception_handler", *IN_MAIN)
    ),
    "body of a class": Context(
        place="class_body", stack=("fault", "InItsBody", "class_body", *IN_MAIN)
    ),
    "deep Python stack": Context(
        SOME, place="deep_python_stack", stack=("fault", "deeper")
    ),
    "deep native stack": Context(
        SOME, place="deep_native_stack", stack=("deep_native_stack", *IN_MAIN)
    ),
    "names outside ASCII": Context(
        SOME, place="non_ascii_names", stack=("fault", r"gr\xf6\xdfer", *IN_MAIN)
    ),
    "name of the thread outside ASCII": Context(
        SOME,
        place="thread_with_odd_name",
        stack=("fault", "named", *IN_THREAD),
        exact=False,
    ),
    "20 other threads": Context(steps=("threads:20",), exact=False),
    "150 other threads": Context(SOME, steps=("threads:150",), exact=False),
    "500 native threads": Context(TWO, steps=("sleepers:500:16384",)),
    # Alone: faulthandler's dump of all threads faults now and then, with or without us.
    "threads start and end": Context(SOME, steps=("churn:3",), under=BARE),
    "threads inside malloc": Context(
        (*SOME, "fault inside malloc", "free of a free block"),
        steps=("daemon_in_malloc:3",),
    ),
    "thread that collects garbage": Context(
        SOME, steps=("collect_for_ever",), exact=False
    ),
    "signals blocked in other threads": Context(
        SOME, steps=("block_signals:1", "sleepers:2:65536", "block_signals:0")
    ),
    "signals blocked in this thread": Context(
        TWO,
        steps=("block_signals:1",),
        # abort(3) lets its signal through.
        without={
            "read of a null pointer": "the kernel calls no handler for a blocked fault"
        },
    ),
    "timer of a thousand signals a second": Context(SOME, steps=("tick",)),
    "one processor": Context(SOME, steps=("one_processor", "threads:5"), exact=False),
    "descriptors closed": Context(steps=("close_all",)),
    "descriptors closed and taken": Context(SOME, steps=("close_all", "reopen_all")),
    "descriptors used up": Context(SOME, steps=("use_up_descriptors",)),
    "standard descriptors closed": Context(SOME, steps=("close_standard",)),
    "working directory changed": Context(
        SOME, steps=("chdir:elsewhere",), around="relative"
    ),
    "working directory removed": Context(SOME, steps=("remove_own_directory",)),
    "environment cleared": Context(SOME, steps=("clear_environment",)),
    "umask 0777": Context(SOME, steps=("umask:777",)),
    "no more memory to map": Context(TWO, steps=("limit_memory",)),
    "no more processes": Context(SOME, steps=("limit_processes",)),
    # Of a signal that is sent the kernel then forgets by whom.
    "no more pending signals": Context(
        ("read of a null pointer", "illegal instruction"),
        steps=("threads:2", "limit_signals"),
    ),
    "not dumpable": Context(SOME, steps=("undumpable",)),
    "reading of memory refused": Context(
        ("read of a null pointer", "abort", "illegal instruction"),
        steps=("refuse_memory_reads",),
    ),
    "alternate stack of another library": Context(
        SOME, steps=("set_alternate_stack:65536",)
    ),
    "small alternate stack of another library": Context(
        TWO, steps=("set_alternate_stack:16384",), under=BARE
    ),
    "smallest alternate stack of another library": Context(
        TWO,
        steps=("set_alternate_stack:8192",),
        under=BARE,
        without={"*": "the handler does not fit"},
    ),
    "alternate stack that is too small for any handler": Context(
        SOME,
        steps=("set_alternate_stack:4096",),
        under=BARE,
        without={"*": "the handler does not fit"},
    ),
    "faulthandler enabled before": Context(before=("enable",)),
    "faulthandler enabled after": Context(steps=("enable",)),
    "faulthandler enabled after, alone": Context(steps=("enable",), under=BARE),
    "faulthandler disabled": Context(SOME, steps=("disable",)),
    "a handler before that raises again": Context(
        ("read of a null pointer", "kill by itself"), before=("install:4:11",)
    ),
    "a handler before that asks a thread": Context(
        ("read of a null pointer",), before=("install:3:11",)
    ),
    "a handler after that calls ours": Context(
        ("read of a null pointer",),
        steps=("install:2:11",),
        under=BARE,
    ),
    "a handler before that exits": Context(
        ("read of a null pointer",), before=("install:5:11",)
    ),
    "firstfault twice": Context(SOME, under=("torch_handler", "firstfault_twice")),
    "torch's record inside": Context(
        TWO,
        under=("torch", "torch_in_firstfault"),
    ),
    "torch's record around": Context(
        TWO,
        under=("torch", "firstfault_in_torch"),
    ),
    "error file present and empty": Context(SOME, around="empty_file"),
    "error file of an earlier run": Context(SOME, around="old_file", keeps=True),
    "error file of another process": Context(
        SOME, steps=("other_record:firstfault",), record=BESIDE
    ),
    "error file of another recorder": Context(
        SOME, steps=("other_record:message",), keeps=True
    ),
    "user 65534": Context(SOME, steps=("become_nobody",), around="open_directory"),
    "user 65534 from the start": Context(
        SOME, before=("become_nobody",), under=BARE, around="open_directory"
    ),
    "root changed": Context(
        TWO,
        steps=("change_root:/proc/self/cwd",),
        without={"*": "the path leads nowhere under the new root"},
    ),
    "first process of a PID namespace": Context(
        SOME,
        around="process_namespace",
        instead=dict.fromkeys(
            ("abort", "C++ exception"),
            (
                Fault("", SIGSEGV, "SI_KERNEL", "abort() as process 1"),
                "the kernel ignores what the first process sends to itself, so abort"
                " ends it by a fault",
            ),
        ),
    ),
    "no /dev/shm": Context(SOME, around="no_shared_memory"),
    "no /proc": Context(SOME, around="no_proc"),
    "tmpfs": Context(SOME, around="tmpfs"),
    "disk full": Context(TWO, around="full_disk", record=SPARED),
    "directory read-only": Context(TWO, around="read_only", record=SPARED),
    "no file may grow": Context(
        TWO,
        steps=("no_large_files",),
        without={"*": "RLIMIT_FSIZE allows 100 bytes"},
    ),
    "firstfault switched off": Context(
        TWO,
        under=("nothing", "firstfault"),
        around="switched_off",
        without={"*": "FIRSTFAULT_DISABLE is set"},
    ),
}


@dataclass(frozen=True)
class Row:
    """One fault in one context."""

    context: str
    fault: str
    # Every fault in the main thread, and the first fault of each context.
    is_quick: bool
    # Whether the full matrix compares core dumps: they take longer than all the rest.
    has_core: bool


def rows() -> Iterator[Row]:
    """Yield the rows of the matrix."""
    for context, details in CONTEXTS.items():
        for number, fault in enumerate(details.faults):
            is_first = number == 0 or context == "main thread"
            is_slow = fault == "limit of processor time" or "torch" in context
            is_quick = is_first and not is_slow
            yield Row(context, fault, is_quick, fault in DUMPED)
