"""Failures of child processes, as a parent sees them: one, and all that ended a job."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from firstfault._error_file import load, section_of, time_ns_of
from firstfault._errors import MissingMessageError
from firstfault._notices import DEBUG, ERROR, WARNING, log
from firstfault._text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from firstfault._verdict import RootCause

JSON = dict[str, Any]
GlobalRank = int

_NOT_AVAILABLE = "<N/A>"
_TRACEBACK_ADVICE = (
    "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
)
_EVIDENCE_BYTES = 64 << 20
"""Of this much of error files a verdict is made."""

_TORCH = "torch.distributed.elastic.multiprocessing.errors"


@dataclass
class ProcessFailure:
    """How one child process failed, with what its error file says.

    Attributes:
        local_rank: Rank of the process on its node.
        pid: Its process ID.
        exitcode: Its exit status; negative for a signal.
        error_file: Path of its error file; ``<N/A>`` where it left none.
        error_file_data: The error file's JSON object. At most 16 MiB are read.
        message: The error file's ``message`` (an object, or text in old files), or text
            made from the exit status.
        timestamp: When it failed, in seconds since the Unix epoch: as the error file
            says, else when the file was written, else now.
        time_ns: The same in nanoseconds; None where only seconds are known.

    Raises:
        MissingMessageError: The error file is a JSON object without ``message``. Any
            other file that cannot be used is said in `message`.
    """

    local_rank: int
    pid: int
    exitcode: int
    error_file: str
    error_file_data: JSON = field(init=False)
    message: str = field(init=False)
    timestamp: int = field(init=False)
    time_ns: int | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        if os.path.isfile(self.error_file):
            self._take_error_file()
        else:
            self.error_file = _NOT_AVAILABLE
            self.error_file_data = {"message": "<NONE>"}
            self.message = ""
            self.timestamp = int(time.time())
        if self.message:
            return
        if self.exitcode < 0:
            self.message = self._signal_message()
        else:
            self.error_file_data["errorTraits"] = {
                "category": "system_terminated_error",
                "retryability": "False",
            }
            self.message = _TRACEBACK_ADVICE

    def _take_error_file(self) -> None:
        try:
            found = load(self.error_file)
        except (MissingMessageError, FileNotFoundError):
            log(ERROR, "Failed to parse reply file: %s", self.error_file)
            raise
        self.error_file_data = found.data
        self.message = found.data["message"]
        self.timestamp = found.timestamp
        self.time_ns = found.time_ns
        if found.damage:
            log(ERROR, "Failed to parse reply file: %s", found.damage)
            if self.exitcode < 0:
                self.message = f"{self._signal_message()}; {found.damage}"
        else:
            log(DEBUG, "User process failed with error data: %s", found.data)

    def _signal_message(self) -> str:
        name = self.signal_name()
        return f"Signal {-self.exitcode} ({name}) received by PID {self.pid}"

    def signal_name(self) -> str:
        """Return the name of the signal that ended the process, else ``<N/A>``."""
        if self.exitcode < 0:
            try:
                return signal.Signals(-self.exitcode).name
            except Exception:
                return _NOT_AVAILABLE
        return _NOT_AVAILABLE

    def timestamp_isoformat(self) -> str:
        """Return `timestamp` in local time, as ``YYYY-MM-DD_HH:MM:SS``."""
        return datetime.fromtimestamp(self.timestamp).isoformat(sep="_")


class ChildFailedError(Exception):
    """Children failed: raise it, or let it pass, in a parent that does no work itself.

    `record` does not record it as such: the error file of the first failure becomes the
    parent's own. Where torch's module of error handling is loaded, an instance is also
    one of torch's class of this name, and its ``record`` does the same.

    Attributes:
        name: What failed, for the title of the message.
        failures: The failure of each global rank.

    Raises:
        AssertionError: There are no failures.
    """

    name: str
    failures: dict[GlobalRank, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> ChildFailedError:
        """Return an instance that torch's ``record`` knows too, if torch is loaded."""
        return super().__new__(_joined(cls), *args, **kwargs)

    def __init__(self, name: str, failures: dict[GlobalRank, Any]) -> None:
        self.name = name
        self.failures = failures
        if not failures:
            raise AssertionError("a ChildFailedError needs failures")
        # Not super(): torch's class may stand between.
        Exception.__init__(self, self.format_msg())

    def __reduce__(self) -> tuple[Any, ...]:
        cls = getattr(type(self), "_firstfault_plain", type(self))
        return _restore, (cls, self.args), self.__dict__

    def get_first_failure(self) -> tuple[GlobalRank, Any]:
        """Return the rank of the earliest failure, and that failure.

        By nanoseconds among those that have them, else by seconds; a tie goes to a
        failure whose time its own record says.
        """
        ranks = list(self.failures)
        known = [rank for rank in ranks if _time_ns(self.failures[rank]) is not None]
        unknown = [rank for rank in ranks if _time_ns(self.failures[rank]) is None]
        best = [
            min(known, key=lambda rank: _moment(self.failures[rank]), default=None),
            min(unknown, key=lambda r: self.failures[r].timestamp, default=None),
        ]
        rank = min(
            (rank for rank in best if rank is not None),
            key=lambda rank: self.failures[rank].timestamp,
        )
        return rank, self.failures[rank]

    def root_cause(self) -> RootCause | None:
        """Return the root cause among the failures by evidence, not by time alone.

        The error files and exit statuses held here are judged as ``firstfault report``
        judges those of a whole job: a rank that failed because it lost a peer is no
        cause, whenever it wrote its file. At most 64 MiB of error files are judged.

        Returns:
            The verdict, with how sure it is and why; None where nothing can be told.
            Its `rank` may be one that is not among the failures, where they name it.
        """
        try:
            from firstfault._verdict import root_cause_of

            return root_cause_of(_evidence(self.failures))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            log(WARNING, "Failed to judge the failures: %s", reason)
            return None

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """Return the report of all failures, the root cause last, as torch's looks."""
        title = f"{self.name} FAILED"
        root_rank, _ = self.get_first_failure()
        root, others = "", []
        width = len(title)
        for index, (rank, failure) in enumerate(self.failures.items()):
            text = printable(_format_failure(index, rank, failure))
            width = max(width, *map(len, text.split("\n")))
            if rank == root_rank:
                root = text
            else:
                others.append(text)
        width = min(width, 60)
        return "\n".join(
            [
                "",
                boarder_delim * width,
                printable(title),
                section_delim * width,
                "Failures:",
                *(others or ["  <NO_OTHER_FAILURES>"]),
                section_delim * width,
                "Root Cause (first observed failure):",
                root,
                *self._by_evidence(root_rank),
                boarder_delim * width,
            ]
        )

    def _by_evidence(self, first: GlobalRank) -> list[str]:
        """Return the verdict in one line where it is surely not the first failure."""
        cause = self.root_cause() if len(self.failures) > 1 else None
        if cause is None or cause.rank in (None, first) or cause.confidence == "low":
            return []
        text = f"rank {cause.rank}: {cause.category}, confidence {cause.confidence}"
        return [printable(f"Root cause (by evidence): {text}")]


