"""A whole training run on real ranks: how it ends, and what its tracker says then."""

import os
from pathlib import Path
from types import TracebackType

import pytest

from firstfault.deferred import training_run
from process_groups import run_ranks


def rank() -> int:
    """Return this process's rank."""
    return int(os.environ["RANK"])


class Tracker:
    """A tracker as the real ones are, whose status is a file; it may misbehave."""

    def __init__(self, directory: str, habit: str) -> None:
        self.status = Path(directory) / "status"
        self.habit = habit

    def __enter__(self) -> None:
        if self.habit == "does not start":
            raise ConnectionError("no tracking server")
        self.status.write_text("RUNNING")

    def __exit__(
        self,
        cls: type[BaseException] | None,
        e: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self.status.write_text("FINISHED" if cls is None else "FAILED")
        if self.habit == "does not end":
            raise ConnectionError("no tracking server")
        return self.habit == "swallows"


def run(directory: str, way: str, culprit: int, habit: str) -> list[str]:
    """Train on this rank until something happens; return what was done."""
    import torch.distributed as dist

    done = []

    def post_train() -> None:
        assert not dist.is_initialized()
        done.append("post")
        if way == "post":
            raise LookupError("no table of results")

    with training_run(
        tracker=lambda: Tracker(directory, habit), post_train=post_train
    ) as errs:
        done.append("block")
        (Path(directory) / f"block_{rank()}").touch()
        for step in range(20):
            errs.step(step)
            if rank() == culprit and step == 2:
                if way == "deferred":
                    errs.capture(OSError("disk full"), "metadata")
                if way == "trunk":
                    raise LookupError("broken")
                if way == "exit":
                    raise SystemExit(0)
                if way == "interrupt":
                    raise KeyboardInterrupt
            dist.barrier()
            if errs.should_stop():
                break
        dist.barrier()
    done.append("after")
    return done


FAILS = [1, 1]


@pytest.mark.parametrize(
    ("way", "culprit", "habit", "statuses", "said", "tracked"),
    [
        ("good", 0, "", [0, 0], "", "FINISHED"),
        ("deferred", 0, "", FAILS, "DeferredErrors: rank 0 failed", "FAILED"),
        ("deferred", 1, "", FAILS, "DeferredErrors: rank 1 failed", "FAILED"),
        ("trunk", 0, "", FAILS, "LookupError: broken", "FAILED"),
        ("trunk", 1, "", FAILS, "RuntimeError", "FAILED"),
        ("exit", 0, "", [0, 1], "", "FAILED"),
        ("exit", 1, "", [1, 0], "RuntimeError", "FAILED"),
        ("interrupt", 0, "", FAILS, "KeyboardInterrupt", "FAILED"),
        ("post", 0, "", [1, 0], "LookupError: no table of results", "FAILED"),
        ("deferred", 1, "swallows", FAILS, "DeferredErrors", "FAILED"),
        ("post", 0, "swallows", [1, 0], "LookupError", "FAILED"),
        ("deferred", 1, "does not end", FAILS, "DeferredErrors", "FAILED"),
        ("good", 0, "does not end", [1, 0], "ConnectionError", "FINISHED"),
        ("good", 0, "does not start", FAILS, 'deferred in "tracker"', None),
    ],
)
def test_every_way_out(
    way: str,
    culprit: int,
    habit: str,
    statuses: list[int],
    said: str,
    tracked: str | None,
    tmp_path: Path,
) -> None:
    ranks = run_ranks(run, 2, str(tmp_path), way, culprit, habit)
    assert [one.status for one in ranks] == statuses, ranks[0].output
    last = ranks[0].output.rstrip().rsplit("\nTraceback", 1)[-1]
    assert said in last
    status = tmp_path / "status"
    assert (status.read_text() if status.exists() else None) == tracked
    if habit == "does not start":
        assert not list(tmp_path.glob("block_*"))
    if way == "good" and not habit:
        assert [one.value for one in ranks] == [
            ["block", "post", "after"],
            ["block", "after"],
        ]


def alone(directory: str, culprit: bool) -> None:
    with training_run(tracker=lambda: Tracker(directory, "")) as errs:
        if culprit:
            errs.capture(ValueError("x"), "here")


@pytest.mark.parametrize("group", [True, False])
def test_a_run_of_one_rank(group: bool, tmp_path: Path) -> None:
    for culprit in False, True:
        (one,) = run_ranks(alone, 1, str(tmp_path), culprit, group=group)
        assert one.status == int(culprit), one.output
        expected = "FAILED" if culprit else "FINISHED"
        assert (tmp_path / "status").read_text() == expected
