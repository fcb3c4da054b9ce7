"""The faults by which a rank keeps others waiting, or waits itself for nobody."""

import ctypes
import fcntl
import multiprocessing
import os
import queue
import re
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


def full_pipe():
    """Wait for a tool that waits until somebody reads what it says."""
    program = "print('x' * 1_000_000)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as p:
        p.wait()


def slow_pattern():
    """Look for a pattern in a way that takes for ever, and lets no other thread run."""
    return re.match(r"(\w+\s?)+$", "shard " * 40 + "!")


def evaluation():
    """Evaluate for much longer than the others wait."""
    for batch in range(0, 40_000, 10):
        print(f"evaluating: {batch}/40000", flush=True)
        time.sleep(2)


def missing_marker():
    """Wait for a file that nobody writes."""
    while not Path("/srv/data/.complete").exists():
        time.sleep(1)


def _killed(_):
    os.kill(os.getpid(), signal.SIGKILL)


def pool_lost():
    """Wait for what a process of a pool had to do when it was killed."""
    with multiprocessing.Pool(1) as pool:
        pool.map(_killed, range(1))


def never_set():
    """Wait for an event that nobody sets."""
    threading.Event().wait()


def store_key():
    """Wait for a key of the store that nobody sets."""
    import torch.distributed as dist

    dist.distributed_c10d._get_default_store().wait(["shards/ready"])


# Collectives.


def gather():
    """Gather what the others do not gather."""
    return "gather"


def swapped():
    """Enter the same collectives in another order."""
    return "swapped"


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