def _restore(cls: type[ChildFailedError], args: tuple[Any, ...]) -> ChildFailedError:
    error = cls.__new__(cls)
    error.args = args
    return error


def _joined(cls: type[ChildFailedError]) -> type[ChildFailedError]:
    """Return the class, joined with torch's of the same name if torch has loaded it.

    An ``except`` clause goes by real base classes alone, and torch's is not imported
    for this.
    """
    torch_cls = getattr(sys.modules.get(_TORCH), "ChildFailedError", None)
    if not isinstance(torch_cls, type) or issubclass(cls, torch_cls):
        return cls
    joined = cls.__dict__.get("_firstfault_joined")
    if joined is None or not issubclass(joined, torch_cls):
        names = {
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
            "_firstfault_plain": cls,
            "_firstfault_joined": None,
        }
        metaclass: Any = type(cls)
        try:
            joined = metaclass(cls.__name__, (cls, torch_cls), names)
        except Exception:
            # Its own `__init_subclass__` asks for more: torch's `record` will not know
            # it, and everything else works.
            return cls
        cls._firstfault_joined = joined  # type: ignore[attr-defined]
    return joined  # type: ignore[no-any-return]


def _evidence(
    failures: dict[GlobalRank, Any],
) -> list[tuple[int, int | None, int, bytes, bytes]]:
    """Return what can be judged of each failure, which may be torch's own."""
    found = []
    room = _EVIDENCE_BYTES
    for rank, failure in failures.items():
        pid = getattr(failure, "pid", None)
        path, content = b"", b""
        data = getattr(failure, "error_file_data", None)
        if room > 0 and failure.error_file != _NOT_AVAILABLE:
            with contextlib.suppress(TypeError, ValueError, RecursionError):
                content = json.dumps(data).encode()
                path = os.fsencode(failure.error_file)
        room -= len(content)
        is_pid = isinstance(pid, int) and 0 < pid < 1 << 32
        found.append((rank, pid if is_pid else None, failure.exitcode, path, content))
    return found


