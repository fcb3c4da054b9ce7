"""A labelled job as data: what is planted where, how it is run, and what is kept."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

# What is kept of a job:
#   tree      a folder of torchrun's logs for each node, and the launchers' own output
#   files     of these, the error files alone
#   logs      of these, the ranks' output alone
#   agents    the launchers' own output alone
#   pods      a log for each node, in which its launcher and its ranks speak
#   tee       one log of all nodes, ranks marked by torchrun: [default0]:
#   plain     one log of all nodes, without a mark
#             (or, where no launcher is, one for each rank)
#   tasks     a log for each task, and one of srun's own, as by srun --output=%t
#   labelled  one log of all tasks, marked as by srun --label: "3: "
#   records   FIRSTFAULT_DIR alone
#   both      FIRSTFAULT_DIR and the launchers' own output
Layout = Literal[
    "tree",
    "files",
    "logs",
    "agents",
    "pods",
    "tee",
    "plain",
    "tasks",
    "labelled",
    "records",
    "both",
]

ALL = "all"


@dataclass(frozen=True)
class Plant:
    """A fault that some ranks run into at a stage of the program."""

    fault: str
    ranks: tuple[int, ...] | Literal["all"]
    stage: str = "step 3"
    attempts: tuple[int, ...] | Literal["all"] = (0,)
    # Whether it is the cause, or something around it.
    cause: bool = True


@dataclass(frozen=True)
class Job:
    """One labelled job."""

    name: str
    plants: tuple[Plant, ...]
    category: list[str]
    layout: Layout = "tree"
    recorder: Literal["none", "torch", "firstfault"] = "torch"
    torch: Literal[0, 1] = 0
    nodes: int = 2
    nproc: int = 2
    # Whom the label names: the ranks planted at, their host, any of the two, or nobody.
    who: Literal["ranks", "host", "either", "nobody"] = "ranks"
    rank_optional: str = ""
    # Whether anything that is kept tells on which host the rank was.
    placed: bool = True
    launcher: Literal["torchrun", "srun"] = "torchrun"
    kill_on_bad_exit: bool = True
    restarts: int = 0
    torchrun: tuple[str, ...] = ()
    # Nodes that never start.
    absent: tuple[int, ...] = ()
    host: str = "node"
    shm: str = "64m"
    program: dict[str, Any] = field(default_factory=dict)

    @property
    def run_id(self) -> str:
        """The job's number, as a scheduler would give it."""
        return str(40_000 + sum(map(ord, self.name)))

    @property
    def redirected(self) -> bool:
        """Whether torchrun takes the ranks' output."""
        return self.layout in ("tree", "files", "logs", "agents", "tee", "both")

    @property
    def directory(self) -> bool:
        """Whether the records go into a directory of firstfault's own."""
        return self.layout in ("records", "both")

    def causes(self) -> set[str]:
        """Return the names of the faults that are the cause."""
        return {plant.fault for plant in self.plants if plant.cause}

    def plan(self) -> dict[str, Any]:
        """Return what the program needs to know."""
        plants = [[p.fault, p.ranks, p.stage, p.attempts] for p in self.plants]
        defaults = {"recorder": self.recorder, "steps": 6, "timeout": 60}
        return {**defaults, **self.program, "plants": plants}

    def keeps(self, name: str, path: Path) -> bool:
        """Return whether a file is kept, by its path below the job's directory."""
        in_node = name.startswith(self.host)
        agent = name.startswith("agent")
        rank = name.startswith("rank")
        record = name.startswith("firstfault/")
        match self.layout:
            case "tree":
                return in_node or agent
            case "files":
                return in_node and path.suffix == ".json"
            case "logs":
                return in_node and path.suffix == ".log"
            case "agents":
                return agent and path.suffix == ".err"
            case "pods":
                return (agent or rank) and path.suffix == ".err"
            case "tasks":
                return rank or name == "console.log"
            case "tee" | "plain" | "labelled":
                return name == "console.log"
            case "records":
                return record
            case "both":
                return record or agent

    def renamed(self, name: str) -> str:
        """Return the name under which a file or folder is kept."""
        if self.layout == "pods":
            number = name.removeprefix("agent").removeprefix("rank")
            return f"train-worker-{number}".replace(".err", ".log")
        if self.layout == "tasks" and name.startswith("rank"):
            return name.replace("rank", "task-").replace(".err", ".out")
        if self.layout in ("labelled", "tasks"):
            return name.replace("console.log", f"slurm-{self.run_id}.out")
        return name


VALUE = ["python_exception"]
EXIT = ["exit_without_traceback"]
HEAP = ["heap_corruption", "abort"]
LOST = ["collective_mismatch", "hang", "collective_timeout", "left_early"]
STOPPED = ["preempted", "launcher_terminated"]
NOBODY_KNOWS = "nothing tells whose mistake it was"

# Short timeouts of the process group, where ranks must wait for another in vain.
WAIT = {"timeout": 12}
LOADER = {"data_workers": 1}


def one(fault: str, rank: int, stage: str = "step 3") -> tuple[Plant, ...]:
    """Return one fault of one rank in the first attempt."""
    return (Plant(fault, (rank,), stage),)


def everywhere(fault: str, stage: str = "config") -> tuple[Plant, ...]:
    """Return one fault of all ranks."""
    return (Plant(fault, ALL, stage),)


def always(fault: str, rank: int) -> tuple[Plant, ...]:
    """Return one fault of one rank in every attempt."""
    return (Plant(fault, (rank,), attempts=ALL),)


OLD: Any = {"torch": 1}
SRUN: Any = {"launcher": "srun"}
FIRST: Any = {"recorder": "firstfault"}
NONE: Any = {"recorder": "none"}
FOUR: Any = {"nproc": 4}
# One rank a pod, without a launcher: nobody ends the others when one has failed.
ALONE: Any = {
    "launcher": "srun",
    "kill_on_bad_exit": False,
    "nodes": 3,
    "nproc": 1,
    "recorder": "none",
    "program": WAIT,
}
NOBODY: Any = {"who": "nobody"}
SHORT: Any = {"program": WAIT}
UNKNOWN: Any = {"rank_optional": NOBODY_KNOWS, "program": WAIT}
FULL = ["disk_full"]
CONFIG = ["config_error", *VALUE]
NAN = ["nan_loss"]
KILLED = ["killed_unknown"]
SERVER = ["network_error", *VALUE]
