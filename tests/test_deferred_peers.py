"""What the peers are told of a deferred error, whatever it is, on real ranks."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from firstfault.deferred import Deferred, DeferredErrors, RemoteDeferredError
from process_groups import run_ranks

STEPS = 5


class Unpicklable(Exception):
    """One that cannot be pickled, nor printed."""

    def __str__(self) -> str:
        raise KeyError("no text")

    def __reduce__(self) -> str:
        raise TypeError("no pickle")


ERRORS = {
    "unpicklable": lambda: Unpicklable(threading.Lock()),
    "huge": lambda: ValueError("é" * 5_000_000),
    "not UTF-8": lambda: OSError(b"/data/\xff".decode("utf-8", "surrogateescape")),
    "none": lambda: ValueError(),
}
SAID = {
    "unpicklable": "Unpicklable: <str() raised KeyError>",
    "huge": "bytes cut",
    "not UTF-8": "/data/\\udcff",
    "none": "ValueError",
}


def fail_on_rank_1(which: str) -> tuple[int, str, int | None]:
    """Train; rank 1 defers this error in step 2."""
    rank = int(os.environ["RANK"])
    errs = Deferred()
    stopped = None
    for step in range(STEPS):
        errs.step(step)
        if rank == 1 and step == 2:
            with errs.defer("metadata"):
                raise ERRORS[which]()
        if errs.should_stop():
            stopped = step
            break
    with pytest.raises(DeferredErrors) as raised:
        errs.finish()
    assert list(raised.value.failures) == [1]
    error = raised.value.failures[1]
    if rank == 1:
        assert error is errs.first
        return stopped or 0, "", None
    assert isinstance(error, RemoteDeferredError)
    assert (error.where, error.step, error.rank) == ("metadata", 2, 1)
    return stopped or 0, str(error), len(str(error).encode())


@pytest.mark.parametrize("which", ERRORS)
def test_the_peers_get_its_text_and_not_its_pickle(which: str) -> None:
    ranks = run_ranks(fail_on_rank_1, 3, which)
    assert [rank.status for rank in ranks] == [0, 0, 0], ranks[0].output
    steps = {rank.value[0] for rank in ranks}
    assert len(steps) == 1
    for rank in ranks[0], ranks[2]:
        _, text, size = rank.value
        assert SAID[which] in text
        assert size < 8 * 1024


def fail_after_the_loop() -> list[int]:
    """Train; what rank 0 does in a thread and in a future fails after the loop."""
    errs = Deferred()
    rank = int(os.environ["RANK"])
    loop_over = threading.Event()

    def upload() -> None:
        loop_over.wait()
        raise OSError(28, "No space left on device")

    def save() -> None:
        loop_over.wait()
        with errs.defer("save"):
            raise ValueError("after the loop")

    with ThreadPoolExecutor(1) as pool:
        thread = threading.Thread(target=save)
        if rank == 0:
            errs.watch(pool.submit(upload), "upload")
            thread.start()
        for step in range(STEPS):
            errs.step(step)
            assert not errs.should_stop()
        loop_over.set()
        if rank == 0:
            thread.join()
        with pytest.raises(DeferredErrors) as raised:
            errs.finish()
    assert errs.suppressed == (1 if rank == 0 else 0)
    return sorted(raised.value.failures)


def test_errors_of_threads_and_futures_after_the_loop_end_every_rank() -> None:
    ranks = run_ranks(fail_after_the_loop, 3)
    assert [rank.value for rank in ranks] == [[0]] * 3, ranks[0].output