def _time_ns(failure: Any) -> int | None:
    """Return a failure's time in nanoseconds; torch's own class has it in its data."""
    try:
        return failure.time_ns  # type: ignore[no-any-return]
    except AttributeError:
        return time_ns_of(getattr(failure, "error_file_data", None))


def _moment(failure: Any) -> int:
    """Return what orders failures whose time is known, in nanoseconds.

    Where the record's seconds are not those of its nanoseconds they were moved on
    purpose (a victim's comes after its culprit's) and hold.
    """
    time_ns = _time_ns(failure) or 0
    if time_ns // 10**9 == failure.timestamp:
        return time_ns
    return int(failure.timestamp) * 10**9


def _format_failure(index: int, rank: GlobalRank, failure: Any) -> str:
    name = failure.signal_name()
    signal_name = f" ({name})" if name != _NOT_AVAILABLE else ""
    message = _message_text(failure.message)
    if failure.exitcode < 0:
        message = _enriched(message, failure.error_file)
    try:
        when = failure.timestamp_isoformat()
    except (ValueError, OverflowError, OSError):
        when = str(failure.timestamp)
    return (
        f"[{index}]:\n"
        f"  time      : {when}\n"
        f"  host      : {_host_name(failure)}\n"
        f"  rank      : {rank} (local_rank: {failure.local_rank})\n"
        f"  exitcode  : {failure.exitcode} (pid: {failure.pid}) {signal_name}\n"
        f"  error_file: {failure.error_file}\n"
        f"  traceback : {message}"
    )


def _message_text(message: object) -> str:
    """Return the traceback of a record's message, else its text, else ``<N/A>``."""
    if not isinstance(message, dict):
        return str(message)
    extra = message.get("extraInfo")
    candidates = [
        extra.get("py_callstack") if isinstance(extra, dict) else None,
        message.get("message"),
    ]
    for text in candidates:
        if isinstance(text, list):
            text = "\n".join(str(line).rstrip("\n") for line in text)
        if isinstance(text, str):
            return text.replace("\n", "\n  ")
    return _NOT_AVAILABLE


def _enriched(message: str, error_file: str) -> str:
    """Return the message after the error handler's hook, if it has one that works."""
    try:
        handler = sys.modules["firstfault"].get_error_handler()
        hook = getattr(handler, "maybe_enrich_signal_failure_message", None)
        enriched = message if hook is None else hook(message, error_file)
        if isinstance(enriched, str):
            return enriched
        reason = f"it returned {type(enriched).__name__}"
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    log(WARNING, "Failed to enrich signal failure message: %s", reason)
    return message


def _host_name(failure: Any) -> str:
    """Return the host of a failure as its record says, else this one's.

    Without a look-up: a slow name server must not hold the report up.
    """
    host = section_of(getattr(failure, "error_file_data", None)).get("host")
    name = host.get("name") if isinstance(host, dict) else None
    return name if isinstance(name, str) and name else os.uname().nodename


for _class in (ProcessFailure, ChildFailedError):
    _class.__module__ = "firstfault"
