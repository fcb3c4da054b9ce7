"""Reports on dead jobs: which rank failed first, why, and with what evidence."""

import json
import os
from collections.abc import Iterable, Mapping

from firstfault import _native
from firstfault._verdict import Report, build

Path = str | os.PathLike[str]


def report(
    paths: Path | Iterable[Path] | Mapping[str, bytes],
    *,
    world_size: int | None = None,
    rules: Path | None = None,
    redact: bool = False,
) -> Report:
    """Return the report on one dead job.

    Args:
        paths: Files and directories of the job, as for ``firstfault report``; or files
            in memory, by their relative paths. At most 16 MiB of each file are read.
        world_size: The number of ranks of the job, so that ranks which left nothing
            are missed.
        rules: A file of rules that are tried before firstfault's own.
        redact: Replace hosts, users, addresses and command lines, each by the same
            word everywhere.

    Raises:
        NothingFoundError: No error file and no log of a launcher is there.
        UnreadablePathError: One of `paths`, or `rules`, cannot be read; an `OSError`.
        RulesError: `rules` holds a rule that is wrong.
    """
    files = None
    if isinstance(paths, Mapping):
        files = [(os.fsencode(name), bytes(data)) for name, data in paths.items()]
        paths = ()
    elif isinstance(paths, str | os.PathLike):
        paths = (paths,)
    found, text = _native.report(
        [os.fsencode(path) for path in paths],
        files,
        world_size,
        None if rules is None else os.fsencode(rules),
        redact,
    )
    return build(Report, {**json.loads(found), "_text": text})


report.__module__ = "firstfault"
