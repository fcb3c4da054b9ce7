"""The faults, each as real as one process can make it; none names its own category."""

import ctypes
import errno
import json
import mmap
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

LIBC = ctypes.CDLL(None)


# Python exceptions.


def bad_value():
    """Raise in the middle of own code."""
    raise ValueError("expected 8 features in shard 41, found 7")


def loss_check():
    """Raise as trainers do that watch their loss."""
    loss = float("inf") - float("inf")
    raise RuntimeError(f"loss is nan at step 3: {loss}")


def short_list():
    """Index past the end."""
    vocabulary = list(range(100))
    return vocabulary[int("128")]


def assertion():
    """Fail an assertion."""
    sequence_length = 1023
    assert sequence_length % 8 == 0, f"sequence length {sequence_length}"


def wrong_shapes():
    """Multiply what does not fit."""
    import torch

    return torch.randn(4, 7) @ torch.randn(8, 4)


def missing_key():
    """Miss a setting in the configuration."""
    config = {"model": {"hidden": 16}}
    return config["model"]["heads"]


def unknown_argument():
    """Call what has another signature."""
    import torch

    return torch.nn.Linear(8, 16, gated=True)


def command_line():
    """Parse arguments that nobody defined."""
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, required=True)
    return parser.parse_args(["--lr", "fast"])


def missing_module():
    """Import what is not installed."""
    import flash_attention_3  # noqa: F401


def missing_library():
    """Load a library that is not there."""
    return ctypes.CDLL("libfabric_plugin.so.1")


def missing_shard():
    """Miss a file, and wrap that as loaders do."""
    try:
        return open("/srv/data/shard-00041.tar", "rb")
    except OSError as e:
        raise RuntimeError("cannot open the next shard") from e


def read_only():
    """Write to a file system that is mounted read-only."""
    Path("/srv/readonly/model.pt").write_bytes(b"weights")


def full_disk():
    """Save to a file system with too little room, as torch does."""
    import torch

    torch.save(torch.randn(300_000), "/srv/scratch/model.pt")


def full_device():
    """Write text where there is no room at all."""
    with open("/dev/full", "w") as file:
        file.write("metrics\n" * 10_000)


def fill_scratch():
    """Let a node's scratch be full when a checkpoint is written there."""
    with open("/srv/scratch/leftover.bin", "wb") as file:
        try:
            while True:
                file.write(bytes(1024))
                file.flush()
        except OSError:
            return


def stale():
    """Read from a file that the server has forgotten."""
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), "/mnt/nfs/shard-7.bin")


def broken_disk():
    """Read from a bad sector."""
    raise OSError(errno.EIO, os.strerror(errno.EIO), "/mnt/data/shard-7.bin")


def many_files():
    """Open more files than allowed."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
    files = []
    while True:
        files.append(os.open("/dev/null", os.O_RDONLY))


def no_memory():
    """Ask torch for more memory than the process may have."""
    import torch

    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    return torch.empty(4 << 30, dtype=torch.float32)


def no_python_memory():
    """Ask Python for more memory than the process may have."""
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    return bytearray(32 << 30)


def big_file():
    """Write a file that is longer than allowed."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    Path("/srv/scratch/log.bin").write_bytes(b"x" * 8192)


def cut_checkpoint():
    """Load a checkpoint of which a part is missing."""
    import torch

    path = Path(f"/srv/cut-{os.getpid()}.pt")
    torch.save(torch.randn(1000), path)
    path.write_bytes(path.read_bytes()[:2000])
    return torch.load(path)


def other_model():
    """Load a checkpoint of another model."""
    import torch

    torch.nn.Linear(8, 16).load_state_dict(torch.nn.Linear(8, 32).state_dict())


