"""A rank whose native thread dies of a C++ exception: watchdog.py LIBRARY FIFO.

Both ranks meet at the FIFO, so that neither ends before the other is in its main. Then
rank 1 ends as by NCCL's watchdog; rank 0 waits until its launcher ends it.
"""

import ctypes
import os
import sys
import time

import torch  # noqa: F401, TID253

from firstfault import record


def train_step() -> None:
    """Fail on rank 1, wait on any other."""
    is_faulty = os.environ["RANK"] == "1"
    # Opened, either end waits for the other.
    os.close(os.open(sys.argv[2], os.O_RDONLY if is_faulty else os.O_WRONLY))
    if not is_faulty:
        time.sleep(60)
    faults = ctypes.CDLL(sys.argv[1])
    faults.in_bare_thread(faults.throw_dist_backend_error)


@record
def main() -> None:
    """Train."""
    train_step()


main()
