"""A checkpoint on real ranks: complete or absent, whichever phase fails on whom."""

import errno
import json
import os
import runpy
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conftest import PROGRAMS
from crashes import missing
from firstfault.deferred import (
    Deferred,
    DeferredErrors,
    commit,
    prepare,
    purge,
    training_run,
)
from process_groups import run_ranks

RANKS = 2
NOBODY = 65534
STATE = bytes(16 * 1024)


@dataclass(frozen=True)
class Fault:
    """What breaks in the save of step 2: before which phase, on which rank, and how."""

    phase: str
    rank: int
    how: str


def rank() -> int:
    """Return this process's rank."""
    return int(os.environ["RANK"])


@contextmanager
def as_nobody() -> Iterator[None]:
    """Act as a user whom permissions concern."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def break_before(phase: str, fault: Fault | None, root: Path) -> None:
    """Break what is to be broken now."""
    if fault is None or (fault.phase, fault.rank) != (phase, rank()):
        return
    if fault.how == "full":
        fill(root)
        return
    target = {
        "prepare": root,
        "metadata": root / "step_2.tmp",
        "commit": root,
        "purge": root / "step_1",
    }
    target[phase].chmod(0o555)


def fill(root: Path) -> None:
    """Leave no byte and no inode on a small file system."""
    with (root / "ballast").open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(STATE)
        except OSError:
            pass
    try:
        for number in range(10_000):
            (root / f"ballast_{number}").touch()
    except OSError:
        return
    raise AssertionError("the file system does not fill")


def train(directory: str, fault: Fault | None) -> dict[str, Any]:
    """Save three steps, the second with a fault; return what this rank saw."""
    root = Path(directory)
    seen: dict[str, Any] = {"committed": [], "stopped": None, "failures": []}
    try:
        with as_nobody(), Deferred() as errs:
            for step in range(1, 4):
                errs.step(step)
                broken = fault if step == 2 else None
                seen["committed"].append(save(errs, root, step, broken))
                if errs.should_stop():
                    seen["stopped"] = step
                    break
    except DeferredErrors as error:
        seen["failures"] = sorted(error.failures)
        seen["text"] = error.message
    return seen


def save(errs: Deferred, root: Path, step: int, fault: Fault | None) -> bool:
    """Save one step, as a program does."""
    import torch.distributed as dist

    final, tmp = root / f"step_{step}", root / f"step_{step}.tmp"
    break_before("prepare", fault, root)
    if not prepare(errs, tmp):
        return False
    (tmp / f"state_{rank()}").write_bytes(STATE)
    dist.barrier()
    break_before("metadata", fault, root)
    with errs.defer("metadata"):
        if rank() == (fault.rank if fault else 0):
            (tmp / "metadata.json").write_text(json.dumps({"step": step}))
    break_before("commit", fault, root)
    if not commit(errs, tmp, final):
        return False
    break_before("purge", fault, root)
    purge(errs, [path for path in root.glob("step_*") if path != final])
    return True


@pytest.fixture
def disk() -> Iterator[Path]:
    """A small file system that belongs to nobody."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        options = f"size=256k,nr_inodes=64,uid={NOBODY},mode=755"
        command = ["mount", "-t", "tmpfs", "-o", options, "none", directory]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            missing("the right to mount")
        try:
            yield Path(directory)
        finally:
            subprocess.run(["umount", directory], check=True)


def is_complete(path: Path) -> bool:
    """Return whether a directory holds all that a checkpoint has."""
    return names_in(path) == {"metadata.json", *(f"state_{r}" for r in range(RANKS))}


def left(root: Path) -> dict[str, bool]:
    """Return the names of the checkpoints, and whether each is complete."""
    return {path.name: is_complete(path) for path in root.glob("step_*")}


def test_good_saves_leave_the_last_checkpoint(disk: Path) -> None:
    for one in run_ranks(train, RANKS, str(disk), None):
        assert one.status == 0, one.output
        assert one.value["committed"] == [True, True, True]
        assert one.value["stopped"] is None
        assert one.value["failures"] == []
    assert left(disk) == {"step_3": True}


LEFT = {
    "prepare": {"step_1": True},
    "metadata": {"step_1": True, "step_2.tmp": False},
    "commit": {"step_1": True, "step_2.tmp": True},
}
"""What a failure before each phase leaves, and whether it is complete."""

