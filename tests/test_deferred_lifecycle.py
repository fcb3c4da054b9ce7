"""A whole training run on real ranks: how it ends, and what its tracker says then."""

import os
import signal
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace, TracebackType

import pytest

from firstfault.deferred import Deferred, training_run
from firstfault.integrations import accelerate
from process_groups import process_ids, run_ranks


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
        if self.habit == "never ends":
            signal.pause()
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
        (Path(directory) / "post").touch()
        if way == "post":
            raise LookupError("no table of results")

    with training_run(
        tracker=lambda: Tracker(directory, habit),
        post_train=post_train,
        hard_exit_after=2 if way == "hard" else None,
    ) as errs:
        done.append("block")
        (Path(directory) / f"block_{rank()}").touch()
        for step in range(20):
            errs.step(step)
            if rank() == culprit and step == 2:
                fail(way, errs)
            dist.barrier()
            if errs.should_stop():
                break
        dist.barrier()
    done.append("after")
    return done


def fail(way: str, errs: Deferred) -> None:
    """Fail in one of the ways."""
    from torch.distributed.checkpoint.api import CheckpointException

    match way:
        case "deferred":
            errs.capture(OSError("disk full"), "metadata")
        case "trunk":
            raise LookupError("broken")
        case "exit":
            raise SystemExit(0)
        case "interrupt":
            raise KeyboardInterrupt
        case "checkpoint":
            with errs.defer("save"):
                raise CheckpointException("save", {})
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hard":
            threading.Thread(target=signal.pause).start()
            raise LookupError("broken")
        case "lost":
            os.kill(process_ids()["agent"], signal.SIGKILL)
            errs.capture(OSError("disk full"), "metadata")
            errs.should_stop()


FAILS = [1, 1]
KILLED = -signal.SIGKILL


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
        ("interrupt", 1, "", FAILS, "RuntimeError", "FAILED"),
        ("checkpoint", 0, "", FAILS, "CheckpointException", "FAILED"),
        ("checkpoint", 1, "", FAILS, "RuntimeError", "FAILED"),
        ("lost", 0, "", FAILS, "AgreementError: the store is lost", "FAILED"),
        ("lost", 1, "", FAILS, "", "FAILED"),
        ("killed", 0, "", [KILLED, 1], "", "RUNNING"),
        ("killed", 1, "", [1, KILLED], "RuntimeError", "FAILED"),
        # Ended when the tracker has long heard of it.
        ("hard", 0, "", FAILS, "in _shutdown", "FAILED"),
        pytest.param(
            *("hard", 1, "", FAILS, "RuntimeError", "FAILED"), marks=pytest.mark.slow
        ),
        ("post", 0, "", [1, 0], "LookupError: no table of results", "FAILED"),
        ("deferred", 1, "swallows", FAILS, "DeferredErrors", "FAILED"),
        ("post", 0, "swallows", [1, 0], "LookupError", "FAILED"),
        ("deferred", 1, "does not end", FAILS, "DeferredErrors", "FAILED"),
        ("good", 0, "does not end", [1, 0], "ConnectionError", "FINISHED"),
        ("hard", 0, "never ends", FAILS, "Timeout (0:00:02)!", "RUNNING"),
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
    store = "agent" if way == "lost" else "rank 0"
    ranks = run_ranks(run, 2, str(tmp_path), way, culprit, habit, store=store)
    assert [one.status for one in ranks] == statuses, ranks[0].output
    last = ranks[0].output.rstrip().rsplit("\nTraceback", 1)[-1]
    assert said in last
    status = tmp_path / "status"
    assert (status.read_text() if status.exists() else None) == tracked
    # What follows a training follows only a good one.
    is_good = way in ("good", "post") and habit != "does not start"
    assert (tmp_path / "post").exists() == is_good
    if habit == "does not start":
        assert not list(tmp_path.glob("block_*"))
    if way == "good" and not habit:
        assert [one.value for one in ranks] == [
            ["block", "post", "after"],
            ["block", "after"],
        ]


class Recorded:
    """A tracker of Accelerate's, which notes how it is ended."""

    def __init__(self, name: str, *, fails: bool = False) -> None:
        self.name = name
        self.run = self
        self.ended: list[dict[str, int]] = []
        self.fails = fails

    def finish(self, **how: int) -> None:
        """End."""
        self.ended.append(how)
        if self.fails:
            raise ConnectionError("no tracking server")


@pytest.mark.parametrize("error", [None, LookupError, SystemExit, KeyboardInterrupt])
def test_the_trackers_of_accelerate_end_once_as_what_happened(
    error: type[BaseException] | None,
) -> None:
    bad = Recorded("comet_ml", fails=error is not None)
    trackers = [bad, Recorded("wandb"), Recorded("tensorboard")]
    accelerator = SimpleNamespace(trackers=trackers)
    raised = nullcontext() if error is None else pytest.raises(error)
    with raised, accelerate.training_run(accelerator):
        if error is not None:
            raise error
    # Only W&B can be told; one that fails keeps no other from its end.
    told: dict[str, int] = {} if error is None else {"exit_code": 1}
    assert [tracker.ended for tracker in trackers] == [[{}], [told], [{}]]


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
