"""Runs the labelled jobs of table.py, and keeps what each leaves below tests/data.

    python tests/jobs/launch.py [--torch 2.14.1=/opt/venv --torch 2.6.0=…] [NAME…]

Every node is a set of namespaces of its own, with a host name, an address, process IDs
and a boot ID, so that a job looks as it would on several machines; it needs root, for
that. Paths of this machine are hidden by mounts, or replaced afterwards.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from job import Job
from table import JOBS

HERE = Path(__file__).resolve().parent
CORPUS = HERE.parent / "data" / "corpus"
VENV = "/opt/venv"

# Seconds that a task has to end after srun's SIGTERM; Slurm's own default.
KILL_WAIT = 30

# What a node does before it runs its command: its own host name and files of its
# machine, and the places of the job.
SETUP = """
set -e
mount --make-rprivate /
hostname {name}
mount -t tmpfs none /srv
mkdir /srv/job /srv/truth /srv/train /srv/scratch /srv/readonly
mount --bind {job} /srv/job
mount --bind {truth} /srv/truth
mount --bind {program} /srv/train
mount -t tmpfs -o size=256k none /srv/scratch
mount -t tmpfs -o ro none /srv/readonly
mount -t tmpfs -o size={shm} none /dev/shm
mkdir -p {venv_place}
mount --bind {venv} {venv_place}
mount --bind {truth}/hosts /etc/hosts
mount --bind {truth}/nsswitch.conf /etc/nsswitch.conf
mount --bind {truth}/{name}.boot_id /proc/sys/kernel/random/boot_id
mount --bind {truth}/{name}.machine_id /etc/machine-id
cd /srv/train
exec {venv_place}/bin/python -ISc '{init}' "$@"
"""

# The first process of a node: signals by default do not reach such a one from inside.
INIT = """
import subprocess, sys
status = subprocess.call(sys.argv[1:])
sys.exit(status if status >= 0 else 128 - status)
"""


@dataclass
class Node:
    """One node of a running job."""

    name: str
    address: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def statuses(self) -> list[int]:
        """How the commands of this node ended."""
        return [process.wait() for process in self.processes]

    def take_away(self) -> None:
        """Kill everything on this node at once, as if its power were cut."""
        for process in self.processes:
            # unshare's child is the first process of the node, and takes all with it.
            process.kill()


class Console:
    """One log into which all speak, line by line as they come."""

    def __init__(self, path: Path) -> None:
        """Begin the log."""
        self._file = path.open("wb")
        self._lock = threading.Lock()
        self._readers: list[threading.Thread] = []

    def attach(self, stream: IO[bytes], prefix: bytes = b"") -> None:
        """Copy what comes from a stream, each line behind a prefix."""

        def copy() -> None:
            for line in stream:
                self.write(prefix + line)

        self._readers.append(threading.Thread(target=copy))
        self._readers[-1].start()

    def write(self, line: bytes) -> None:
        """Write one line."""
        with self._lock:
            self._file.write(line if line.endswith(b"\n") else line + b"\n")

    def close(self) -> None:
        """Wait for the streams' ends, and close the log."""
        for reader in self._readers:
            reader.join()
        self._file.close()


