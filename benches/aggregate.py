"""Print the seconds that torch takes for the error files below a directory.

It reads and formats them as torchrun does; the median of three times.
"""

import statistics
import sys
from pathlib import Path

from measure import timed
from torch.distributed.elastic.multiprocessing.errors import (  # noqa: TID253
    ChildFailedError,
    ProcessFailure,
)

PATHS = sorted(str(path) for path in Path(sys.argv[1]).rglob("error.json"))


def aggregate() -> None:
    """Do what torchrun does with the files of its workers."""
    failures = {
        rank: ProcessFailure(local_rank=rank, pid=rank, exitcode=1, error_file=path)
        for rank, path in enumerate(PATHS)
    }
    str(ChildFailedError("train.py", failures))


print(statistics.median(timed(aggregate)() for _ in range(3)))
