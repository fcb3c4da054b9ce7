"""What activation puts into Python itself, once in a process."""

from __future__ import annotations

import faulthandler
import os
import sys

from firstfault import _native
from firstfault._exception import headline
from firstfault._text import cut, encode
from firstfault._wrapping import wraps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_installed: set[str] = set()

NOTED_LIMIT = 8
MESSAGE_BYTES = 1000

_noted: list[tuple[int, dict[str, object]]] = []
"""Of each exception that ended no more than its thread, or that nobody could handle:
the process, and what a later record says of it."""


def install() -> None:
    """Install what is not installed yet.

    What is about threads waits until the program has loaded ``threading``: doing that
    for a program without threads would cost more than all the rest. So does what is
    about process groups wait for torch.
    """
    if "process" not in _installed:
        _installed.add("process")
        os.register_at_fork(after_in_child=_after_fork)
        _listen_for_unraisable()
        _outlive_faulthandler()
    threading = sys.modules.get("threading")
    if "threads" not in _installed and hasattr(threading, "excepthook"):
        _installed.add("threads")
        _give_alternate_stacks(threading)
        _listen_to_threads(threading)
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if "groups" not in _installed and hasattr(c10d, "_update_default_pg"):
        _installed.add("groups")
        _note_process_groups(c10d)


def _after_fork() -> None:
    """Leave requests to end to the parent, and stay above what torch installs."""
    _native.after_fork()
    try:
        _stay_above_loader()
    except Exception:
        return  # A worker without a record of its crash is as good as without us.


def _stay_above_loader() -> None:
    """Put our handlers back once a worker of a ``DataLoader`` has set its own.

    A worker calls this function of torch's as its first, by its name in its module.
    Source: torch/utils/data/_utils/worker.py
    """
    module: Any = sys.modules.get("torch.utils.data._utils.signal_handling")
    original = getattr(module, "_set_worker_signal_handlers", None)
    if original is None or hasattr(original, "firstfault"):
        return

    def set_worker_signal_handlers(*args: object) -> None:
        original(*args)
        _reassert()

    set_worker_signal_handlers.firstfault = True  # type: ignore[attr-defined]
    module._set_worker_signal_handlers = set_worker_signal_handlers


def _outlive_faulthandler() -> None:
    """Put our handlers back whenever the program switches `faulthandler` on or off.

    ``enable`` puts its own above ours. ``disable`` puts back what was there before it
    was enabled, and so takes ours away where these came later, as in `record`.
    """

    def staying(switch: Any) -> Any:
        @wraps(switch)
        def switching(*args: Any, **kwargs: Any) -> Any:
            held = _native.held()
            try:
                return switch(*args, **kwargs)
            finally:
                _reassert(held)

        return switching

    for name in ("enable", "disable"):
        setattr(faulthandler, name, staying(getattr(faulthandler, name)))


def _reassert(held: int = 0) -> None:
    try:
        _native.reassert(held)
    except Exception:
        return  # The program is worth more than the record of its end.


def noted() -> list[dict[str, object]]:
    """Return the exceptions that this process survived unrecorded, the first first."""
    return [entry for pid, entry in _noted if pid == os.getpid()]


def _listen_for_unraisable() -> None:
    """Note what passes the hook of exceptions that nobody can handle.

    A program that sets its own hook later replaces this one as it would the old one.
    """
    previous = sys.unraisablehook

    def unraisablehook(unraisable: Any, /) -> None:
        said = unraisable.err_msg or "Exception ignored in"
        _note(unraisable.exc_value, unraisable.exc_type, said)
        previous(unraisable)

    sys.unraisablehook = unraisablehook


def _listen_to_threads(threading: Any) -> None:
    """Note the exceptions that end a thread, in the same way."""
    previous = threading.excepthook

    def excepthook(args: Any, /) -> None:
        if args.exc_type is not SystemExit:
            name = getattr(args.thread, "name", "?")
            _note(args.exc_value, args.exc_type, f"thread {name!r}")
        previous(args)

    threading.excepthook = excepthook


def _note(e: BaseException | None, cls: type[BaseException], where: str) -> None:
    """Keep texts alone: the exception holds all that its frames hold."""
    try:
        entry: dict[str, object] = {
            "kind": "exception",
            "message": cut(headline(cls() if e is None else e), MESSAGE_BYTES)[0],
            "time_ns": _native.clock()[0],
            "where": cut(where, MESSAGE_BYTES)[0],
        }
        if len(noted()) < NOTED_LIMIT:
            _noted.append((os.getpid(), entry))
            _native.precede(encode(entry))
    except Exception:
        return  # The program's own hook tells of it; a record can do without.


def _give_alternate_stacks(threading: Any) -> None:
    """Let each thread that starts from now on have room to record its own overflow.

    `_set_native_id` is the first of its own methods that a thread calls, and returns
    before the thread's work begins: no frame of ours is in its stacks. The system takes
    the room back as the thread ends.
    """
    cls = threading.Thread
    original = cls._set_native_id
    give = _native.give_alternate_stack

    def _set_native_id(self: object) -> None:
        original(self)
        try:
            give()
        except Exception:
            return  # The thread is worth more than the record of its end.

    cls._set_native_id = _set_native_id


def _note_process_groups(c10d: Any) -> None:
    """Leave a breadcrumb whenever the program's default process group is there.

    ``init_process_group`` calls this function of torch's by its name in its module once
    the group is made, and nothing below it: no frame of ours is in its stacks.
    Source: torch/distributed/distributed_c10d.py
    """
    original = c10d._update_default_pg

    def _update_default_pg(pg: Any) -> None:
        original(pg)
        if pg is None:
            return
        try:
            backend = c10d.get_backend(pg)
            if backend == "undefined":  # One for each kind of device.
                backend = c10d.get_backend_config(pg)
            _native.breadcrumb("process_group", f"{backend}/{pg.size()}")
        except Exception:
            return  # The group is worth more than what is said of it.

    c10d._update_default_pg = _update_default_pg
