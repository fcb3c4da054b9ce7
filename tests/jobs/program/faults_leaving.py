"""The faults by which a rank leaves with words of its own, or early and well."""

import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

EMPTY = "shard 41 has no usable samples"


# Words of its own, and no traceback.


def critical():
    """Log at the highest level, in the format that nobody has set, and leave."""
    logging.critical("%s, cannot go on", EMPTY)
    os._exit(1)


def stamped_error():
    """Log an error with its time and leave."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("trainer.data").error(EMPTY)
    sys.exit(1)


def bracketed_error():
    """Log an error in brackets, as Hydra does, and leave."""
    form = "[%(asctime)s][%(name)s][%(levelname)s] - %(message)s"
    logging.basicConfig(format=form)
    logging.getLogger("trainer.data").error(EMPTY)
    sys.exit(4)


def warned():
    """Warn, and leave for that reason."""
    warnings.warn("tokenizer has 32016 entries, the embedding 32000", stacklevel=2)
    sys.exit(5)


def barred_error():
    """Log an error between bars, as Loguru does, and leave."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S.250")
    line = f"{stamp} | ERROR    | trainer.data:next_shard:88 - {EMPTY}"
    print(line, file=sys.stderr, flush=True)
    sys.exit(1)


def wrapped_error():
    """Log an error in columns and two lines, as Rich does, and leave."""
    stamp = time.strftime("[%m/%d/%y %H:%M:%S]")
    print(f"{stamp} ERROR    shard 41 has no usable             data.py:88", flush=True)
    print(f"{'':20}          samples, cannot go on", flush=True)
    os._exit(1)


def structured():
    """Log an error as an object, and leave."""
    line = {"ts": time.time(), "level": "error", "logger": "trainer.data", "msg": EMPTY}
    print(json.dumps(line), file=sys.stderr, flush=True)
    sys.exit(1)


def failed_check():
    """Fail a check in native code that logs as glog does."""
    stamp = time.strftime("F%m%d %H:%M:%S.250000")
    said = "Check failed: index < size (128 vs. 100) "
    print(f"{stamp} {os.getpid():5} gather.cc:41] {said}", file=sys.stderr, flush=True)
    os.abort()


def thread_gives_up():
    """Let a thread log why it ends the process."""

    def watch():
        time.sleep(0.2)
        logging.error("prefetch: the queue of shard 41 was closed")
        os._exit(6)

    threading.Thread(target=watch, name="prefetch").start()
    time.sleep(60)


def boxed():
    """Say in many lines why the program leaves."""
    lines = ["The mixture does not fit the data.", "", "  asked for: 12 sources"]
    lines += ["  found:     11 sources (none named 'code')", "", "Nothing was trained."]
    print("=" * 60, *lines, "=" * 60, sep="\n", file=sys.stderr, flush=True)
    sys.exit(2)


def tool_status():
    """Run a tool that fails with its own words, and leave with its status."""
    command = ["sh", "-c", "cat /srv/data/shard-00041.idx > /dev/null"]
    sys.exit(subprocess.run(command, check=False).returncode)


def excepted():
    """Print what was raised, as short as can be, and leave."""
    try:
        raise ValueError("expected 8 features in shard 41, found 7")
    except ValueError as e:
        print(f"Error: {e}", flush=True)
        sys.exit(1)


def recovered():
    """Log an exception that is overcome."""
    try:
        json.loads("{'lr': 1}")
    except ValueError:
        logging.exception("skipping a bad line of the index")


# Early, with the status of success.


def early_stop():
    """Stop in good order, while the others go on."""
    import torch.distributed as dist

    print("no better for 3 evaluations, stopping early", flush=True)
    dist.destroy_process_group()
    sys.exit(0)


def handled_term():
    """Be asked to end, and do so in good order."""

    def leave(number, _):
        print(f"received signal {number}: leaving after this step", flush=True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, leave)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


# Signals of others, which end a process that does not handle them.


def hang_up():
    """Lose the terminal."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGHUP)
    time.sleep(60)


def user_signal():
    """Be told that the time is nearly over, in a way that nobody has prepared for."""
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(60)


# Exceptions that are handled badly.


def barrier_in_finally():
    """Fail, and wait for the others before that is told."""
    import torch.distributed as dist

    try:
        raise ValueError("expected 8 features in shard 41, found 7")
    finally:
        dist.barrier()


def task_group():
    """Fail in one of several tasks."""
    import asyncio

    async def read(index):
        await asyncio.sleep(0.1)
        if index == 2:
            raise ValueError(f"cannot decode sample {index}")

    async def read_all():
        async with asyncio.TaskGroup() as group:
            for index in range(4):
                group.create_task(read(index))

    asyncio.run(read_all())


def debugger_left():
    """Stop in a debugger to which nobody can type."""
    sys.stdin = io.StringIO()
    breakpoint()


# What a program has around main.


def caught(main, how):
    """Run main behind a handler that tells of whatever goes wrong, and leaves."""
    form = "%(asctime)s [%(levelname)s] %(name)s: %(message)s"
    try:
        main()
    except Exception as e:
        words = {
            "print": f"training failed: {type(e).__name__}: {e}",
            "repr": repr(e),
            "say": f"Error: {e}",
        }
        if how in words:
            print(words[how], flush=True)
            os._exit(1)
        logging.basicConfig(format=form)
        logger = logging.getLogger("trainer")
        logger.error("training failed: %s", e, exc_info=how == "trace")
        sys.exit(1)
