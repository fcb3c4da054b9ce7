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
    Job(
        "killed_records",
        one("killed", 2),
        ["killed_unknown", "vanished"],
        "records",
        **FIRST,
    ),
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
    # More of all ranks alike.
    Job(
        "exit_text_all_plain",
        everywhere("exit_text"),
        ["config_error", *EXIT],
        "plain",
        **NONE,
        **NOBODY,
    ),
    Job(
        "exit_text_all_srun_old",
        everywhere("exit_text", "build"),
        ["config_error", *EXIT],
        "labelled",
        **NONE,
        **SRUN,
        **OLD,
        **NOBODY,
    ),
    Job(
        "exit_text_all_alone",
        everywhere("exit_text"),
        ["config_error", *EXIT],
        "pods",
        **ALONE,
        **NOBODY,
    ),
    Job(
        "assertion_all_pods",
        everywhere("assertion", "build"),
        ["assertion", *CONFIG],
        "pods",
        **NONE,
        **NOBODY,
    ),
    Job(
        "assertion_all_srun",
        everywhere("assertion"),
        ["assertion", *CONFIG],
        "labelled",
        **NONE,
        **SRUN,
        **NOBODY,
    ),
    Job(
        "undefined_all_tee_old",
        everywhere("undefined_name"),
        CONFIG,
        "tee",
        **NONE,
        **OLD,
        **NOBODY,
    ),
    Job(
        "attribute_all_srun",
        everywhere("misspelled", "build"),
        ["import_error", *CONFIG],
        "labelled",
        **NONE,
        **SRUN,
        **NOBODY,
    ),
    Job(
        "attribute_all_alone",
        everywhere("nothing_there"),
        CONFIG,
        "pods",
        **ALONE,
        **NOBODY,
    ),
    Job(
        "type_all_logs_old",
        everywhere("missing_argument", "build"),
        CONFIG,
        "logs",
        **NONE,
        **OLD,
        **NOBODY,
    ),
    Job(
        "usage_all_pods",
        everywhere("command_line"),
        ["config_error", *EXIT],
        "pods",
        **NONE,
        **NOBODY,
    ),
    Job(
        "usage_all_tree_old",
        everywhere("command_line"),
        ["config_error", *EXIT],
        **OLD,
        **NOBODY,
    ),
    Job(
        "json_all_plain", everywhere("broken_config"), CONFIG, "plain", **NONE, **NOBODY
    ),
    Job(
        "variable_all_tasks_old",
        everywhere("unset_variable"),
        CONFIG,
        "tasks",
        **NONE,
        **SRUN,
        **OLD,
        **NOBODY,
    ),
    Job(
        "syntax_all_tee",
        everywhere("syntax_error", "import"),
        CONFIG,
        "tee",
        **NONE,
        **NOBODY,
    ),
    Job(
        "import_name_all_srun_old",
        everywhere("moved_name", "build"),
        ["import_error"],
        "labelled",
        **NONE,
        **SRUN,
        **OLD,
        **NOBODY,
    ),
    Job(
        "shard_all_pods",
        everywhere("missing_shard", "build"),
        ["missing_file"],
        "pods",
        **NONE,
        **NOBODY,
    ),
    Job(
        "driver_all_srun",
        everywhere("no_driver"),
        ["driver_mismatch", "gpu_lost"],
        "labelled",
        **NONE,
        **SRUN,
        **NOBODY,
    ),
    Job(
        "backend_all_pods_old",
        everywhere("gpu_backend"),
        ["process_group_misuse", "driver_mismatch", "gpu_lost", "config_error"],
        "pods",
        **NONE,
        **OLD,
        **NOBODY,
    ),
    Job(
        "interface_all_plain",
        everywhere("wrong_interface"),
        ["network_error", *CONFIG],
        "plain",
        **NONE,
        **NOBODY,
    ),
    Job(
        "weights_all_tee",
        everywhere("other_weights", "build"),
        ["checkpoint_corrupt"],
        "tee",
        **NONE,
        **NOBODY,
    ),
    Job(
        "layers_all_tasks",
        everywhere("missing_layers", "build"),
        ["checkpoint_mismatch"],
        "tasks",
        **NONE,
        **SRUN,
        **NOBODY,
    ),
    Job(
        "loss_all_labelled",
        everywhere("loss_check", "step 3"),
        NAN,
        "labelled",
        **NONE,
        **NOBODY,
    ),
    Job(
        "loss_all_pods_old",
        everywhere("loss_check", "step 3"),
        NAN,
        "pods",
        **NONE,
        **OLD,
        **NOBODY,
    ),
    Job(
        "shapes_host_pods",
        (Plant("wrong_shapes", (2, 3)),),
        VALUE,
        "pods",
        who="either",
        **NONE,
    ),
    # More of one rank alone.
    Job(
        "cleanup_plain",
        one("failing_cleanup", 1),
        [*VALUE, "missing_file"],
        "plain",
        **NONE,
    ),
    Job(
        "cleanup_srun_old",
        one("failing_cleanup", 2),
        [*VALUE, "missing_file"],
        "labelled",
        **NONE,
        **SRUN,
        **OLD,
    ),
    Job("norm_tee_old", one("total_norm", 2), NAN, "tee", **NONE, **OLD),
    Job("anomaly_pods", one("anomaly", 3), NAN, "pods", **NONE),
    Job(
        "thread_exit_plain_old",
        one("thread_exits", 2),
        [*VALUE, *EXIT],
        "plain",
        **NONE,
        **OLD,
    ),
    Job(
        "thread_exit_tasks",
        one("thread_exits", 1),
        [*VALUE, *EXIT],
        "tasks",
        **NONE,
        **SRUN,
    ),
    Job(
        "thread_dead_srun",
        one("empty_queue", 1),
        ["hang", *VALUE],
        "labelled",
        **NONE,
        **SRUN,
        **SHORT,
    ),
    Job(
        "thread_dead_pods",
        one("empty_queue", 2),
        ["hang", *VALUE],
        "pods",
        **NONE,
        **SHORT,
    ),
    Job("refused_tee", one("refused", 0), SERVER, "tee", **NONE),
    Job(
        "server_name_srun",
        one("unknown_server", 3, "build"),
        ["dns_failure", *SERVER],
        "labelled",
        **NONE,
        **SRUN,
    ),
    Job(
        "server_silent_pods_old", one("silent_server", 0), SERVER, "pods", **NONE, **OLD
    ),
    Job("forbidden_plain", one("forbidden", 1), ["permission_denied"], "plain", **NONE),
    Job(
        "own_store_pods",
        one("own_store", 0, "config"),
        ["port_in_use"],
        "pods",
        **NONE,
        **SHORT,
    ),
    Job(
        "own_store_tee_old",
        one("own_store", 0, "config"),
        ["port_in_use"],
        "tee",
        **NONE,
        **OLD,
        **SHORT,
    ),
    Job(
        "child_killed_srun",
        one("child_killed", 2),
        [*VALUE, *KILLED],
        "labelled",
        **NONE,
        **SRUN,
    ),
    Job("spawned_plain", one("spawned_fails", 3), VALUE, "plain", **NONE),
    Job("at_exit_agents", one("at_exit_hard", 1, "end"), EXIT, "agents", **NONE),
    Job(
        "at_exit_srun", one("at_exit_hard", 2, "end"), EXIT, "labelled", **NONE, **SRUN
    ),
    Job("at_exit_noise_tree", one("at_exit_noise", 1, "end"), []),
    Job(
        "asserted_srun",
        one("failed_assert", 3),
        ["abort", "assertion"],
        "labelled",
        **NONE,
        **SRUN,
    ),
    Job("smashed_pods", one("smashed_stack", 1), HEAP, "pods", **NONE),
    Job(
        "breakpoint_tee_old", one("breakpoint_left", 2), ["trap"], "tee", **NONE, **OLD
    ),
    Job("fatal_plain", one("fatal", 0), ["abort"], "plain", **NONE),
    Job(
        "overflow_labelled",
        one("native_recursion", 3),
        ["segfault"],
        "labelled",
        **NONE,
    ),
    Job(
        "threads_pods_old",
        one("many_threads", 1),
        ["resource_limit", "host_memory_exhausted"],
        "pods",
        **NONE,
        **OLD,
    ),
    Job("value_alone", one("bad_value", 1), VALUE, "pods", **ALONE),
    Job("null_alone_old", one("null_pointer", 2), ["segfault"], "pods", **ALONE, **OLD),
    # More that were killed, lost or ended from outside.
    Job("killed_pods", one("killed", 1), KILLED, "pods", **NONE),
    Job(
        "killed_alone",
        one("killed", 2),
        [*KILLED, "vanished", "host_lost", "unknown"],
        "pods",
        **ALONE,
    ),
    Job(
        "killed_early_srun",
        one("killed", 2, "config"),
        KILLED,
        "labelled",
        **NONE,
        **SRUN,
        **SHORT,
    ),
    Job(
        "exit_early_pods", one("exit_hard", 3, "config"), EXIT, "pods", **NONE, **SHORT
    ),
    Job(
        "exit_early_tasks_old",
        one("exit_hard", 1, "config"),
        EXIT,
        "tasks",
        **NONE,
        **SRUN,
        **OLD,
        **SHORT,
    ),
    Job(
        "killed_host_srun",
        (Plant("killed", (2, 3)),),
        [*KILLED, "host_lost"],
        "labelled",
        who="either",
        **NONE,
        **SRUN,
    ),
    Job(
        "killed_host_plain",
        (Plant("killed", (2, 3)),),
        [*KILLED, "host_lost"],
        "plain",
        who="either",
        **NONE,
    ),
    Job(
        "node_lost_srun",
        (Plant("lose_node", (2, 3)),),
        ["host_lost", *KILLED],
        "labelled",
        who="either",
        **NONE,
        **SRUN,
    ),
    Job(
        "node_lost_tee",
        one("lose_node", 2),
        ["host_lost", "peer_lost"],
        "tee",
        who="host",
        **NONE,
    ),
    Job(
        "node_lost_alone",
        one("lose_node", 1),
        ["host_lost", "vanished", "unknown", *KILLED],
        "pods",
        **ALONE,
    ),
    Job(
        "launcher_killed_pods",
        one("kill_launcher", 2),
        ["host_lost", *STOPPED, *KILLED],
        "pods",
        who="host",
        **NONE,
    ),
    Job(
        "launcher_killed_tree_old",
        one("kill_launcher", 3),
        ["host_lost", *STOPPED, *KILLED],
        who="host",
        **OLD,
    ),
    Job(
        "cancel_all_srun",
        everywhere("terminated", "step 3"),
        [*STOPPED, *KILLED],
        "labelled",
        **NONE,
        **SRUN,
        **NOBODY,
    ),
    Job(
        "interrupt_all_srun_old",
        everywhere("interrupt", "step 3"),
        ["interrupted"],
        "labelled",
        **NONE,
        **SRUN,
        **OLD,
        **NOBODY,
    ),
    Job("preempt_labelled", one("preempt", 3), STOPPED, "labelled", who="host", **NONE),
    Job(
        "rendezvous_name_all_pods",
        (),
        ["dns_failure", "rendezvous_failed", "network_error"],
        "pods",
        torchrun=("--rdzv-endpoint=head-node.cluster.invalid:29400",),
        **NONE,
        **NOBODY,
    ),
    # More that wait in vain.
    Job(
        "pipe_srun", one("read_pipe", 2), ["hang"], "labelled", **NONE, **SRUN, **SHORT
    ),
    Job("pipe_pods_old", one("read_pipe", 3), ["hang"], "pods", **NONE, **OLD, **SHORT),
    Job("lock_plain", one("locked_file", 1), ["hang"], "plain", **NONE, **SHORT),
    Job("child_waits_tee", one("wait_for_child", 3), ["hang"], "tee", **NONE, **SHORT),
    Job(
        "retry_srun",
        one("retry_forever", 0),
        ["hang"],
        "labelled",
        **NONE,
        **SRUN,
        **SHORT,
    ),
    Job("retry_pods", one("retry_forever", 2), ["hang"], "pods", **NONE, **SHORT),
    Job(
        "gil_both", one("hold_gil", 2), ["hang", "host_stall"], "both", **FIRST, **SHORT
    ),
    Job(
        "gil_labelled_old",
        one("hold_gil", 1),
        ["hang", "host_stall"],
        "labelled",
        **NONE,
        **OLD,
        **SHORT,
    ),
    Job("deaf_pods", one("deaf", 1), ["hang"], "pods", **NONE, **SHORT),
    Job(
        "stopped_srun",
        one("stopped", 1),
        ["hang", "host_stall"],
        "labelled",
        **NONE,
        **SRUN,
        **SHORT,
    ),
    Job(
        "stopped_pods",
        one("stopped", 3),
        ["hang", "host_stall"],
        "pods",
        **NONE,
        **SHORT,
    ),
    Job(
        "slow_tee",
        one("slow", 2),
        ["hang", "collective_timeout", "host_stall"],
        "tee",
        **NONE,
        **SHORT,
    ),
    Job(
        "slow_tasks",
        one("slow", 3),
        ["hang", "collective_timeout", "host_stall"],
        "tasks",
        **NONE,
        **SRUN,
        **SHORT,
    ),
    Job("hang_alone", one("sleep", 1), ["hang"], "pods", **ALONE),
    Job("hang_logs", one("sleep", 2), ["hang"], "logs", **SHORT),
    Job(
        "hang_saving_pods_old",
        one("sleep", 0, "checkpoint"),
        ["hang"],
        "pods",
        **NONE,
        **OLD,
        **SHORT,
    ),
    Job("hang_tree_4", one("sleep", 6), ["hang"], **FOUR, **SHORT),
    Job(
        "late_srun",
        one("late", 3, "config"),
        ["never_arrived", "hang"],
        "labelled",
        **NONE,
        **SRUN,
        **SHORT,
    ),
    Job(
        "late_pods_old",
        one("late", 1, "config"),
        ["never_arrived", "hang"],
        "pods",
        **NONE,
        **OLD,
        **SHORT,
    ),
    Job(
        "loader_hang_srun",
        one("sleep", 3, "data"),
        ["hang", "dataloader_stall"],
        "labelled",
        program={**LOADER, **WAIT},
        **NONE,
        **SRUN,
    ),
    # More of collectives, and of ranks that leave.
    Job("skip_srun", one("skip", 1), LOST, "labelled", **NONE, **SRUN, **UNKNOWN),
    Job("shape_pods_old", one("shape", 3), LOST, "pods", **NONE, **OLD, **UNKNOWN),
    Job("broadcast_labelled", one("broadcast", 2), LOST, "labelled", **NONE, **UNKNOWN),
    Job("twice_plain", one("twice", 2), LOST, "plain", **NONE, **UNKNOWN),
    Job("receive_srun", one("receive", 3), LOST, "labelled", **NONE, **SRUN, **UNKNOWN),
    Job("group_alone_tee", one("group_alone", 0), LOST, "tee", **NONE, **UNKNOWN),
    Job("leave_tasks", one("leave", 1), LOST, "tasks", **NONE, **SRUN, **UNKNOWN),
    Job(
        "exit_zero_pods",
        one("exit_zero", 3),
        ["left_early", *EXIT],
        "pods",
        **NONE,
        **SHORT,
    ),
    Job(
        "exit_zero_srun",
        one("exit_zero", 1),
        ["left_early", *EXIT],
        "labelled",
        placed=False,
        **NONE,
        **SRUN,
        **SHORT,
    ),
    # More of DataLoader workers.
    Job(
        "loader_memory_srun",
        one("no_python_memory", 1, "data"),
        ["dataloader_error", "host_memory_exhausted"],
        "labelled",
        program=LOADER,
        **NONE,
        **SRUN,
    ),
    Job(
        "loader_shm_labelled_old",
        one("much_shared", 3, "data"),
        ["shared_memory_exhausted"],
        "labelled",
        program=LOADER,
        shm="2m",
        **NONE,
        **OLD,
    ),
    Job(
        "loader_killed_pods",
        one("killed", 0, "data"),
        ["dataloader_worker_died"],
        "pods",
        program=LOADER,
        **NONE,
    ),
    Job(
        "loader_module_tasks",
        one("missing_module", 2, "data"),
        ["dataloader_error", "import_error"],
        "tasks",
        program=LOADER,
        **NONE,
        **SRUN,
    ),
    # More than one fault or attempt, again.
    Job(
        "two_pods",
        (Plant("bad_value", (1,)), Plant("missing_shard", (2,))),
        [*VALUE, "missing_file"],
        "pods",
        **NONE,
    ),
    Job(
        "two_srun_old",
        (Plant("killed", (0,)), Plant("short_list", (3,))),
        [*VALUE, *KILLED],
        "labelled",
        **NONE,
        **SRUN,
        **OLD,
    ),
    Job("restart_works_pods", one("killed", 2), KILLED, "pods", restarts=1, **NONE),
    Job("restart_works_tree_old", one("bad_value", 1), VALUE, restarts=1, **OLD),
    Job(
        "restart_twice_tee",
        (
            Plant("null_pointer", (3,)),
            Plant("bad_value", (0,), attempts=(1,), cause=False),
            Plant("exit_status", (2,), attempts=(2,), cause=False),
        ),
        ["segfault"],
        "tee",
        restarts=2,
        **NONE,
    ),
    # Nothing at all.
    Job("well_tree", (), []),
    Job("well_both", (), [], "both", **FIRST),
)
