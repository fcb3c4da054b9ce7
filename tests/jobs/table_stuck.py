"""Jobs in which one rank is stuck, told by the others' timeouts alone."""

from job import (
    ALONE,
    FOUR,
    NONE,
    OLD,
    SHORT,
    SRUN,
    UNKNOWN,
    Job,
    one,
)

HANG = ["hang"]
STALL = ["hang", "host_stall"]
APART = ["collective_mismatch", "hang", "collective_timeout"]

JOBS: tuple[Job, ...] = (
    Job(
        "spin_srun_old",
        one("spin", 2),
        HANG,
        "labelled",
        **NONE,
        **SRUN,
        **OLD,
        **SHORT,
    ),
    Job("lock_alone", one("locked_file", 1), HANG, "pods", **ALONE),
    Job("full_pipe_pods", one("full_pipe", 3), HANG, "pods", **NONE, **SHORT),
    Job(
        "full_pipe_labelled_old",
        one("full_pipe", 0),
        HANG,
        "labelled",
        **NONE,
        **OLD,
        **SHORT,
    ),
    Job("pattern_plain", one("slow_pattern", 1), STALL, "plain", **NONE, **SHORT),
    Job(
        "pattern_tasks_old",
        one("slow_pattern", 2),
        STALL,
        "tasks",
        **NONE,
        **SRUN,
        **OLD,
        **SHORT,
    ),
    Job(
        "evaluation_srun",
        one("evaluation", 0),
        HANG,
        "labelled",
        **NONE,
        **SRUN,
        **SHORT,
    ),
    Job("evaluation_alone", one("evaluation", 0), HANG, "pods", **ALONE),
    Job(
        "evaluation_tee_old", one("evaluation", 1), HANG, "tee", **NONE, **OLD, **SHORT
    ),
    Job("marker_tee", one("missing_marker", 2), HANG, "tee", **NONE, **SHORT),
    Job(
        "marker_pods_4", one("missing_marker", 6), HANG, "pods", **NONE, **FOUR, **SHORT
    ),
    Job("pool_lost_pods", one("pool_lost", 1), HANG, "pods", **NONE, **SHORT),
    Job(
        "pool_lost_srun_old",
        one("pool_lost", 3),
        HANG,
        "labelled",
        **NONE,
        **SRUN,
        **OLD,
        **SHORT,
    ),
    Job(
        "never_set_plain_old",
        one("never_set", 0),
        HANG,
        "plain",
        **NONE,
        **OLD,
        **SHORT,
    ),
    Job(
        "late_alone",
        one("late", 1, "config"),
        ["never_arrived", *HANG],
        "pods",
        rank_optional="only clocks of different hosts tell who was late",
        **ALONE,
    ),
    Job(
        "child_waits_tasks",
        one("wait_for_child", 1),
        HANG,
        "tasks",
        **NONE,
        **SRUN,
        **SHORT,
    ),
    Job(
        "store_key_pods",
        one("store_key", 2),
        [*APART, "never_arrived", "python_exception"],
        "pods",
        **NONE,
        **UNKNOWN,
    ),
    Job(
        "gather_srun_old",
        one("gather", 2),
        "labelled",
        **NONE,
        **SRUN,
        **OLD,
        **UNKNOWN,
    ),
    Job("gather_tee", one("gather", 1), APART, "tee", **NONE, **UNKNOWN),
)
