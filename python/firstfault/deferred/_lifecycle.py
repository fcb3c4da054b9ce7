"""A whole training run: what surrounds the loop, and both ways out of it."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

from firstfault._exception import headline
from firstfault._notices import WARNING, log
from firstfault.deferred import _finish
from firstfault.deferred._deferred import Deferred
from firstfault.deferred._exchange import any_rank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import Any


@contextmanager
def training_run(
    *,
    tracker: Callable[[], AbstractContextManager[Any]] | None = None,
    post_train: Callable[[], object] | None = None,
    group: Any = None,
    deadline: float = 30.0,
    strict: bool = False,
    hard_exit_after: float | None = None,
) -> Iterator[Deferred]:
    """Surround the training loop; yields the `Deferred` that it is to use.

    Every rank walks the same way: the block, then `Deferred.finish`, or the emergency
    way where an error leaves the block. On rank 0 the tracker's context spans all that,
    and `post_train` after it, so that the tracked run fails when anything did: an error
    that was deferred on any rank, one that left the block, one of `post_train`. What
    the tracker itself does on its way out neither hides nor replaces that error.

    Use it where the process group exists already. A tracker that cannot be started is
    a deferred error in "tracker", and no rank enters the block.

    Args:
        tracker: Makes the context manager of an experiment tracker, on rank 0 only.
        post_train: What follows a successful training when the process group is gone
            and nobody can wait for this rank, on rank 0 only.
        group: As `Deferred`, as the rest.
        deadline: As `Deferred`.
        strict: As `Deferred`.
        hard_exit_after: As `Deferred`.

    Raises:
        DeferredErrors: A rank deferred an error; on every rank.
    """
    errs = Deferred(
        group=group, deadline=deadline, strict=strict, hard_exit_after=hard_exit_after
    )
    is_first = _finish.own_rank() == 0
    failure: BaseException | None = None
    try:
        with ExitStack() as stack:
            try:
                if tracker is not None and is_first:
                    _start(tracker, stack, errs)
                with errs:
                    if any_rank(errs.pending, group):
                        errs.finish()
                    yield errs
                if post_train is not None and is_first:
                    post_train()
            except BaseException as error:
                failure = error
                raise
    except BaseException as error:
        if failure is None or error is failure:
            raise
        log(WARNING, "suppressed while leaving: the tracker: %s", headline(error))
    if failure is not None:
        raise failure


def _start(
    tracker: Callable[[], AbstractContextManager[Any]], stack: ExitStack, errs: Deferred
) -> None:
    """Enter the tracker's context; with peers, its error waits for them."""
    try:
        with errs.defer("tracker"):
            stack.enter_context(tracker())
    except BaseException as error:
        _finish.emergency(errs, error)
        raise
