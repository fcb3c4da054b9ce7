"""The faults of a program and its settings, which mostly meet all ranks alike."""

import json
import os
import socket
import sys
from pathlib import Path


def undefined_name():
    """Use a name that nobody has defined."""
    return warmup_steps * 2  # noqa: F821


def misspelled():
    """Use an optimizer by a name that it does not have."""
    import torch

    return torch.optim.AdamW8


def nothing_there():
    """Use what a lookup has not found."""
    match = {"model": "small"}.get("schedule")
    return match.steps


def missing_argument():
    """Call own code without what it needs."""

    def build(width, depth):
        return width * depth

    return build(width=16)


def broken_config():
    """Read a configuration that is not JSON."""
    return json.loads('{"lr": 0.1, "steps": }')


def unset_variable():
    """Read a variable of the environment that is not set."""
    return os.environ["DATASET_ROOT"]


def syntax_error():
    """Import a module that does not compile."""
    Path("/srv/schedule.py").write_text("def rate(step)\n    return step\n")
    sys.path.append("/srv")
    import schedule  # noqa: F401


def moved_name():
    """Import a name that a library no longer has."""
    from torch.optim.lr_scheduler import WarmupCosine  # noqa: F401


def no_driver():
    """Choose a GPU on a machine without one."""
    import torch

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def gpu_backend():
    """Use the GPUs' backend on a machine without any."""
    import torch.distributed as dist

    dist.init_process_group("nccl")


def wrong_interface():
    """Let gloo use a network interface that is not there."""
    os.environ["GLOO_SOCKET_IFNAME"] = "ib9"


def other_weights():
    """Load a checkpoint that holds objects besides weights."""
    import torch

    path = Path(f"/srv/objects-{os.getpid()}.pt")
    torch.save({"path": Path("/srv/data"), "epoch": 3}, path)
    return torch.load(path, weights_only=True)


def missing_layers():
    """Load a checkpoint in which layers are missing."""
    import torch

    weights = torch.nn.Linear(8, 16).state_dict()
    del weights["bias"]
    torch.nn.Linear(8, 16).load_state_dict(weights)


def forbidden():
    """Read a file of somebody else."""
    secret = Path(f"/srv/token-{os.getpid()}")
    secret.write_text("none")
    secret.chmod(0)
    os.setegid(65534)
    os.seteuid(65534)
    return secret.read_text()


def refused():
    """Log to a server on which nobody listens."""
    import urllib.request

    return urllib.request.urlopen("http://127.0.0.1:5000/api/runs", timeout=5)


def unknown_server():
    """Log to a server whose name nobody knows."""
    import urllib.request

    return urllib.request.urlopen("http://mlflow.cluster.invalid/api/runs", timeout=5)


def silent_server():
    """Log to a server that does not answer."""
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname(), timeout=2)
    client.sendall(b"GET /api/runs HTTP/1.1\r\n\r\n")
    return client.recv(100)


def own_store():
    """Open the store of the job where the launcher's already is."""
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
