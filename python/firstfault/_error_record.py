"""The record of an exception: the bytes of its error file, made as fully as can be."""

from __future__ import annotations

from firstfault import _native
from firstfault._exception import (
    CALLSTACK_BYTES,
    MESSAGE_BYTES,
    callstack,
    chain_of,
    class_name,
    describe,
    exit_status,
    headline,
    is_collateral,
    plain_callstack,
)
from firstfault._text import cut, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Moment = tuple[int, int, int | None, bool | None]
    Data = dict[str, object]
    Deferral = tuple[Data, BaseException]
    """What is known of a deferred error, and the error: of a rank that only stopped
    because of its peers, what left main."""
    ChildFailure = tuple[int, str, str]  # process ID, message, call stack

SCHEMA_VERSION = 1
COMPACT_BYTES = 4000
SHORT_MESSAGE_BYTES = 2048


class ErrorRecord:
    """One failure, ready to be written: read-only once made.

    Attributes:
        kind: ``exception``, ``exit`` or ``deferred``.
        message: ``ValueError: the text``, at most 16 KiB.
        moment: When it was recorded first, as `_native.clock` says it.
        content: The error file, a JSON object in ASCII.
        compact: The same in at most 4000 bytes, the message first.
        deferred: What is known of a deferred error, and may still change; else None.
    """

    __slots__ = ("compact", "content", "deferred", "kind", "message", "moment")

    def __init__(
        self, kind: str, message: str, moment: Moment, content: str, compact: str
    ) -> None:
        self.kind = kind
        self.message = message
        self.moment = moment
        self.deferred: Data | None = None
        self.content = content.encode()
        self.compact = compact.encode()

    def in_short(self) -> Data:
        """Return what the record of a later failure says of this one."""
        message = cut(self.message, SHORT_MESSAGE_BYTES)[0]
        told = {"kind": self.kind, "message": message, "time_ns": self.moment[0]}
        return told if self.deferred is None else told | {"deferred": self.deferred}


def make(
    e: BaseException,
    moment: Moment,
    *,
    final: bool,
    preceded_by: list[Data],
    child: ChildFailure | None = None,
    briefly: bool = False,
    deferral: Deferral | None = None,
) -> ErrorRecord:
    """Return the record of an exception, or as much of it as can be made.

    The exception is left as it was, whatever its own methods do to it meanwhile.

    Args:
        e: The exception.
        moment: When it was recorded first, as `_native.clock` says it.
        final: Whether the process is leaving because of it.
        preceded_by: What was recorded before it.
        child: The failure of a child process that this one hands on by its status.
        briefly: Whether to leave out all that runs code of others.
        deferral: Why it is raised, where a `Deferred` raises it.
    """
    before = e.__traceback__, e.__context__, e.__cause__, e.__suppress_context__
    try:
        if briefly:
            return _minimal(e, moment, final, deferral)
        try:
            return _full(e, moment, final, preceded_by, child, deferral)
        except Exception:
            return _minimal(e, moment, final, deferral)
    finally:
        traceback, context, cause, suppress = before
        if e.__traceback__ is not traceback:
            e.__traceback__ = traceback
        if e.__context__ is not context:
            e.__context__ = context
        if e.__cause__ is not cause:
            e.__cause__ = cause
        if e.__suppress_context__ is not suppress:
            e.__suppress_context__ = suppress


def _full(
    e: BaseException,
    moment: Moment,
    final: bool,
    preceded_by: list[Data],
    child: ChildFailure | None,
    deferral: Deferral | None,
) -> ErrorRecord:
    subject = e if deferral is None else deferral[1]
    truncated: dict[str, int] = {}
    text = headline(e)
    if child is not None:
        text = f"{text}, after child process {child[0]} failed: {child[1]}"
    message, missing = cut(text, MESSAGE_BYTES)
    if missing:
        truncated["message"] = missing
    section = _section(e, moment, final, deferral)
    section["exception"] = describe(subject, truncated)
    if preceded_by:
        section["preceded_by"] = preceded_by
    stack = callstack(subject, truncated)
    if child is not None:
        stack += f"\nChild process {child[0]} had failed before:\n{child[2]}"
    if truncated:
        section["truncated"] = truncated
    if deferral is None:
        collateral = is_collateral(e, chain_of(e)[0], _native.is_collateral)
    else:
        collateral = "where" not in deferral[0]
    known = _native.identity(), _native.black_box()
    return _assemble(e, moment, message, stack, section, collateral, known)


def _minimal(
    e: BaseException, moment: Moment, final: bool, deferral: Deferral | None
) -> ErrorRecord:
    """Return a record that needs little memory, no other module and no open file."""
    subject = e if deferral is None else deferral[1]
    message = cut(headline(e), MESSAGE_BYTES)[0]
    stack = cut(plain_callstack(subject), CALLSTACK_BYTES)[0]
    section = _section(e, moment, final, deferral)
    text = message if subject is e else cut(headline(subject), MESSAGE_BYTES)[0]
    section["exception"] = {"type": class_name(type(subject)), "message": text}
    return _assemble(e, moment, message, stack, section, False, ())


def _section(
    e: BaseException, moment: Moment, final: bool, deferral: Deferral | None
) -> Data:
    time_ns, monotonic_ns, max_error_us, synchronized = moment
    kind = "exit" if isinstance(e, SystemExit) else "exception"
    section: Data = {
        "schema_version": SCHEMA_VERSION,
        "kind": kind if deferral is None else "deferred",
        "final": final,
        "time_ns": time_ns,
        "monotonic_ns": monotonic_ns,
    }
    if max_error_us is not None:
        section["clock"] = {"max_error_us": max_error_us, "synchronized": synchronized}
    if deferral is not None:
        section["deferred"] = dict(deferral[0])
    return section


def _assemble(
    e: BaseException,
    moment: Moment,
    message: str,
    stack: str,
    section: Data,
    collateral: bool,
    known: tuple[str, ...],
) -> ErrorRecord:
    # torch chooses the first failure by whole seconds: a victim's are rounded up, so
    # that it does not come before its culprit. `time_ns` says when it really was.
    seconds = moment[0] // 10**9 + (1 if collateral and moment[0] % 10**9 else 0)
    code = exit_status(e) if isinstance(e, SystemExit) else 0

    def torch_part(message: str, stack: str) -> Data:
        part: Data = {"message": message}
        if code:
            part["errorCode"] = code
        part["extraInfo"] = {"py_callstack": stack, "timestamp": str(seconds)}
        return part

    own = encode(section)
    for members in known:  # JSON objects, perhaps empty
        if len(members) > 2:
            own = f"{own[:-1]}, {members[1:]}"
    content = (
        f'{{"message": {encode(torch_part(message, stack))}, "firstfault": {own}}}'
    )
    kept = ("schema_version", "kind", "final", "time_ns", "deferred")
    short = {key: section[key] for key in kept if key in section}
    compact = _shrink(
        lambda size: encode(
            {
                "message": torch_part(
                    cut(message, size, head=0.75)[0], cut(stack, size, head=0.25)[0]
                ),
                "firstfault": short,
            }
        )
    )
    return ErrorRecord(str(section["kind"]), message, moment, content, compact)


def _shrink(render: Callable[[int], str]) -> str:
    """Return what `render` makes with the largest size that fits the compact form."""
    size = COMPACT_BYTES // 2
    while len(text := render(size)) > COMPACT_BYTES and size > 64:
        size = max(size * 3 // 4, 64)
    return text
