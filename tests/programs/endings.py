"""Ends in every known way, each in a child of its own, under each decorator.

``endings.py DIRECTORY`` leaves ``DIRECTORY/<decorator>/<way>/`` with the error files
and ``stderr``, and prints the exit statuses as JSON. The children are forked and end as
programs do, through the end of this file.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch_errors

import firstfault


class Own(Exception):
    """A user's exception."""


class OwnBase(BaseException):
    """One that `except Exception` misses, as torch's CheckpointException."""


class Unprintable(Exception):
    """Its text cannot be made."""

    def __str__(self) -> str:
        raise KeyError("no text")

    __repr__ = __str__


class Leaver(Exception):
    """Its text ends the program."""

    def __str__(self) -> str:
        sys.exit(9)


class Endless(Exception):
    """Its text never ends."""

    def __str__(self) -> str:
        return str(self)


class NoText(Exception):
    """Its text is none."""

    def __str__(self) -> str:
        return 17  # type: ignore[return-value]


class Demanding(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, *, response: str) -> None:
        super().__init__(f"got {response}")


def raises(e: BaseException) -> Callable[[], None]:
    def main() -> None:
        raise e

    return main


def exits(*code: Any) -> Callable[[], None]:
    return lambda: sys.exit(*code)


def chained() -> None:
    try:
        try:
            raise FileNotFoundError("config.yaml")
        except FileNotFoundError:
            raise KeyError("model")  # noqa: B904
    except KeyError as e:
        raise Own("no model") from e


def suppressed() -> None:
    try:
        raise ValueError("hidden")
    except ValueError:
        raise Own("shown") from None


def circular() -> None:
    a, b = Own("a"), Own("b")
    a.__cause__, b.__cause__ = b, a
    raise a


def noted() -> None:
    error = Own("noted")
    error.add_note("step 12")
    error.add_note("lone \udcff")
    raise error


def grouped() -> None:
    inner = ExceptionGroup("inner", [KeyError("k"), Own("o")])
    raise ExceptionGroup("outer", [ValueError("v"), inner])


def base_grouped() -> None:
    raise BaseExceptionGroup("base", [KeyboardInterrupt(), OwnBase("b")])


def recursive() -> None:
    recursive()


def interrupted() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)


def divided() -> None:
    print(1 // 0)


def generator_exit() -> None:
    raise GeneratorExit("closed")


def retryable() -> None:
    error = Own("once more")
    error.retryable = True  # type: ignore[attr-defined]
    raise error


WAYS: dict[str, Callable[[], Any]] = {
    "assert": raises(AssertionError()),
    "base": raises(OwnBase("based")),
    "base_group": base_grouped,
    "chain": chained,
    "circle": circular,
    "demanding": raises(Demanding(response="503")),
    "divide": divided,
    "empty": raises(Own()),
    "endless_str": raises(Endless()),
    "exit_0": exits(0),
    "exit_256": exits(256),
    "exit_3": exits(3),
    "exit_big": exits(2**70),
    "exit_empty": exits(""),
    "exit_false": exits(False),
    "exit_float": exits(1.5),
    "exit_minus_1": exits(-1),
    "exit_nothing": exits(),
    "exit_text": exits("config file is missing"),
    "exit_true": exits(True),
    "exit_tuple": exits(("a", 1)),
    "exit_zero_float": exits(0.0),
    "generator_exit": generator_exit,
    "group": grouped,
    "interrupt": raises(KeyboardInterrupt()),
    "leaving_str": raises(Leaver()),
    "megabytes": raises(Own("head " + "x" * 3_000_000 + " tail")),
    "memory": raises(MemoryError("4 GiB")),
    "no_str": raises(NoText()),
    "notes": noted,
    "nul": raises(Own("a\0b\x1b[31m")),
    "recursion": recursive,
    "retryable": retryable,
    "return": lambda: 17,
    "sigint": interrupted,
    "stop": raises(StopIteration(3)),
    "suppressed": suppressed,
    "surrogate": raises(Own("lone \udcff and 😀")),
    "unprintable": raises(Unprintable("arguments")),
}


def plain(fn: Callable[[], Any]) -> Callable[[], Any]:
    return fn


DECORATORS: dict[str, Callable[[Any], Any]] = {
    "ours": firstfault.record,
    "torch": torch_errors.record,
    "plain": plain,
}


def choose(directory: Path) -> Callable[[], Any] | None:
    """Return the decorated function in each child, None in the parent at the end."""
    children = {}
    for name, decorate in DECORATORS.items():
        for way, fn in WAYS.items():
            (own := directory / name / way).mkdir(parents=True)
            pid = os.fork()
            if pid == 0:
                os.environ["TORCHELASTIC_ERROR_FILE"] = str(own / "error.json")
                stderr = os.open(own / "stderr", os.O_WRONLY | os.O_CREAT)
                os.dup2(stderr, 2)
                return decorate(fn)
            children[pid] = (name, way)
            if len(children) % 3 == 0:
                reap(children, statuses)
    while len(statuses) < len(children):
        reap(children, statuses)
    return None


def reap(children: dict[int, tuple[str, str]], statuses: dict[str, int]) -> None:
    pid, status = os.wait()
    statuses["/".join(children[pid])] = os.waitstatus_to_exitcode(status)


statuses: dict[str, int] = {}
main = choose(Path(sys.argv[1]))
if main is not None:
    main()
else:
    print(json.dumps(statuses))