def no_group():
    """Use collectives before the process group is there."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(1))


def unused_layer():
    """Let a part of the model take no part in the loss, twice."""
    import torch

    layers = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)])

    class Half(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers

        def forward(self, inputs):
            return self.layers[0](inputs)

    model = torch.nn.parallel.DistributedDataParallel(Half())
    for _ in range(3):
        model(torch.randn(2, 4)).sum().backward()


def total_norm():
    """Clip gradients of which one is not finite."""
    import torch

    weight = torch.nn.Parameter(torch.ones(4))
    weight.grad = torch.full((4,), float("inf"))
    torch.nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)


def anomaly():
    """Let autograd look for what is not a number."""
    import torch

    with torch.autograd.detect_anomaly():
        weight = torch.zeros(4, requires_grad=True)
        (torch.sqrt(weight) * 0).sum().backward()


def failing_cleanup():
    """Fail, and fail again while that is handled."""
    try:
        raise ValueError("expected 8 features in shard 41, found 7")
    except ValueError:
        os.unlink("/srv/data/part-00041.tmp")


def many_threads():
    """Start more threads than there is memory for."""
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    threading.stack_size(1 << 30)
    for _ in range(64):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def deep_recursion():
    """Recurse without an end."""
    return deep_recursion()


def slow_to_unwind():
    """Raise, and take long to leave."""
    try:
        raise ValueError("expected 8 features in shard 41, found 7")
    finally:
        time.sleep(4)


def logged_only():
    """Log an exception and go home, as a careless loop does."""
    import logging

    try:
        return json.loads("{'lr': 1}")
    except ValueError:
        logging.exception("bad line in the index, giving up")
        return "leave"


# Ends without an exception.


def exit_status():
    """Give up with a number."""
    sys.exit(3)


def exit_text():
    """Give up with a sentence."""
    sys.exit("no usable samples in shard 41")


def exit_hard():
    """Give up without a word."""
    os._exit(17)


def exit_zero():
    """Leave with a word and the status of success, while the others go on."""
    print("nothing left to do", flush=True)
    sys.exit(0)


def thread_exits():
    """Let a thread end the process when it has failed."""
    import traceback

    def watch():
        try:
            raise ValueError("cannot decode sample 1741")
        except ValueError:
            traceback.print_exc()
            os._exit(1)

    thread = threading.Thread(target=watch, name="prefetch")
    thread.start()
    thread.join()


def at_exit_hard():
    """Let a cleanup at the end of the interpreter give up."""
    import atexit

    atexit.register(os._exit, 21)


def at_exit_noise():
    """Let a cleanup at the end of the interpreter fail, which nobody minds."""
    import atexit

    atexit.register(os.unlink, "/srv/data/part-00041.tmp")


def exit_well():
    """Leave as if all was done, while the others go on."""
    os._exit(0)


def leave():
    """Return from the loop while the others go on."""
    return "leave"


def interrupt():
    """Be interrupted as by Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)


