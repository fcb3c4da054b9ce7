"""What threads, futures and tasks of a rank defer."""

import asyncio
import concurrent.futures
import gc
import threading
from typing import Any

import pytest

from firstfault.deferred import (
    Deferred,
    DeferredErrors,
)
from firstfault.deferred._collectives import open_scopes
from test_deferred_capture import FULL, checkpoint_error, raises


def test_threads_capture_at_the_same_time(errs: Deferred) -> None:
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


def test_an_error_captured_by_what_interrupts_a_capture_does_not_deadlock(
    errs: Deferred,
) -> None:

    class Finalized:
        def __del__(self) -> None:
            errs.capture(ValueError("in a finalizer"), "finalizer")

    with errs._changed:  # As where a capture is under way on this thread.
        Finalized()
        gc.collect()
    assert errs.pending


def test_the_errors_of_futures_count_also_after_the_loop(
    errs: Deferred, caplog: pytest.LogCaptureFixture
) -> None:
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
        assert "not done within" not in caplog.text


def test_a_future_that_does_not_end_is_an_error_too() -> None:
    errs = Deferred(deadline=0.1)
    errs.watch(concurrent.futures.Future())
    with pytest.raises(DeferredErrors, match="1 watched futures not done within"):
        errs.finish()


def test_a_future_whose_error_cannot_wait_raises_it_on_the_trunk(
    errs: Deferred,
) -> None:
    future: concurrent.futures.Future[None] = concurrent.futures.Future()
    errs.watch(future, "save")
    future.set_exception(error := checkpoint_error())
    with pytest.raises(type(error)) as raised:
        errs.should_stop()
    assert raised.value is error
    assert not errs.pending


def test_futures_of_torch_and_of_tasks_are_watched(errs: Deferred) -> None:
    import torch

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


def test_scopes_of_tasks_end_in_any_order(errs: Deferred) -> None:
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
