"""Jobs with more than one fault or more than one attempt, and with none."""

from job import (
    EXIT,
    FIRST,
    KILLED,
    NONE,
    OLD,
    SRUN,
    VALUE,
    Job,
    Plant,
    always,
    one,
)

JOBS: tuple[Job, ...] = (
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