FAULTS = [
    Fault("prepare", 0, "full"),
    Fault("prepare", 0, "forbidden"),
    Fault("metadata", 0, "full"),
    Fault("metadata", 0, "forbidden"),
    Fault("metadata", 1, "full"),
    Fault("metadata", 1, "forbidden"),
    Fault("commit", 0, "forbidden"),
    Fault("purge", 0, "forbidden"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f"{f.phase}-{f.rank}-{f.how}")
def test_a_failed_save_leaves_the_previous_checkpoint(fault: Fault, disk: Path) -> None:
    ranks = [one.value for one in run_ranks(train, RANKS, str(disk), fault)]
    # All took the same way.
    assert ranks[0] == ranks[1]
    seen = ranks[0]
    assert seen["failures"] == [fault.rank]
    assert f'in "{fault.phase}"' in seen["text"]
    reason = {"full": "No space left on device", "forbidden": "Permission denied"}
    assert reason[fault.how] in seen["text"]
    if fault.phase == "purge":
        # Nobody waits for a purge: a peer may be in the next step already.
        steps = len(seen["committed"])
        assert steps >= 2
        assert all(seen["committed"])
        names = left(disk)
        assert names.pop(f"step_{steps}")
        assert names
        assert all(name.endswith(".purged.tmp") for name in names)
        return
    # At the next call after the failed commit.
    assert left(disk) == LEFT[fault.phase]
    assert seen["stopped"] == 2
    assert seen["committed"] == [True, False]


def keeps_on(directory: str) -> list[Any]:
    """Save after an error that has nothing to do with it, over what a failure left."""
    tmp, final = Path(directory) / "new.tmp", Path(directory) / "new"
    if rank() == 0:
        (tmp / "old").mkdir(parents=True)
    errs = Deferred()
    if rank() == 1:
        errs.capture(ValueError("no metrics"), "metrics")
    said: list[Any] = [prepare(errs, tmp), commit(errs, tmp, final)]
    said.append(sorted(path.name for path in final.iterdir()))
    said.append([prepare(errs, tmp), commit(errs, tmp, Path(directory))])
    said.append(errs.should_stop())
    with pytest.raises(DeferredErrors):
        errs.finish()
    return said


def test_an_earlier_error_does_not_spoil_a_checkpoint(tmp_path: Path) -> None:
    for one in run_ranks(keeps_on, RANKS, str(tmp_path)):
        # A directory that has the final name is not replaced.
        assert one.value == [True, True, [], [True, False], True], one.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "new.tmp"]


def hears_of_it_by_the_commit(directory: str) -> list[bool]:
    """Fail on rank 0, which tells nobody but by the commit itself."""
    import torch.distributed as dist

    errs = Deferred()
    if rank() == 0:
        errs._announce = lambda: None  # type: ignore[method-assign]
    tmp, final = Path(directory) / "new.tmp", Path(directory) / "new"
    said = [prepare(errs, tmp)]
    if rank() == 0:
        errs.capture(OSError("disk full"), "metadata")
    said.append(commit(errs, tmp, final))
    if rank() == 0:
        dist.barrier()  # Until rank 1 has been told to stop.
    said.append(errs.should_stop())
    if rank() == 1:
        dist.barrier()
    with pytest.raises(DeferredErrors):
        errs.finish()
    return said


def test_no_rank_passes_its_next_call_after_a_failed_commit(tmp_path: Path) -> None:
    for one in run_ranks(hears_of_it_by_the_commit, RANKS, str(tmp_path)):
        assert one.value == [True, False, True], one.output


