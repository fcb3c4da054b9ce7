"""Jobs of programs that catch what goes wrong, tell of it in their words, and leave."""

from typing import Any

from job import (
    ALONE,
    EXIT,
    FOUR,
    LOST,
    NOBODY_KNOWS,
    NONE,
    OLD,
    SRUN,
    VALUE,
    WAIT,
    Job,
    one,
)

TOLD = [*VALUE, *EXIT]
SRUN_NONE: Any = {**SRUN, **NONE}


def caught(how: str, **more: Any) -> Any:
    """Return what has a program catch everything, and tell of it in this way."""
    return {**more, "program": {**more.get("program", {}), "catch": how}}


PRINT, REPR, SAY = caught("print"), caught("repr"), caught("say")

JOBS: tuple[Job, ...] = (
    # `training failed: ValueError: …`
    Job(
        "caught_print_srun", one("bad_value", 2), TOLD, "labelled", **PRINT, **SRUN_NONE
    ),
    Job(
        "caught_print_tasks_old",
        one("short_list", 1),
        TOLD,
        "tasks",
        **PRINT,
        **SRUN_NONE,
        **OLD,
    ),
    Job(
        "caught_print_tee_old",
        one("bad_value", 1),
        TOLD,
        "tee",
        **PRINT,
        **NONE,
        **OLD,
    ),
    Job(
        "caught_print_tee_4",
        one("short_list", 5),
        TOLD,
        "tee",
        **PRINT,
        **NONE,
        **FOUR,
    ),
    Job(
        "caught_print_alone_old",
        one("short_list", 2),
        TOLD,
        "pods",
        **caught("print", **ALONE),
        **OLD,
    ),
    Job("caught_print_pods", one("short_list", 3), TOLD, "pods", **PRINT, **NONE),
    # `ValueError('…')`
    Job("caught_repr_tee", one("bad_value", 0), TOLD, "tee", **REPR, **NONE),
    Job(
        "caught_repr_alone",
        one("bad_value", 2),
        TOLD,
        "pods",
        **caught("repr", **ALONE),
    ),
    Job(
        "caught_repr_srun_old",
        one("short_list", 3),
        TOLD,
        "labelled",
        **REPR,
        **SRUN_NONE,
        **OLD,
    ),
    # `Error: …`
    Job("caught_say_tee_old", one("short_list", 2), TOLD, "tee", **SAY, **NONE, **OLD),
    Job(
        "caught_say_alone", one("bad_value", 1), TOLD, "pods", **caught("say", **ALONE)
    ),
    Job("caught_say_tasks", one("bad_value", 1), TOLD, "tasks", **SAY, **SRUN_NONE),
    Job("caught_say_pods", one("short_list", 2), TOLD, "pods", **SAY, **NONE),
    # One that logs what it met, and leaves as if it were done.
    Job(
        "logged_srun",
        one("logged_only", 1),
        [*VALUE, *LOST],
        "labelled",
        rank_optional=NOBODY_KNOWS,
        program=WAIT,
        **SRUN_NONE,
    ),
    Job(
        "logged_tee_old",
        one("logged_only", 3),
        [*VALUE, *LOST],
        "tee",
        rank_optional=NOBODY_KNOWS,
        program=WAIT,
        **NONE,
        **OLD,
    ),
    Job(
        "logged_alone",
        one("logged_only", 1),
        [*VALUE, *LOST],
        "pods",
        rank_optional=NOBODY_KNOWS,
        **ALONE,
    ),
    # Launchers whose workers have all ended when they look: what these said comes in
    # one block, or under one label of a host.
    Job("caught_print_tee_at_once", one("bad_value", 1), TOLD, "tee", **PRINT, **NONE),
    Job("caught_list_tee_at_once", one("short_list", 2), TOLD, "tee", **PRINT, **NONE),
    Job(
        "caught_print_labelled",
        one("bad_value", 1),
        TOLD,
        "labelled",
        rank_optional=NOBODY_KNOWS,
        **PRINT,
        **NONE,
    ),
    Job(
        "caught_sleep_labelled_old",
        one("sleep", 0),
        ["hang"],
        "labelled",
        **caught("log", program=WAIT),
        **NONE,
        **OLD,
    ),
    Job(
        "logged_tee_1",
        one("logged_only", 1),
        [*VALUE, *LOST],
        "tee",
        rank_optional=NOBODY_KNOWS,
        program=WAIT,
        **NONE,
    ),
)
