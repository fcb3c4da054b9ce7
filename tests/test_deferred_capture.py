"""What a rank defers in memory: the first error, the count, what is raised at once."""

import asyncio
import concurrent.futures
import gc
import logging
import pickle
import threading
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
from firstfault.deferred._collectives import open_scopes
from firstfault.deferred._record import Captured, remote, summary

FULL = OSError(28, "No space left on device")


def raises(error: BaseException) -> Any:
    """Raise this."""
    raise error


def test_the_first_error_is_kept_itself_and_later_ones_are_counted() -> None:
    errs = Deferred()
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


def test_what_goes_well_is_returned_and_defers_nothing() -> None:
    errs = Deferred()
    with errs.defer("metadata"):
        pass
    assert errs.call(int, "7", base=8) == 7
    assert (errs.pending, errs.first, errs.suppressed) == (False, None, 0)
    errs.finish()


def test_each_error_is_logged_at_once_the_first_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    errs = Deferred()
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
def test_what_may_leave_the_ranks_apart_is_raised_at_once(which: str) -> None:
    errs = Deferred()
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
def test_what_is_the_ranks_own_may_wait(error: Exception) -> None:
    errs = Deferred()
    with errs.defer("x"):
        raise error
    assert errs.first is error


def test_threads_capture_at_the_same_time() -> None:
    errs = Deferred()
    barrier = threading.Barrier(8)

    def fail(number: int) -> None:
        barrier.wait()
        for _ in range(50):
            with errs.defer(f"thread {number}"):
                raise ValueError(number)

    threads = [threading.Thread(target=fail, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errs.suppressed == 8 * 50 - 1
    assert isinstance(errs.first, ValueError)


def test_an_error_captured_by_what_interrupts_a_capture_does_not_deadlock() -> None:
    errs = Deferred()

    class Finalized:
        def __del__(self) -> None:
            errs.capture(ValueError("in a finalizer"), "finalizer")

    with errs._changed:  # As where a capture is under way on this thread.
        Finalized()
        gc.collect()
    assert errs.pending


def test_the_errors_of_futures_count_also_after_the_loop() -> None:
    errs = Deferred()
    go = threading.Event()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        done = pool.submit(raises, ValueError("before"))
        concurrent.futures.wait([done])
        errs.watch(done, "done")
        assert isinstance(errs.first, ValueError)
        late = pool.submit(lambda: go.wait() and raises(FULL))
        errs.watch(late, "upload")
        cancelled: concurrent.futures.Future[None] = concurrent.futures.Future()
        errs.watch(cancelled)
        cancelled.cancel()
        assert errs.suppressed == 0
        threading.Timer(0.05, go.set).start()
        with pytest.raises(DeferredErrors):
            errs.finish()
        assert errs.suppressed == 1


def test_a_future_that_does_not_end_is_an_error_too() -> None:
    errs = Deferred(deadline=0.1)
    errs.watch(concurrent.futures.Future())
    with pytest.raises(DeferredErrors, match="1 watched futures not done within"):
        errs.finish()


def test_a_future_whose_error_cannot_wait_raises_it_on_the_trunk() -> None:
    errs = Deferred()
    future: concurrent.futures.Future[None] = concurrent.futures.Future()
    errs.watch(future, "save")
    future.set_exception(error := checkpoint_error())
    with pytest.raises(type(error)) as raised:
        errs.should_stop()
    assert raised.value is error
    assert not errs.pending


def test_futures_of_torch_and_of_tasks_are_watched() -> None:
    import torch

    errs = Deferred()
    future: Any = torch.futures.Future()
    errs.watch(future, "torch")
    future.set_exception(ValueError("of torch"))
    assert "of torch" in str(errs.first)

    async def main() -> None:
        task = asyncio.create_task(asyncio.sleep(0))
        failing = asyncio.get_running_loop().create_future()
        errs.watch(task, "task")
        errs.watch(failing, "failing")
        failing.set_exception(KeyError("of asyncio"))
        await task
        await asyncio.sleep(0)

    asyncio.run(main())
    assert errs.suppressed == 1


def test_scopes_of_tasks_end_in_any_order() -> None:
    errs = Deferred()
    seen = []

    @errs.guard("outer")
    async def outer(inside: asyncio.Event, leave: asyncio.Event) -> None:
        inside.set()
        await leave.wait()
        raise ValueError("outer")

    @errs.guard("inner")
    async def inner(leave: asyncio.Event) -> None:
        leave.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        seen.append(dict(open_scopes))
        raise KeyError("inner")

    async def main() -> None:
        inside, leave = asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(outer(inside, leave))
        await inside.wait()
        await asyncio.create_task(inner(leave))
        await first

    asyncio.run(main())
    assert [len(scopes) for scopes in seen] == [1]
    assert open_scopes == {}
    assert (type(errs.first), errs.suppressed) == (ValueError, 1)


class Unpicklable(Exception):
    """Its text cannot be made, nor can it be pickled."""

    def __str__(self) -> str:
        raise KeyError("no text")

    def __reduce__(self) -> str:
        raise TypeError("no pickle")


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (Unpicklable(), "<str() raised KeyError>"),
        (ValueError("é\N{PARTY POPPER}" * 100_000), "bytes cut"),
        (ValueError(b"\xff\xfe".decode("utf-8", "surrogateescape")), "\\udcff\\udcfe"),
        (ValueError("a\nb\x00c"), "a\nb\x00c"),
    ],
    ids=["unpicklable", "huge", "not UTF-8", "control"],
)
def test_whatever_an_error_says_its_peers_get_bounded_text(
    error: Exception, part: str
) -> None:
    errs = Deferred()
    errs.step(17)
    with errs.defer("w\udcff" * 1000):
        raise error
    captured = errs._captured
    assert captured is not None
    texts = captured.texts()
    assert part in texts["message"]
    texts["message"].encode()
    assert len(pickle.dumps(texts)) < 8 * 1024
    peer = remote(3, texts)
    assert (peer.rank, peer.step, peer.type) == (3, 17, type(error).__name__)
    assert part in str(peer)
    line = summary({0: error}, captured)
    assert "\n" not in line
    assert len(line.encode()) < 2048


