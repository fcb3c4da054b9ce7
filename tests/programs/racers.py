"""Lets ranks fail at the same moment: racers.py LIBRARY WAY NUMBER DIRECTORY.

Each rank is a process of its own to firstfault. Prints their process IDs.
"""

import ctypes
import json
import os
import sys

from firstfault import _native

LIBRARY, WAY, COUNT, DIRECTORY = sys.argv[1:]
PATH = os.path.join(DIRECTORY, "error.json")


def fail(rank: int, gate: int) -> None:
    os.environ["RANK"] = str(rank)
    faults = ctypes.CDLL(LIBRARY)
    _native.activate(error_file=PATH, entrypoint=None, argv=[])
    record = json.dumps(
        {
            "message": {"message": "x" * 100_000},
            "firstfault": {"process": {"pid": os.getpid()}},
        }
    ).encode()
    os.write(ready_end, b"x")
    os.read(gate, 1)
    if WAY == "crash" or (WAY == "both" and rank % 2):
        faults.read_null()
    _native.commit(PATH, record, record[:0], final=True, copy=False)


ready, ready_end = os.pipe()
gate, gate_end = os.pipe()
pids = []
for rank in range(int(COUNT)):
    pid = os.fork()
    if pid == 0:
        os.close(gate_end)
        try:
            fail(rank, gate)
        finally:
            os._exit(0)
    pids.append(pid)
for _ in pids:
    os.read(ready, 1)
os.close(gate_end)
for pid in pids:
    os.waitpid(pid, 0)
print(*pids)
