"""A checkpoint that is complete or absent: written beside its name, renamed when whole.

The ranks agree before each step that the next one relies on, so that all of them take
the same branch, whatever fails on one.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from firstfault.deferred._exchange import any_rank, has_peers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from firstfault.deferred._deferred import Deferred

    AnyPath = str | os.PathLike[str]

MARK = "tmp"
"""What the name of a temporary checkpoint has in it, since an old one is removed."""

PURGED = f".purged.{MARK}"
"""What is added to the name of a checkpoint before it is removed."""


def prepare(errs: Deferred, tmp: AnyPath, *, here: bool | None = None) -> bool:
    """Make an empty directory for a checkpoint; return whether every rank can go on.

    What a failed save left there is removed. A failure is deferred in "prepare", and
    every rank returns False, and True at its next `Deferred.should_stop`.

    Every rank calls it, as `commit` and `purge`, where it could call a collective.

    Args:
        errs: Where a failure is deferred. What was deferred before does not matter.
        tmp: The directory, beside its final name; "tmp" has to be in its own name.
        here: Whether this rank makes it. By default only the first rank of the group
            does; on disks that each host has for itself, the first rank of each host.

    Raises:
        ValueError: The directory's name does not say that it is temporary.
    """
    tmp = Path(tmp)
    if MARK not in tmp.name.lower():
        raise ValueError(f"{tmp}: a temporary checkpoint has {MARK!r} in its name")
    errs._known_failures = _failures(errs)
    with errs.defer("prepare"):
        if _is_here(errs, here):
            if tmp.exists():
                shutil.rmtree(tmp)
            tmp.mkdir(parents=True)
    return not _failed_anywhere(errs)


def commit(
    errs: Deferred, tmp: AnyPath, final: AnyPath, *, here: bool | None = None
) -> bool:
    """Give a checkpoint its final name if no rank failed; return whether it has it.

    A rank has failed if it deferred an error since `prepare`; without that, if it
    deferred one at all. Then the temporary checkpoint stays as it is, and so does what
    has the final name; a failing rename is deferred in "commit". Where False is
    returned, it is on every rank, and the next `Deferred.should_stop` returns True on
    all of them.

    What was written is flushed to the disk before the rename: a full one may say so
    only then. A file that has the final name is replaced, a directory is not.

    Args:
        errs: Where errors of the save were deferred, and a failure is.
        tmp: The directory or the file that was written.
        final: Its final name, on the same file system.
        here: Whether this rank renames, as in `prepare`.
    """
    tmp = Path(tmp)
    if _failed_anywhere(errs):
        return False
    with errs.defer("commit"):
        if _is_here(errs, here):
            _flush(tmp, deep=True)
            os.rename(tmp, final)
            _flush(Path(final).parent, deep=False)
    return not _failed_anywhere(errs)


def purge(
    errs: Deferred, paths: Iterable[AnyPath], *, here: bool | None = None
) -> None:
    """Remove checkpoints that are no longer needed, if no rank failed since `commit`.

    Each gets a temporary name first, so that none is left that only looks complete. A
    failure is deferred in "purge".

    Args:
        errs: Where a failure is deferred.
        paths: Directories and files; only looked at where this rank removes them.
        here: Whether this rank removes them, as in `prepare`.
    """
    if _failed_anywhere(errs):
        return
    if not _is_here(errs, here):
        return
    with errs.defer("purge"):
        for path in [Path(path) for path in paths]:
            with errs.defer("purge"):  # One that cannot be removed keeps no other.
                _remove(path)


def _failures(errs: Deferred) -> int:
    return int(errs.pending) + errs.suppressed


def _failed_anywhere(errs: Deferred) -> bool:
    """Agree whether a rank has deferred an error since the last such agreement."""
    failures = _failures(errs)
    failed = any_rank(failures > errs._known_failures, errs._group)
    errs._known_failures = failures
    if failed:
        # This rank knows it already: it may not pass its next `should_stop`. All join
        # here whose `Deferred` is older than the process group.
        if errs._agreement is None:
            errs._join()
        errs._announce()
    return failed


def _is_here(errs: Deferred, here: bool | None) -> bool:
    if here is not None or not has_peers(errs._group):
        return here is not False
    import torch.distributed as dist

    return dist.get_rank(errs._group) == 0


def _remove(path: Path) -> None:
    doomed = path
    if not path.name.endswith(PURGED):  # As one is that an earlier purge has left.
        doomed = path.with_name(path.name + PURGED)
        path.rename(doomed)
    if doomed.is_dir() and not doomed.is_symlink():
        shutil.rmtree(doomed)
    else:
        doomed.unlink()


def _flush(path: Path, *, deep: bool) -> None:
    """Have the disk hold a directory, or a file, and all that is in it where `deep`."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
    if deep and path.is_dir():
        for entry in path.iterdir():
            if not entry.is_symlink():
                _flush(entry, deep=True)