def flushes_to_a_full_disk(directory: str) -> list[bool]:
    """Save; rank 0 hears only as it flushes that its disk was full."""
    root = Path(directory)
    errs = Deferred()
    if rank() == 0:

        def full(file: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        os.fsync = full
    said = [prepare(errs, root / "new.tmp"), commit(errs, root / "new.tmp", root / "x")]
    said.append(errs.should_stop())
    with pytest.raises(DeferredErrors, match=r'No space left.*in "commit"'):
        errs.finish()
    return said


def test_a_disk_that_is_full_at_the_flush_leaves_no_checkpoint(tmp_path: Path) -> None:
    for one in run_ranks(flushes_to_a_full_disk, RANKS, str(tmp_path)):
        assert one.value == [True, False, True], one.output
    assert [path.name for path in tmp_path.iterdir()] == ["new.tmp"]


def saves_on_a_disk_of_its_own(directory: str) -> list[bool]:
    """Save on each rank as on a host of its own; the second name is taken on rank 1."""
    root = Path(directory) / f"host_{rank()}"
    errs = Deferred()
    said = []
    for name in "one", "two":
        tmp = root / f"{name}.tmp"
        said.append(prepare(errs, tmp, here=True))
        (tmp / "state").touch()
        said.append(commit(errs, tmp, root / name, here=True))
        purge(errs, root.glob("old"), here=True)
    with pytest.raises(DeferredErrors) as raised:
        errs.finish()
    assert sorted(raised.value.failures) == [1]
    return said


def test_each_host_may_have_a_disk_of_its_own(tmp_path: Path) -> None:
    for host in "host_0", "host_1":
        (tmp_path / host / "old").mkdir(parents=True)
    (tmp_path / "host_1" / "two" / "state").mkdir(parents=True)
    for one in run_ranks(saves_on_a_disk_of_its_own, RANKS, str(tmp_path)):
        assert one.value == [True, True, True, False], one.output
    # Each made, named and purged its own; the name that one got takes nobody's back.
    left = [{path.name for path in (tmp_path / f"host_{r}").iterdir()} for r in (0, 1)]
    assert left == [{"one", "two"}, {"one", "two", "two.tmp"}]


def saves_nowhere_but_on_rank_1(directory: str) -> None:
    """Save with rank 1 as the one that makes, names and purges."""
    root, here = Path(directory), rank() == 1
    if not here:
        for name in "mkdir", "rename", "unlink", "rmdir":
            setattr(os, name, forbid)
    with Deferred() as errs:
        assert prepare(errs, root / "new.tmp", here=here)
        assert commit(errs, root / "new.tmp", root / "new", here=here)
        purge(errs, [root / "old"], here=here)


def forbid(*arguments: object, **options: object) -> None:
    """Be what a rank must not do."""
    raise PermissionError(f"not on this rank: {arguments}")


def test_a_rank_that_is_not_here_leaves_the_disk_alone(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    for one in run_ranks(saves_nowhere_but_on_rank_1, RANKS, str(tmp_path)):
        assert one.status == 0, one.output
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def saves_state_on_a_bad_disk(directory: str, how: str) -> None:
    """Run the example; what it saves on goes bad before the state of step 5."""
    import torch.distributed as dist

    program = runpy.run_path(str(PROGRAMS / "deferred_checkpoint.py"))
    dcp, root = program["dcp"], Path(directory)
    save = dcp.save

    def breaking(state: object, **options: Any) -> object:
        tmp = root / "step_5.tmp"
        if not tmp.exists():
            return save(state, **options)
        if how == "forbidden":
            tmp.chmod(0o555)
            with as_nobody():
                return save(state, **options)
        if rank() == 0:
            fill(root)
        dist.barrier()
        return save(state, **options)

    dcp.save = breaking
    with training_run() as errs:
        program["train"](errs, root)


@pytest.mark.parametrize("how", ["full", "forbidden"])
def test_a_state_that_cannot_be_saved_is_raised_at_once(how: str, disk: Path) -> None:
    ranks = run_ranks(saves_state_on_a_bad_disk, RANKS, str(disk), how)
    reason = {"full": "No space left on device", "forbidden": "Permission denied"}
    for one in ranks:
        assert one.status == 1, one.output
        assert "CheckpointException" in one.output
        assert reason[how] in one.output
    # The last good one, and what the failed save had begun, incomplete.
    assert {path.name for path in disk.glob("step_*")} == {"step_1", "step_5.tmp"}
    assert {".metadata", "run.json"} <= names_in(disk / "step_1")
    assert not {".metadata", "run.json"} & names_in(disk / "step_5.tmp")
    assert not list(disk.glob("stopped_*"))


def names_in(path: Path) -> set[str]:
    """Return the names of the files in a directory that are not empty."""
    return {entry.name for entry in path.iterdir() if entry.stat().st_size}


def fails_before_the_purge(directory: str) -> None:
    """Fail on rank 1, when the checkpoint has its name and before old ones go."""
    root = Path(directory)
    errs = Deferred()
    assert prepare(errs, root / "new.tmp")
    assert commit(errs, root / "new.tmp", root / "new")
    if rank() == 1:
        errs.capture(OSError("disk full"), "upload")
    purge(errs, [root / "old"])
    with pytest.raises(DeferredErrors):
        errs.finish()


def test_nothing_is_purged_when_any_rank_has_failed(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    for one in run_ranks(fails_before_the_purge, RANKS, str(tmp_path)):
        assert one.status == 0, one.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]


def test_all_is_on_the_disk_before_it_has_its_name(
    errs: Deferred, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []
    rename = os.rename
    path_of = "/proc/self/fd/{}".format
    monkeypatch.setattr(
        os, "fsync", lambda file: done.append(Path(os.readlink(path_of(file))).name)
    )
    monkeypatch.setattr(
        os, "rename", lambda *paths: (done.append("rename"), rename(*paths))
    )
    (tmp_path / "new.tmp" / "shard").mkdir(parents=True)
    (tmp_path / "new.tmp" / "shard" / "weights").touch()
    assert commit(errs, tmp_path / "new.tmp", tmp_path / "new")
    assert done == ["new.tmp", "shard", "weights", "rename", tmp_path.name]


def test_only_what_is_named_temporary_is_removed(tmp_path: Path) -> None:
    precious = tmp_path / "data"
    precious.mkdir()
    with pytest.raises(ValueError, match="has 'tmp' in its name"):
        prepare(Deferred(), precious)
    assert precious.exists()


def test_a_file_is_replaced(errs: Deferred, tmp_path: Path) -> None:
    final, tmp = tmp_path / "last.pt", tmp_path / "last.pt.tmp"
    final.write_text("old")
    tmp.write_text("new")
    assert commit(errs, tmp, final)
    purge(errs, [])
    assert final.read_text() == "new"
    assert not commit(errs, tmp, final)
    assert isinstance(errs.first, FileNotFoundError)
    assert errs.should_stop()
