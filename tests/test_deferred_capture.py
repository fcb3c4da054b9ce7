"""What a rank defers in memory: the first error, the count, what is raised at once."""

import asyncio
import concurrent.futures
import logging
from collections.abc import Callable
from typing import Any

import pytest

from firstfault.deferred import (
    AgreementError,
    Deferred,
    DeferredErrors,
    RemoteDeferredError,
    has_deferred_error,
    raise_if_deferred_error,
    suppress_errors,
    try_or_defer,
)

FULL = OSError(28, "No space left on device")


def raises(error: BaseException) -> Any:
    """Raise this."""
    raise error


def test_the_first_error_is_kept_itself_and_later_ones_are_counted(
    errs: Deferred,
) -> None:
    assert not errs.pending
    errs.step(17)
    first = OSError(28, "No space left on device")
    with errs.defer("metadata"):
        raise first
    assert errs.call(raises, ValueError("x"), default="none") == "none"

    @errs.guard("hook")
    def hook(value: int) -> int:
        """Do something."""
        return 7 // value

    assert (hook(1), hook(0)) == (7, None)
    assert hook.__doc__ == "Do something."
    errs.capture(KeyError("k"), "thread")
    assert errs.first is first
    assert (errs.pending, errs.suppressed) == (True, 3)
    captured = errs._captured
    assert captured is not None
    assert (captured.where, captured.step) == ("metadata", 17)


def test_what_goes_well_is_returned_and_defers_nothing(errs: Deferred) -> None:
    with errs.defer("metadata"):
        pass
    assert errs.call(int, "7", base=8) == 7
    assert (errs.pending, errs.first, errs.suppressed) == (False, None, 0)
    errs.finish()


def test_each_error_is_logged_at_once_the_first_with_its_traceback(
    errs: Deferred,
    caplog: pytest.LogCaptureFixture,
) -> None:
    errs.step(3)
    with caplog.at_level(logging.ERROR, "firstfault"):
        errs.call(raises, ValueError("one"))
        first = caplog.messages[-1]
        errs.call(raises, ValueError("two"))
        second = caplog.messages[-1]
    assert first.startswith('deferred at step 3 in "raises": Traceback (most recent')
    assert first.endswith("ValueError: one")
    assert second == (
        'deferred at step 3 in "raises": ValueError: two (number 1 after the first)'
    )


class Wrapping(Exception):
    """One that is raised from another."""


def chained(cause: BaseException) -> Exception:
    """Return an error that has this cause."""
    error = Wrapping("step failed")
    error.__cause__ = cause
    return error


def dist_error(name: str) -> BaseException:
    """Return an error of torch.distributed."""
    import torch.distributed as dist

    error: BaseException = getattr(dist, name)("it broke")
    return error


def accelerator_error() -> BaseException:
    """Return an error of a device, which only torch itself can make with a code."""
    import torch

    return torch.AcceleratorError.__new__(torch.AcceleratorError, "CUDA error: x")


def checkpoint_error() -> BaseException:
    """Return what a failed collective checkpoint raises: no `Exception`."""
    from torch.distributed.checkpoint import CheckpointException

    return CheckpointException("save", {})


AT_ONCE: dict[str, Callable[[], BaseException]] = {
    "Ctrl-C": KeyboardInterrupt,
    "exit": lambda: SystemExit(1),
    "exit 0": lambda: SystemExit(0),
    "generator": GeneratorExit,
    "task": asyncio.CancelledError,
    "future": concurrent.futures.CancelledError,
    "communicator": lambda: dist_error("DistBackendError"),
    "network": lambda: dist_error("DistNetworkError"),
    "store": lambda: dist_error("DistStoreError"),
    "any of torch.distributed": lambda: dist_error("DistError"),
    "device": accelerator_error,
    "checkpoint": checkpoint_error,
    "agreement": lambda: AgreementError("lost rank 2"),
    "deferred": lambda: DeferredErrors("x", {1: RemoteDeferredError(1, "E", "x")}),
    "gloo lost": lambda: RuntimeError("[/g/pair.cc] Connection closed by peer [1]:2"),
    "gloo late": lambda: RuntimeError(
        "[/g/u.cc:78] Timed out waiting 80ms for recv operation to complete"
    ),
    "device by text": lambda: RuntimeError("CUDA error: device-side assert triggered"),
    "cause": lambda: chained(dist_error("DistBackendError")),
    "cause of no exception": lambda: chained(SystemExit(0)),
    "member": lambda: ExceptionGroup("two", [ValueError(), AgreementError("x")]),
}


@pytest.mark.parametrize("which", AT_ONCE)
def test_what_may_leave_the_ranks_apart_is_raised_at_once(
    errs: Deferred, which: str
) -> None:
    error = AT_ONCE[which]()
    with pytest.raises(type(error)) as raised, errs.defer("x"):
        raise error
    assert raised.value is error
    with pytest.raises(type(error)):
        errs.capture(error, "x")
    assert not errs.pending


@pytest.mark.parametrize(
    "error",
    [
        FULL,
        ConnectionResetError(104, "Connection reset by peer"),
        RuntimeError("unexpected pos 704 vs 598"),
        MemoryError(),
        chained(FULL),
        ExceptionGroup("two", [FULL, ValueError("x")]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_is_the_ranks_own_may_wait(errs: Deferred, error: Exception) -> None:
    with errs.defer("x"):
        raise error
    assert errs.first is error


def test_without_a_process_group_the_rank_stops_alone(errs: Deferred) -> None:
    assert not errs.should_stop()
    with errs.defer("metadata"):
        raise FULL
    assert [errs.should_stop() for _ in range(3)] == [True] * 3
    with pytest.raises(DeferredErrors) as raised:
        errs.finish()
    assert raised.value.failures == {0: FULL}
    errs.finish()  # Once only.


def test_an_error_that_leaves_the_block_carries_the_deferred_one_as_its_note() -> None:
    error = ValueError("of the trunk")

    def train() -> None:
        with Deferred() as errs:
            errs.call(raises, FULL)
            raise error

    with pytest.raises(ValueError, match="of the trunk") as raised:
        train()
    assert raised.value is error
    assert any("raises" in note for note in error.__notes__)


def test_functions_raise_on_the_rank_that_failed_and_clear() -> None:
    raise_if_deferred_error()
    assert try_or_defer(int, "7") == 7
    assert not has_deferred_error()
    assert try_or_defer(raises, FULL) is None
    assert try_or_defer(int, "x") is None
    assert has_deferred_error()
    with pytest.raises(OSError, match="No space left") as raised:
        raise_if_deferred_error()
    assert raised.value is FULL
    assert any("1 more" in note for note in FULL.__notes__)
    assert not has_deferred_error()
    raise_if_deferred_error()
    with pytest.raises(SystemExit):
        try_or_defer(raises, SystemExit(0))


def test_suppressed_errors_are_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert suppress_errors(int, "7") == 7
    with caplog.at_level(logging.WARNING, "firstfault"):
        assert suppress_errors(raises, AgreementError("x")) is None
    assert caplog.messages == ["suppressed in raises: AgreementError: x"]
    with pytest.raises(KeyboardInterrupt):
        suppress_errors(raises, KeyboardInterrupt())
    assert not has_deferred_error()