def terminated():
    """Be asked to end, alone."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


def killed():
    """Be killed."""
    os.kill(os.getpid(), signal.SIGKILL)


# Native crashes.


def null_pointer():
    """Read through a null pointer."""
    ctypes.string_at(0)


def null_pointer_in_thread():
    """Read through a null pointer in a thread, and wait for it."""
    thread = threading.Thread(target=ctypes.string_at, args=(0,), name="prefetch")
    thread.start()
    thread.join()


def give_up():
    """End as C code does when it has lost its footing."""
    os.abort()


def terminate():
    """End as C++ does."""
    ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev()


def failed_assert():
    """Fail an assertion in native code."""
    LIBC.__assert_fail(b"index < size", b"gather.c", 41, b"gather")


def smashed_stack():
    """End as code does that has written past its frame."""
    LIBC.__stack_chk_fail()


def fatal():
    """Let the interpreter itself give up."""
    ctypes.pythonapi.Py_FatalError(b"the tokenizer lost its state")


def native_recursion():
    """Use up the stack in native code."""

    class Node:
        def __repr__(self):
            return repr([self])

    sys.setrecursionlimit(1 << 30)
    return repr(Node())


def free_twice():
    """Free a block twice."""
    LIBC.malloc.restype = ctypes.c_void_p
    block = ctypes.c_void_p(LIBC.malloc(40))
    LIBC.free(block)
    LIBC.free(block)


def free_anything():
    """Free what was never allocated."""
    LIBC.free(ctypes.c_void_p(ctypes.addressof(ctypes.create_string_buffer(64)) + 8))


def shrunken_map():
    """Read a mapped file that has been cut."""
    with open(f"/srv/map-{os.getpid()}", "w+b") as file:
        file.truncate(1 << 16)
        view = mmap.mmap(file.fileno(), 1 << 16)
        file.truncate(0)
        return view[5000]


def _run(code):
    area = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    area.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    ctypes.CFUNCTYPE(None)(address)()


def divide():
    """Divide by zero in native code."""
    _run(b"\x31\xc0\x31\xd2\x31\xc9\xf7\xf1\xc3")


def no_such_instruction():
    """Run what this processor does not know."""
    _run(b"\x0f\x0b")


def breakpoint_left():
    """Run a breakpoint that no debugger waits for."""
    _run(b"\xcc")


def cpu_time():
    """Use more of the processor than allowed."""
    used = int(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (used + 1, used + 30))
    while True:
        pass


# Children.


def child_crashes():
    """Run a tool that crashes."""
    program = "import ctypes; ctypes.string_at(0)"
    subprocess.run([sys.executable, "-c", program], check=True)


def child_fails():
    """Run a tool that fails."""
    program = "import sys; sys.exit('tokenizer: unknown language xx')"
    subprocess.run([sys.executable, "-c", program], check=True)


def child_killed():
    """Run a tool that is killed."""
    program = "import os; os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", program], check=True)


def _convert(index):
    raise ValueError(f"process {index}: cannot decode sample 1741")


def spawned_fails():
    """Let torch start a process, which fails."""
    import torch.multiprocessing as mp

    mp.spawn(_convert, nprocs=1)


def pool_child_killed():
    """Lose a process of a pool."""
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(1) as pool:
        pool.submit(signal.raise_signal, signal.SIGKILL).result()


def much_shared():
    """Put more into shared memory than there is."""
    import torch

    return torch.ones(4 << 20).share_memory_()


# Waiting.


def sleep():
    """Wait for what never comes."""
    time.sleep(3600)


def spin():
    """Compute without an end."""
    value = 1
    while True:
        value = value * 3 % 1_000_003


def stopped():
    """Be stopped by somebody."""
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(3600)


def deadlock():
    """Take a lock twice."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def late():
    """Come too late: the others have stopped waiting."""
    time.sleep(40)


# Collectives.


def skip():
    """Leave one collective out."""
    return "skip"


def shape():
    """Bring another shape to a collective."""
    return "shape"


def broadcast():
    """Enter another collective."""
    return "broadcast"


def barrier_alone():
    """Wait in a monitored barrier; the ranks with a fault of their own never come."""
    from datetime import timedelta

    import torch.distributed as dist

    dist.monitored_barrier(timeout=timedelta(seconds=6))


# Hosts and schedulers.


def preempt():
    """Ask this node's launcher to end."""
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(60)


def kill_launcher():
    """Kill this node's launcher."""
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def operator():
    """Interrupt this node's launcher."""
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(60)


def lose_node():
    """Let the launcher of the jobs take this node away: it waits for the note."""
    time.sleep(60)


def unplug():
    """Cut this node's network."""
    subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)


def occupy_port():
    """Listen where the store of this job wants to."""
    import socket

    occupy_port.socket = socket.create_server(
        ("0.0.0.0", int(os.environ["MASTER_PORT"]))
    )


def no_such_host():
    """Look for the store on a host that nobody knows."""
    os.environ["MASTER_ADDR"] = "head-node.cluster.invalid"
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
