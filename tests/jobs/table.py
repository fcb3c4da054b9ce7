"""The labelled jobs as data: what is planted where, how it is run, and what is kept."""

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
        record = name.startswith("firstfault/")
        match self.layout:
            case "tree":
                return in_node or agent
            case "files":
                return in_node and path.suffix == ".json"
            case "logs":
                return in_node and path.suffix == ".log"
            case "agents" | "pods":
                return agent and path.suffix == ".err"
            case "tee" | "plain" | "labelled":
                return name == "console.log"
            case "records":
                return record
            case "both":
                return record or agent

    def renamed(self, name: str) -> str:
        """Return the name under which a file or folder is kept."""
        if self.layout == "pods" and name.startswith("agent"):
            return name.replace("agent", "train-worker-").replace(".err", ".log")
        if self.layout == "labelled":
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
FULL = ["disk_full"]

JOBS = (
    # Exceptions of one rank.
    Job("value_tree_old", one("bad_value", 2), VALUE, **OLD),
    Job("value_plain", one("bad_value", 1), VALUE, "plain", **NONE),
    Job("value_pods_old", one("wrong_shapes", 3), VALUE, "pods", **NONE, **OLD),
    Job("value_tree_4", one("bad_value", 5, "step 1"), VALUE, **FOUR),
    Job(
        "value_before_init_old",
        one("bad_value", 3, "config"),
        VALUE,
        program=WAIT,
        **OLD,
    ),
    Job("value_at_end_agents", one("bad_value", 0, "end"), VALUE, "agents"),
    Job("loss_tee", one("loss_check", 3), ["nan_loss", *VALUE], "tee", **NONE),
    Job("index_srun", one("short_list", 2), VALUE, "labelled", **NONE, **SRUN),
    Job(
        "assertion_files_old",
        one("assertion", 1),
        ["assertion", *VALUE],
        "files",
        **OLD,
    ),
    Job("recursion_labelled", one("deep_recursion", 1), VALUE, "labelled", **NONE),
    Job("unwind_tree_old", one("slow_to_unwind", 3), [*VALUE, "hang"], **OLD),
    Job("unwind_both", one("slow_to_unwind", 2), VALUE, "both", **FIRST),
    Job(
        "logged_tee",
        one("logged_only", 2),
        [*VALUE, *LOST],
        "tee",
        rank_optional=NOBODY_KNOWS,
        program=WAIT,
        **NONE,
    ),
    # The same mistake on all ranks, or on all of one host.
    Job(
        "key_all_tree",
        everywhere("missing_key"),
        ["config_error", *VALUE],
        who="nobody",
    ),
    Job(
        "key_all_plain_old",
        everywhere("missing_key"),
        ["config_error", *VALUE],
        "plain",
        who="nobody",
        **NONE,
        **OLD,
    ),
    Job(
        "argument_all_both",
        everywhere("unknown_argument", "build"),
        ["config_error", *VALUE],
        "both",
        who="nobody",
        **FIRST,
    ),
    Job(
        "usage_all_srun",
        everywhere("command_line"),
        ["config_error", *EXIT],
        "labelled",
        who="nobody",
        **NONE,
        **SRUN,
    ),
    Job(
        "module_all_pods",
        everywhere("missing_module", "import"),
        ["import_error"],
        "pods",
        who="nobody",
        **NONE,
    ),
    Job(
        "module_host_tree",
        (Plant("missing_module", (2, 3), "import"),),
        ["import_error"],
        who="either",
        program=WAIT,
    ),
    Job(
        "model_all_plain",
        everywhere("other_model", "build"),
        ["checkpoint_mismatch"],
        "plain",
        who="nobody",
    ),
    Job(
        "group_all_pods_old",
        everywhere("no_group"),
        ["process_group_misuse"],
        "pods",
        who="nobody",
        **OLD,
    ),
    Job(
        "layer_all_tree",
        everywhere("unused_layer", "build"),
        ["ddp_contract"],
        who="nobody",
    ),
    # Files, disks and memory.
    Job(
        "library_labelled_old",
        one("missing_library", 1, "build"),
        ["abi_error"],
        "labelled",
        **NONE,
        **OLD,
    ),
    Job("shard_records", one("missing_shard", 1), ["missing_file"], "records", **FIRST),
    Job("shard_tee_old", one("missing_shard", 2), ["missing_file"], "tee", **OLD),
    Job(
        "read_only_tree",
        one("read_only", 0, "checkpoint"),
        ["permission_denied", "io_error"],
    ),
    Job("disk_tree_old", one("full_disk", 0, "checkpoint"), FULL, **OLD),
    Job("disk_both", one("full_disk", 0, "checkpoint"), FULL, "both", **FIRST),
    Job("device_srun", one("full_device", 2), FULL, "labelled", **NONE, **SRUN),
    Job(
        "sharded_tree",
        (Plant("fill_scratch", (2, 3), "checkpoint"),),
        FULL,
        who="either",
        program={"sharded": True, "timeout": 20},
    ),
    Job("stale_pods", one("stale", 3), ["stale_file_handle"], "pods", **NONE),
    Job("bad_sector_files", one("broken_disk", 1), ["io_error"], "files"),
    Job("descriptors_tree", one("many_files", 2), ["too_many_files"]),
    Job("memory_tee", one("no_memory", 3), ["host_memory_exhausted"], "tee", **NONE),
    Job(
        "memory_logs_old",
        one("no_python_memory", 0),
        ["host_memory_exhausted"],
        "logs",
        **NONE,
        **OLD,
    ),
    Job("long_file_tree", one("big_file", 1), ["resource_limit", "io_error"]),
    Job(
        "cut_checkpoint_old",
        one("cut_checkpoint", 2, "build"),
        ["checkpoint_corrupt"],
        **OLD,
    ),
    # Ends without an exception.
    Job("exit_status_tree", one("exit_status", 1), EXIT),
    Job("exit_text_plain_old", one("exit_text", 3), EXIT, "plain", **NONE, **OLD),
    Job("exit_hard_srun", one("exit_hard", 0), EXIT, "labelled", **NONE, **SRUN),
    Job("exit_hard_both_old", one("exit_hard", 2), EXIT, "both", **FIRST, **OLD),
    Job("exit_after_plain", one("exit_status", 3, "teardown"), EXIT, "plain", **NONE),
    Job("exit_well_tree", one("exit_well", 1), ["left_early", *EXIT]),
    Job("interrupt_pods", one("interrupt", 1), ["interrupted"], "pods", **NONE),
    Job("terminated_tree", one("terminated", 2), ["killed_unknown", *STOPPED]),
    Job("killed_plain", one("killed", 3), ["killed_unknown"], "plain", **NONE),
    Job("killed_agents_old", one("killed", 0), ["killed_unknown"], "agents", **OLD),
    Job("killed_records", one("killed", 2), ["killed_unknown", "vanished"], "records", **FIRST),
    Job(
        "killed_srun", one("killed", 1), ["killed_unknown"], "labelled", **NONE, **SRUN
    ),
    Job(
        "killed_store_srun_old",
        one("killed", 0),
        ["killed_unknown"],
        "labelled",
        **NONE,
        **SRUN,
        **OLD,
    ),
    Job("killed_tree_4", one("killed", 6), ["killed_unknown"], **FOUR),
    # Native crashes.
    Job("null_tee", one("null_pointer", 1), ["segfault"], "tee", **NONE),
    Job(
        "null_records_old",
        one("null_pointer", 3),
        ["segfault"],
        "records",
        **FIRST,
        **OLD,
    ),
    Job(
        "null_thread_both",
        one("null_pointer_in_thread", 0),
        ["segfault"],
        "both",
        **FIRST,
    ),
    Job("null_srun", one("null_pointer", 2), ["segfault"], "labelled", **FIRST, **SRUN),
    Job("null_after_tree", one("null_pointer", 1, "teardown"), ["segfault"]),
    Job("abort_logs", one("give_up", 1), ["abort"], "logs"),
    Job(
        "terminate_plain_old",
        one("terminate", 2),
        ["abort", "cpp_exception"],
        "plain",
        **NONE,
        **OLD,
    ),
    Job("free_twice_tree", one("free_twice", 0), HEAP),
    Job("free_both", one("free_anything", 3), HEAP, "both", **FIRST),
    Job("map_pods", one("shrunken_map", 2), ["bus_error"], "pods", **NONE),
    Job(
        "divide_records",
        one("divide", 1),
        ["floating_point_exception"],
        "records",
        **FIRST,
    ),
    Job(
        "divide_plain_old",
        one("divide", 2),
        ["floating_point_exception"],
        "plain",
        **NONE,
        **OLD,
    ),
    Job("instruction_tree", one("no_such_instruction", 3), ["illegal_instruction"]),
    Job("cpu_time_tee", one("cpu_time", 2), ["resource_limit"], "tee", **NONE),
    # Children.
    Job("child_crash_tree", one("child_crashes", 1), ["segfault", *VALUE]),
    Job("child_fails_both", one("child_fails", 2), [*VALUE, *EXIT], "both", **FIRST),
    Job(
        "pool_labelled",
        one("pool_child_killed", 3),
        [*VALUE, "killed_unknown"],
        "labelled",
        **NONE,
    ),
    Job(
        "loader_value_tee_old",
        one("bad_value", 1, "data"),
        ["dataloader_error", *VALUE],
        "tee",
        program=LOADER,
        **NONE,
        **OLD,
    ),
    Job(
        "loader_killed_tree",
        one("killed", 2, "data"),
        ["dataloader_worker_died"],
        program=LOADER,
    ),
    Job(
        "loader_null_both",
        one("null_pointer", 3, "data"),
        ["dataloader_worker_died", "segfault"],
        "both",
        program=LOADER,
        **FIRST,
    ),
    Job(
        "loader_stuck_plain",
        one("sleep", 0, "data"),
        ["dataloader_stall"],
        "plain",
        program={**LOADER, "data_timeout": 4},
        **NONE,
    ),
    Job(
        "loader_exit_pods_old",
        one("exit_hard", 1, "data"),
        ["dataloader_worker_died"],
        "pods",
        program=LOADER,
        **NONE,
        **OLD,
    ),
    Job(
        "loader_shm_tree",
        one("much_shared", 2, "data"),
        ["shared_memory_exhausted"],
        program=LOADER,
        shm="2m",
    ),
    # Waiting in vain.
    Job("hang_tree", one("sleep", 1), ["hang"], program=WAIT),
    Job("hang_tee_old", one("sleep", 3), ["hang"], "tee", program=WAIT, **NONE, **OLD),
    Job("hang_both", one("sleep", 2), ["hang"], "both", program=WAIT, **FIRST),
    Job("hang_saving_tree", one("sleep", 0, "checkpoint"), ["hang"], program=WAIT),
    Job("spin_pods", one("spin", 0), ["hang"], "pods", program=WAIT, **NONE),
    Job(
        "stopped_tree_old",
        one("stopped", 2),
        ["hang", "host_stall"],
        program=WAIT,
        **OLD,
    ),
    Job(
        "deadlock_srun",
        one("deadlock", 3),
        ["hang"],
        "labelled",
        program=WAIT,
        **FIRST,
        **SRUN,
    ),
    Job(
        "late_plain",
        one("late", 2, "config"),
        ["never_arrived", "hang"],
        "plain",
        program=WAIT,
        **NONE,
    ),
    Job(
        "late_both_old",
        one("late", 1, "config"),
        ["never_arrived", "hang"],
        "both",
        program=WAIT,
        **FIRST,
        **OLD,
    ),
    Job(
        "barrier_tree",
        (Plant("barrier_alone", (0, 1, 3), cause=False), Plant("sleep", (2,))),
        ["hang"],
        program=WAIT,
    ),
    # Collectives.
    Job("skip_tree", one("skip", 2), LOST, program=WAIT, rank_optional=NOBODY_KNOWS),
    Job(
        "leave_pods_old",
        one("leave", 3),
        LOST,
        "pods",
        program=WAIT,
        rank_optional=NOBODY_KNOWS,
        **NONE,
        **OLD,
    ),
    Job(
        "shape_tee",
        one("shape", 1),
        LOST,
        "tee",
        program=WAIT,
        rank_optional=NOBODY_KNOWS,
        **NONE,
    ),
    Job(
        "broadcast_tree_old",
        one("broadcast", 3),
        LOST,
        program=WAIT,
        rank_optional=NOBODY_KNOWS,
        **OLD,
    ),
    # Hosts, launchers and the network.
    Job("preempt_tree", one("preempt", 2), STOPPED, who="host"),
    Job(
        "preempt_pods_old",
        one("preempt", 0),
        STOPPED,
        "pods",
        who="host",
        **NONE,
        **OLD,
    ),
    Job(
        "cancel_all_plain",
        (Plant("preempt", (0, 2)),),
        STOPPED,
        "plain",
        who="nobody",
        **NONE,
    ),
    Job("operator_tree", one("operator", 3), ["interrupted", *STOPPED], who="host"),
    Job("node_lost_3", one("lose_node", 4), ["host_lost"], nodes=3, who="host"),
    Job(
        "node_lost_pods_old",
        one("lose_node", 2),
        ["host_lost"],
        "pods",
        who="host",
        **NONE,
        **OLD,
    ),
    Job(
        "unplugged_tree",
        one("unplug", 2),
        [
            "network_error",
            "collective_timeout",
            "host_lost",
            "peer_lost",
            "hang",
            "unknown",
        ],
        who="nobody",
        program=WAIT,
    ),
    Job(
        "absent_agents",
        (),
        ["rendezvous_failed", "never_arrived"],
        "agents",
        absent=(1,),
        who="nobody",
        torchrun=("--rdzv-conf=join_timeout=20",),
    ),
    Job(
        "port_srun",
        one("occupy_port", 0, "config"),
        ["port_in_use"],
        "labelled",
        program=WAIT,
        **NONE,
        **SRUN,
    ),
    Job(
        "name_all_srun",
        everywhere("no_such_host"),
        ["dns_failure"],
        "labelled",
        who="nobody",
        program=WAIT,
        **NONE,
        **SRUN,
    ),
    # More than one fault, and more than one attempt.
    Job(
        "two_tree",
        (Plant("bad_value", (1,)), Plant("null_pointer", (2,))),
        [*VALUE, "segfault"],
    ),
    Job(
        "two_records",
        (Plant("null_pointer", (0,)), Plant("exit_status", (3,))),
        ["segfault", *EXIT],
        "records",
        **FIRST,
    ),
    Job("restart_null_tree", always("null_pointer", 3), ["segfault"], restarts=1),
    Job(
        "restart_value_records",
        always("bad_value", 0),
        VALUE,
        "records",
        restarts=1,
        **FIRST,
    ),
    Job(
        "restart_killed_plain",
        always("killed", 2),
        ["killed_unknown"],
        "plain",
        restarts=1,
        **NONE,
    ),
    Job(
        "restart_other_old",
        (Plant("exit_hard", (1,)), Plant("bad_value", (2,), attempts=(1,))),
        EXIT,
        restarts=1,
        **OLD,
    ),
    # Nothing at all.
    Job("well_tree", (), []),
    Job("well_both", (), [], "both", **FIRST),
)