def test_the_summary_names_the_ranks_and_the_first_of_the_errors() -> None:
    captured = Captured(FULL, "metadata", 17)
    peers = {
        rank: RemoteDeferredError(rank, "E", "x", where="hook") for rank in range(1, 30)
    }
    own = (
        'OSError: [Errno 28] No space left on device, deferred at step 17 in "metadata"'
    )
    assert summary({0: FULL}, captured) == f"rank 0 failed: {own}"
    assert summary({4: peers[4]}, None) == 'rank 4 failed: E: x, deferred in "hook"'
    several = summary({0: FULL} | peers, captured)
    assert several.startswith("ranks 0, 1, 2, ")
    assert several.endswith(f"15 and 14 more failed: first of them {own}")


def test_the_group_is_split_matched_and_pickled_with_its_ranks() -> None:
    peer = RemoteDeferredError(1, "OSError", "x", "tb", where="metadata", step=17)
    errors = DeferredErrors("two ranks failed", {0: FULL, 1: peer}, 18)
    assert errors.own is FULL
    copy = pickle.loads(pickle.dumps(errors))
    assert (copy.message, copy.stopped_at) == (errors.message, 18)
    assert (copy.failures[1].step, str(copy.failures[1])) == (17, str(peer))
    handled = []

    def handle() -> None:
        try:
            raise errors
        except* OSError as group:
            handled.append(group)

    with pytest.raises(DeferredErrors) as left:
        handle()
    assert isinstance(handled[0], DeferredErrors)
    assert (handled[0].failures, left.value.failures) == ({0: FULL}, {1: peer})
    assert left.value.stopped_at == 18


def test_without_a_process_group_the_rank_stops_alone() -> None:
    errs = Deferred()
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
