"""What a report says: frozen values with the names of the JSON form."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin

from firstfault import _native

Class = Literal["worker", "platform", "infrastructure", "input"]
Confidence = Literal["none", "low", "medium", "high"]
Retry = Literal["yes", "exclude_host", "once", "no", "unknown"]
Owner = Literal[
    "user", "framework", "hardware", "network", "storage", "scheduler", "unknown"
]


@dataclass(frozen=True)
class Breadcrumb:
    """Something that the program noted on its way.

    Attributes:
        name: What, at most 48 bytes.
        time_ns: When, in nanoseconds since the Unix epoch.
        value: More about it.
    """

    name: str
    time_ns: int | None = None
    value: str | None = None


@dataclass(frozen=True)
class RootCause:
    """A first failure and the verdict on it.

    Attributes:
        rank: The rank; None where the cause is the whole job or a host, or unknown.
        local_rank: Its rank on its host.
        host: The host; empty where the cause is the whole job.
        attempt: The attempt in which it failed, 0 for the first.
        category: The kind of failure, as ``segfault``.
        title: The failure in one line.
        class_: Which part of the system is to blame.
        confidence: How sure the verdict is.
        retry: Whether running the job again is worth it.
        owner: Who can repair it.
        time_ns: When, in nanoseconds since the Unix epoch; None where unknown.
        advice: What to do next.
        evidence: Why the verdict is what it is, strongest first.
        error_file: The file that tells it; empty where no file does.
        step: The training step that the rank had reached, where its program told it.
        breadcrumbs: What its program noted last, oldest first; at most 8.
    """

    rank: int | None
    local_rank: int | None
    host: str
    attempt: int
    category: str
    title: str
    class_: Class
    confidence: Confidence
    retry: Retry
    owner: Owner
    time_ns: int | None
    advice: str
    evidence: tuple[str, ...]
    error_file: str
    step: int | None = None
    breadcrumbs: tuple[Breadcrumb, ...] = ()


@dataclass(frozen=True)
class Job:
    """The job, as far as its files tell: how many attempts, hosts and ranks.

    Attributes:
        run_id: The launcher's name of the run; empty where unknown.
        world_size: The number of ranks, stated or counted; 0 where unknown.
        attempts: The number of attempts that left files.
        hosts: The number of hosts (more exactly: of launchers) that left files.
    """

    run_id: str
    world_size: int
    attempts: int
    hosts: int


@dataclass(frozen=True)
class Suspect:
    """A rank that may have caused the failure, and why it is suspected."""

    rank: int
    host: str
    reason: str


@dataclass(frozen=True)
class Ranks:
    """Ranks by how they ended, each as ranges like ``0-511,513-1023``.

    Attributes:
        primary: Failed by themselves.
        collateral: Failed because of another rank.
        terminated: Ended by the launcher.
        silent: Left nothing.
        succeeded: Ended well, as far as the launcher says.
    """

    primary: str
    collateral: str
    terminated: str
    silent: str
    succeeded: str


@dataclass(frozen=True)
class Example:
    """One failure out of a group.

    Attributes:
        rank: Whose.
        message: The whole message, at most 4,096 bytes.
        location: The innermost function and the innermost one of the program itself.
        frames: At most 16 frames, innermost first, as ``function (file:line)``.
        file: The file that tells it; empty where no file does.
    """

    rank: int | None
    message: str
    location: str
    frames: tuple[str, ...]
    file: str


@dataclass(frozen=True)
class Group:
    """Failures that are alike.

    Attributes:
        fingerprint: The same for the same failure, in every job.
        category: The kind of failure.
        role: What these ranks are in the verdict: ``primary``, ``collateral`` or
            ``timeout``.
        ranks: Which ranks, as ranges.
        count: How many.
        title: The failure in one line.
        example: One of them.
    """

    fingerprint: str
    category: str
    role: str
    ranks: str
    count: int
    title: str
    example: Example


@dataclass(frozen=True)
class Attempt:
    """One attempt of the job.

    Attributes:
        attempt: Its number, 0 for the first.
        failed: The number of ranks that failed in it.
        root_cause: Its own first failure, in one line; empty where none was found.
    """

    attempt: int
    failed: int
    root_cause: str


@dataclass(frozen=True)
class DamagedFile:
    """A file that could not be used, why, and its first bytes (at most 80, escaped)."""

    path: str
    reason: str
    first_bytes: str


@dataclass(frozen=True)
class Report:
    """What is to be said about one job; ``str()`` gives the text for people.

    The attributes are those of the JSON form: see ``firstfault schema report``.

    Attributes:
        schema_version: The version of this form.
        job: The job, as far as its files tell.
        root_cause: The first failure; None where none was found.
        also_primary: Further failures that are not consequences of the first.
        suspects: Ranks that may have caused the failure though they left no evidence.
        ranks: Every rank of the judged attempt, by how it ended.
        groups: Failures that are alike, largest group first.
        attempts: Every attempt, in order.
        damaged_files: Files that are named like error files and could not be used.
        incomplete: What is missing, assumed or unread, in sentences.
    """

    schema_version: int
    job: Job
    root_cause: RootCause | None
    also_primary: tuple[RootCause, ...]
    suspects: tuple[Suspect, ...]
    ranks: Ranks
    groups: tuple[Group, ...]
    attempts: tuple[Attempt, ...]
    damaged_files: tuple[DamagedFile, ...]
    incomplete: tuple[str, ...]
    _text: str = field(default="", repr=False, compare=False)

    def __str__(self) -> str:
        return self._text


T = TypeVar("T")


def build(cls: type[T], values: Mapping[str, Any]) -> T:
    """Return a dataclass made of a JSON object; `class_` is its ``class``."""
    made = {}
    for one in fields(cls):  # type: ignore[arg-type]
        value = values.get(one.name.removesuffix("_"), MISSING)
        if value is not MISSING:
            made[one.name] = _convert(one.type, value)
    return cls(**made)


def _convert(hint: Any, value: Any) -> Any:
    if isinstance(hint, UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    if value is None:
        return None
    if get_origin(hint) is tuple:
        return tuple(_convert(get_args(hint)[0], item) for item in value)
    return build(hint, value) if is_dataclass(hint) else value  # type: ignore[arg-type]


def root_cause_of(
    failures: list[tuple[int, int | None, int, bytes, bytes]],
) -> RootCause | None:
    """Return the root cause among failures: see `_native.root_cause`."""
    found = _native.root_cause(failures)
    return None if found is None else build(RootCause, json.loads(found))


for _class in (
    Attempt,
    Breadcrumb,
    DamagedFile,
    Example,
    Group,
    Job,
    Ranks,
    Report,
    RootCause,
    Suspect,
):
    _class.__module__ = "firstfault"
