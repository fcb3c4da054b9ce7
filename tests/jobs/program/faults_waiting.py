"""The faults by which a rank keeps others waiting, or waits itself for nobody."""

import ctypes
import fcntl
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path


def read_pipe():
    """Read from a pipe that nobody opens to write."""
    path = f"/srv/pipe-{os.getpid()}"
    os.mkfifo(path)
    return Path(path).read_bytes()


def locked_file():
    """Wait for a lock on a file that another process keeps."""
    path = f"/srv/cache-{os.getpid()}.lock"
    keep = f"import fcntl, time; f = open({path!r}, 'w'); fcntl.flock(f, 2); print()"
    with subprocess.Popen(
        [sys.executable, "-uc", f"{keep}; time.sleep(600)"], stdout=subprocess.PIPE
    ) as keeper:
        keeper.stdout.readline()
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX)


def wait_for_child():
    """Wait for a tool that does not end."""
    subprocess.run(["sleep", "600"], check=True)


def retry_forever():
    """Try again and again what will never work, and say so."""
    attempt = 0
    while True:
        attempt += 1
        print(f"data server not ready, attempt {attempt}", file=sys.stderr, flush=True)
        time.sleep(2)


def empty_queue():
    """Wait for a thread that has failed."""
    samples = queue.Queue()

    def produce():
        raise ValueError("cannot decode sample 1741")

    threading.Thread(target=produce, name="prefetch", daemon=True).start()
    return samples.get()


def hold_gil():
    """Wait in native code that lets no other thread run."""
    ctypes.PyDLL(None).sleep(600)


def deaf():
    """Wait, and hear no request to end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(600)


def slow():
    """Take longer than the others wait, and go on."""
    time.sleep(25)


# Collectives.


def twice():
    """Enter one collective more than the others."""
    return "twice"


def receive():
    """Wait for a tensor that nobody sends."""
    return "receive"


def group_alone():
    """Make a process group that the others do not make."""
    import torch.distributed as dist

    dist.new_group([0, 1])
