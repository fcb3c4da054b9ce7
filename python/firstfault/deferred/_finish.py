"""How a run ends: in order, together with all ranks, or by the emergency way."""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading

from firstfault._exception import class_name, exit_status, headline
from firstfault._notices import ERROR, WARNING, log
from firstfault._text import cut
from firstfault.deferred._errors import AgreementError, DeferredErrors, deferred_at
from firstfault.deferred._exchange import Deadline, Exchange, has_peers
from firstfault.deferred._record import MESSAGE_BYTES, summary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from firstfault.deferred._deferred import Deferred
    from firstfault.deferred._record import Captured


def finish(deferred: Deferred) -> None:
    """End the agreement and the process group; raise if any rank deferred an error.

    The sequence is the same whether anybody failed or not, on every rank: agree whether
    one failed, gather the texts if one did, end the agreement, meet in a barrier,
    destroy the process group. Only then is raised, when no rank can wait for another.

    Raises:
        DeferredErrors: A rank deferred an error.
        AgreementError: A peer was lost; this rank has left by the emergency way.
    """
    if deferred._is_finished:
        return
    try:
        failures = _agree(deferred)
    except BaseException as error:
        emergency(deferred, error)
        raise
    with deferred._changed:  # A thread's error is raised here or there.
        deferred._is_finished = True
        late = deferred._captured
        deferred._is_over = late is None and not failures
    deferred._taken()
    if late is not None and all(late.error is not e for e in failures.values()):
        # Of a thread, since the ranks have agreed: the peers can no longer be told.
        failures[own_rank()] = late.error
    if not deferred._is_forked() and not _within(deferred._deadline, _destroy):
        log(WARNING, "the process group was not destroyed within its deadline")
    if failures:
        raise _errors_of(failures, deferred)


def emergency(deferred: Deferred, error: BaseException) -> None:
    """Leave because of an error that cannot wait: peers may be anywhere.

    It is recorded before anything is tried that may hang, nothing waits for a peer, and
    errors on the way are only logged. Afterwards the caller raises it; an error that
    was deferred before becomes a note of it.

    Raises:
        DeferredErrors: An error is pending and `error` is an exit as of a success.
    """
    if deferred._is_finished:
        return
    deferred._is_finished = True
    deferred._taken()
    captured = deferred._captured
    if captured is not None:
        note = f"Before that, {_told(captured)}"
        _suppressed("the note", lambda: error.add_note(note))
    if not _is_success(error):
        _suppressed("the record", lambda: _record(error))
    if deferred._hard_exit_after is not None:
        _exit_hard_after(deferred._hard_exit_after)
    limit = Deadline(deferred._deadline)
    agreement = deferred._agreement
    if agreement is not None:
        _suppressed("the agreement", lambda: agreement.close(limit.left()))
    # A child's group is its parent's: both have the same connections.
    if not deferred._is_forked() and not _within(
        limit.left(), lambda: _suppressed("the process group", _abort)
    ):
        log(WARNING, "the process group could not be aborted within the deadline")
    if captured is not None and _is_success(error):
        failures: dict[int, Exception] = {own_rank(): captured.error}
        raise _errors_of(failures, deferred) from error


def _agree(deferred: Deferred) -> dict[int, Exception]:
    """Return the errors of all ranks, once every rank knows them."""
    deferred._await_watched(deferred._deadline)
    agreement, own = deferred._agreement, deferred._captured
    if deferred._is_forked() or not has_peers(deferred._group):
        if agreement is not None:
            agreement.finished()
            agreement.close(deferred._deadline)
            if own is None and deferred._is_stopped:
                raise AgreementError(
                    "a peer deferred an error, and the process group was destroyed "
                    "before `finish` could say which one"
                )
        return {} if own is None else {own_rank(): own.error}
    if agreement is not None:
        agreement.finished()
    exchange = Exchange(deferred._group)
    failed = exchange.anybody(own is not None)
    limit = Deadline(deferred._deadline)
    failures = exchange.failures(own, limit) if failed else {}
    # Before the barrier: whoever hosts the store may be gone right after it.
    if agreement is not None:
        agreement.close(limit.left())
    exchange.barrier(limit)
    return failures


def _errors_of(failures: dict[int, Exception], deferred: Deferred) -> DeferredErrors:
    message = summary(failures, deferred._captured)
    return DeferredErrors(message, failures, deferred.stopped_at)


def _told(captured: Captured) -> str:
    text = cut(headline(captured.error), MESSAGE_BYTES)[0]
    return f"{deferred_at(captured.where, captured.step)}: {text}"


def own_rank() -> int:
    """Return this process's rank: the group's, else the launcher's, else 0."""
    import os

    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        return int(distributed.get_rank())
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdecimal() else 0


def _destroy() -> None:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        distributed.destroy_process_group()


def _abort() -> None:
    """End the process group without waiting for what is under way in it."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_initialized():
        return
    # Not public yet; without it NCCL's own destruction may wait for its peers.
    abort = getattr(distributed.distributed_c10d, "_abort_process_group", None)
    (abort or distributed.destroy_process_group)()


def _within(seconds: float, act: Callable[[], object]) -> bool:
    """Do something in a thread that is left behind if it takes longer.

    Raises:
        BaseException: Whatever it raised.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="firstfault-finish", daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    return not thread.is_alive()


def _suppressed(what: str, act: Callable[[], object]) -> None:
    """Do something on the way out whose failure would hide the first one."""
    try:
        act()
    except Exception as error:
        log(WARNING, "suppressed while leaving: %s: %s", what, headline(error))


def _record(error: BaseException) -> None:
    """Write what is known by now: a process that hangs on its way out is killed."""
    log(ERROR, "leaving because of %s", class_name(type(error)))
    sys.modules["firstfault"].get_error_handler().record_exception(error)


def _is_success(error: BaseException) -> bool:
    return isinstance(error, GeneratorExit) or (
        isinstance(error, SystemExit) and exit_status(error) == 0
    )


def _exit_hard_after(seconds: float) -> None:
    """Let the process end by itself, with the stacks of all threads on stderr.

    The interpreter stops that timer on its way out, where destructors in C++ can still
    hang: SIGALRM ends what is left then.
    """
    faulthandler.dump_traceback_later(seconds, exit=True)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds + 1)