class Run:
    """One job while it runs."""

    def __init__(self, job: Job, venv: Path, directory: Path) -> None:
        """Lay out the places of the job."""
        self.job = job
        self.venv = venv
        self.files = directory / "job"
        self.truth = directory / "truth"
        # When the tasks were told to end, by the monotonic clock; 0 while they run.
        self.ended = 0.0
        # The tasks of whose end srun has told.
        self.told: set[int] = set()
        self.files.mkdir()
        self.truth.mkdir()
        names = [f"{job.host}{number}" for number in range(job.nodes)]
        self.nodes = [Node(name, f"10.1.0.{11 + i}") for i, name in enumerate(names)]
        hosts = "".join(f"{node.address} {node.name}\n" for node in self.nodes)
        (self.truth / "hosts").write_text("127.0.0.1 localhost\n" + hosts)
        # Nobody answers on these networks, and to wait for that takes long.
        (self.truth / "nsswitch.conf").write_text("hosts: files\n")
        (self.truth / "plan.json").write_text(json.dumps(job.plan()))
        for node in self.nodes:
            (self.truth / f"{node.name}.boot_id").write_text(f"{uuid.uuid4()}\n")
            (self.truth / f"{node.name}.machine_id").write_text(uuid.uuid4().hex + "\n")

    def go(self) -> None:
        """Run the job to its end."""
        subprocess.run(["ip", "link", "add", "br0", "type", "bridge"], check=True)
        subprocess.run(["ip", "link", "set", "br0", "up"], check=True)
        for number, node in enumerate(self.nodes):
            connect(node, number)
        self.console = Console(self.files / "console.log")
        if self.job.launcher == "srun":
            self.start_ranks()
        else:
            self.start_agents()
        watched = threading.Event()
        watcher = threading.Thread(target=self.watch, args=(watched,))
        watcher.start()
        deadline = time.monotonic() + 300
        for node in self.nodes:
            for process in node.processes:
                try:
                    process.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    print(f"{self.job.name}: took too long", file=sys.stderr)
                    for each in self.nodes:
                        each.take_away()
        watched.set()
        watcher.join()
        self.console.close()

    def watch(self, done: threading.Event) -> None:
        """Do to nodes what was planted for them, as soon as the time has come."""
        while not done.wait(0.05):
            for lost in self.truth.glob("lose_node.*.json"):
                name = json.loads(lost.read_text())["node"]
                [node] = [node for node in self.nodes if node.name == name]
                node.take_away()
            if self.job.launcher == "srun":
                self.tell_of_ended_tasks()
                if self.job.kill_on_bad_exit:
                    self.end_all_when_one_ended()
        self.tell_of_ended_tasks()

    def tell_of_ended_tasks(self) -> None:
        """Write what srun says of tasks that failed, as they do."""
        for task, process in enumerate(self.tasks):
            status = process.poll()
            if task in self.told or not status:
                continue
            self.told.add(task)
            if status > 128:
                status = 128 - status
            exited = f"Exited with exit code {status}"
            said = signal.strsignal(-status) if status < 0 else exited
            node = self.nodes[task // self.job.nproc].name
            self.console.write(f"srun: error: {node}: task {task}: {said}\n".encode())

    @property
    def tasks(self) -> list[subprocess.Popen[bytes]]:
        """The ranks by number, where each was started by itself."""
        started = [task for node in self.nodes for task in node.processes]
        return started if self.job.launcher == "srun" else []

    def end_all_when_one_ended(self) -> None:
        """Send SIGTERM to all tasks, as srun does when one has failed; then SIGKILL."""
        if self.told and not self.ended:
            time.sleep(1.5)
            self.ended = time.monotonic()
            self.console.write(f"srun: Terminating StepId={self.job.run_id}.0".encode())
            self.signal_tasks(signal.SIGTERM)
        elif self.told and time.monotonic() > self.ended + KILL_WAIT:
            self.signal_tasks(signal.SIGKILL)

    def signal_tasks(self, number: int) -> None:
        """Send a signal to the ranks that still run."""
        for task in self.tasks:
            if task.poll() is None:
                # unshare's child is the first process, and the rank is its child.
                for first in children(task.pid):
                    for rank in children(first):
                        os.kill(rank, number)

    def start_agents(self) -> None:
        """Start one torchrun a node."""
        job = self.job
        for number, node in enumerate(self.nodes):
            command = [f"{VENV}/bin/python", "-m", "torch.distributed.run"]
            command += [f"--nnodes={job.nodes}", f"--nproc-per-node={job.nproc}"]
            command += ["--rdzv-backend=c10d", f"--rdzv-id={job.run_id}"]
            command += [f"--rdzv-endpoint={self.nodes[0].name}:29400"]
            command += [f"--max-restarts={job.restarts}", *job.torchrun]
            if job.redirected:
                command += [f"--log-dir=/srv/job/{node.name}"]
                command += ["--tee=3" if job.layout == "tee" else "--redirects=3"]
            command += ["/srv/train/train.py", "--config", "small.yaml"]
            if number in job.absent:
                continue
            self.start(node, command, {}, f"agent{number}", b"%d: " % number)

    def start_ranks(self) -> None:
        """Start each rank by itself, as srun does."""
        job = self.job
        for rank in range(job.nodes * job.nproc):
            node = self.nodes[rank // job.nproc]
            own = {
                "RANK": str(rank),
                "WORLD_SIZE": str(job.nodes * job.nproc),
                "LOCAL_RANK": str(rank % job.nproc),
                "LOCAL_WORLD_SIZE": str(job.nproc),
                "MASTER_ADDR": self.nodes[0].name,
                "MASTER_PORT": "29500",
                "SLURM_PROCID": str(rank),
                "SLURM_LOCALID": str(rank % job.nproc),
                "SLURM_JOB_ID": job.run_id,
            }
            command = [f"{VENV}/bin/python", "-u", "/srv/train/train.py"]
            command += ["--config", "small.yaml"]
            self.start(node, command, own, f"rank{rank}", b"%d: " % rank)

    def start(
        self,
        node: Node,
        command: list[str],
        more: dict[str, str],
        name: str,
        prefix: bytes,
    ) -> None:
        """Start one command on a node, with its output where the layout has it."""
        environment = {
            "PATH": f"{VENV}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "eth0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.environ.get("JOBS_PYTHONPATH", ""),
            **more,
        }
        if self.job.directory:
            environment["FIRSTFAULT_DIR"] = "/srv/job/firstfault"
        setup = SETUP.format(
            name=node.name,
            job=self.files,
            truth=self.truth,
            program=HERE / "program",
            shm=self.job.shm,
            venv=self.venv,
            venv_place=VENV,
            init=INIT,
        )
        command = [
            *("ip", "netns", "exec", node.name),
            *("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child"),
            *("--mount-proc", "sh", "-c", setup, "sh", *command),
        ]
        merged = self.job.layout in ("tee", "plain", "labelled")
        out = subprocess.PIPE if merged else (self.files / f"{name}.err").open("wb")
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=environment
        )
        node.processes.append(process)
        if merged:
            assert process.stdout is not None
            labelled = self.job.layout == "labelled"
            self.console.attach(process.stdout, prefix if labelled else b"")


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    return [
        int(child)
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ]


def connect(node: Node, number: int) -> None:
    """Give a node a network of its own, with an address on the job's bridge."""
    name = node.name
    for command in (
        f"ip netns add {name}",
        f"ip link add v{number} type veth peer name eth0 netns {name}",
        f"ip link set v{number} master br0 up",
        f"ip -n {name} addr add {node.address}/24 dev eth0",
        f"ip -n {name} link set eth0 up",
        f"ip -n {name} link set lo up",
    ):
        subprocess.run(command.split(), check=True)


def disconnect(run: Run) -> None:
    """Take the networks away again, also where a process lingers in one."""
    for number, node in enumerate(run.nodes):
        for command in f"ip link del v{number}", f"ip netns del {node.name}":
            subprocess.run(command.split(), check=False, stderr=subprocess.DEVNULL)
    subprocess.run(["ip", "link", "del", "br0"], check=False)


def label(run: Run, version: str) -> dict[str, object]:
    """Return the label: from what was planted, and from nothing else."""
    job = run.job
    notes = [json.loads(path.read_text()) for path in run.truth.glob("*.[0-9]*.json")]
    planted = [note for note in notes if note["fault"] in job.causes()]
    first = min((note["attempt"] for note in planted), default=0)
    planted = [note for note in planted if note["attempt"] == first]
    found: dict[str, object] = {"nodes": job.nodes, "nproc_per_node": job.nproc}
    found |= {"category": job.category}
    if not job.category:
        found["rank"] = None
    elif job.who == "nobody":
        found |= {"rank": None}
    elif job.who == "host":
        [node] = {note["node"] for note in planted}
        found |= {"rank": None, "node": node}
    else:
        assert planted, f"{job.name}: the fault was not planted"
        planted.sort(key=lambda note: note["rank"])
        ranks = [note["rank"] for note in planted]
        found["rank"] = ranks[0] if len(ranks) == 1 else ranks
        if len(ranks) == 1:
            found["local_rank"] = planted[0]["local_rank"]
        hosts = sorted({note["node"] for note in planted})
        found["node"] = hosts[0] if len(hosts) == 1 else hosts
        if job.who == "either":
            # Also those that were ended before they came so far.
            found["rank"] = [None, *(r for plant in job.plants for r in plant.ranks)]
    if job.rank_optional:
        found["rank_optional"] = job.rank_optional
    found |= {"fault": job.name, "torch": version, "recorder": job.recorder}
    return found


def keep(run: Run) -> None:
    """Leave of the job's files what its layout has, without this machine's paths."""
    job = run.job
    if job.layout == "tree":
        for number, node in enumerate(run.nodes):
            for status in node.statuses:
                # As shells and schedulers say it.
                shown = status if status >= 0 else 128 - status
                (run.files / f"agent{number}.rc").write_text(f"{shown}\n")
    for path in sorted(run.files.rglob("*"), reverse=True):
        name = path.relative_to(run.files).as_posix()
        if path.is_file() and not job.keeps(name, path):
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    for path in list(run.files.iterdir()):
        path.rename(path.with_name(job.renamed(path.name)))
    for path in run.files.rglob("*"):
        if path.is_file():
            clean(path)


def clean(path: Path) -> None:
    """Replace this machine's paths in a file, binary ones at their length."""
    data = path.read_bytes()
    python = os.path.realpath(sys.executable).rsplit("/bin/", 1)[0]
    source = os.environ.get("JOBS_PYTHONPATH", "")
    for place, neutral in (
        (python, "/usr/local"),
        (source, f"{VENV}/lib/python3.11/site-packages"),
    ):
        if not place:
            continue
        if path.suffix == ".box":
            assert place.encode() not in data, path
        data = data.replace(place.encode(), neutral.encode())
    times = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def is_named(run: Run, host: object) -> bool:
    """Return whether anything that is kept tells a host's name."""
    if not isinstance(host, str):
        return True
    kept = [path for path in run.files.rglob("*") if path.is_file()]
    names = (path.relative_to(run.files).as_posix() for path in kept)
    contents = (path.read_bytes() for path in kept)
    return any(host in name for name in names) or any(
        host.encode() in content for content in contents
    )


def store(run: Run, version: str) -> None:
    """Put the job's files and its label into the corpus."""
    found = label(run, version)
    keep(run)
    if not (run.job.placed and is_named(run, found.get("node"))):
        # Then nobody can be asked for it.
        del found["node"]
    written = {
        path.relative_to(run.files).as_posix(): round(path.stat().st_mtime, 3)
        for path in sorted(run.files.rglob("*.json"))
        if path.is_file()
    }
    if written:
        # A checkout does not keep these, and a baseline needs them.
        found["written"] = written
    target = CORPUS / run.job.name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(run.files, target)
    (target / "expected.json").write_text(json.dumps(found, indent=1) + "\n")
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"{run.job.name}: {size >> 10} KiB, rank {found.get('rank')}", flush=True)


def main() -> None:
    """Run the jobs named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--torch", action="append", default=[], metavar="VERSION=VENV")
    parser.add_argument("--missing", action="store_true", help="only those not there")
    options = parser.parse_args()
    if "JOBS_INSIDE" not in os.environ:
        # A network and mounts of our own, gone when we are.
        again = ["unshare", "--net", "--mount", sys.executable, *sys.argv]
        os.environ["JOBS_INSIDE"] = "1"
        os.execvp("unshare", again)
    os.makedirs("/run/netns", exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", "/run/netns"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    venvs = dict(each.split("=", 1) for each in options.torch)
    table = {job.name: job for job in JOBS}
    for job in map(table.__getitem__, options.names or table):
        if options.missing and (CORPUS / job.name).exists():
            continue
        version = list(venvs)[job.torch]
        with tempfile.TemporaryDirectory() as directory:
            run = Run(job, Path(venvs[version]), Path(directory))
            try:
                run.go()
                store(run, version)
            except (AssertionError, ValueError) as e:
                print(f"{job.name}: {e!r}", file=sys.stderr, flush=True)
            finally:
                disconnect(run)


if __name__ == "__main__":
    main()
