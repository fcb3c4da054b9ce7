"""Kills a process while it drops breadcrumbs, again and again.

``breadcrumbs.py DIRECTORY ROUNDS SEED``: each round forks a rank of its own, kills it
at a random moment, and prints the path of its box.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import firstfault
from firstfault import _native

DIRECTORY, ROUNDS, SEED = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(SEED)


def write_for_ever(number: int) -> None:
    _native.activate(
        error_file=str(DIRECTORY / f"{number}.json"), entrypoint="main", argv=[]
    )
    at = 0
    while True:
        name = f"n{at}"
        firstfault.breadcrumb(name, name)
        at += 1


for number in range(ROUNDS):
    pid = os.fork()
    if pid == 0:
        write_for_ever(number)
    path = DIRECTORY / f"{number}.{pid}.box"
    while not path.exists() or path.read_bytes()[:8] != b"ffaultbx":
        time.sleep(0.0002)
    time.sleep(chance.random() * 0.004)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    print(path, flush=True)
