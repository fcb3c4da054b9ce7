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
    ChildFailure = tuple[int, str, str]  # process ID, message, call stack

SCHEMA_VERSION = 1
COMPACT_BYTES = 4000


class ErrorRecord:
    """One failure, ready to be written: read-only once made.

    Attributes:
        kind: ``exception`` or ``exit``.
        message: ``ValueError: the text``, at most 16 KiB.
        moment: When it was recorded first, as `_native.clock` says it.
        content: The error file, a JSON object in ASCII.
        compact: The same in at most 4000 bytes, the message first.
    """

    __slots__ = ("compact", "content", "kind", "message", "moment")

    def __init__(
        self, kind: str, message: str, moment: Moment, content: str, compact: str
    ) -> None:
        self.kind = kind
        self.message = message
        self.moment = moment
        self.content = content.encode()
        self.compact = compact.encode()


def make(
    e: BaseException,
    moment: Moment,
    *,
    final: bool,
    preceded_by: list[Data],
    child: ChildFailure | None = None,
    briefly: bool = False,
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
    """
    before = e.__traceback__, e.__context__, e.__cause__, e.__suppress_context__
    try:
        if briefly:
            return _minimal(e, moment, final)
        try:
            return _full(e, moment, final, preceded_by, child)
        except Exception:
            return _minimal(e, moment, final)
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
) -> ErrorRecord:
    truncated: dict[str, int] = {}
    text = headline(e)
    if child is not None:
        text = f"{text}, after child process {child[0]} failed: {child[1]}"
    message, missing = cut(text, MESSAGE_BYTES)
    if missing:
        truncated["message"] = missing
    section = _section(e, moment, final) | {"exception": describe(e, truncated)}
    if preceded_by:
        section["preceded_by"] = preceded_by
    stack = callstack(e, truncated)
    if child is not None:
        stack += f"\nChild process {child[0]} had failed before:\n{child[2]}"
    if truncated:
        section["truncated"] = truncated
    collateral = is_collateral(e, chain_of(e)[0], _native.is_collateral)
    return _assemble(e, moment, message, stack, section, collateral, _native.identity())


def _minimal(e: BaseException, moment: Moment, final: bool) -> ErrorRecord:
    """Return a record that needs little memory, no other module and no open file."""
    message = cut(headline(e), MESSAGE_BYTES)[0]
    stack = cut(plain_callstack(e), CALLSTACK_BYTES)[0]
    section = _section(e, moment, final)
    section["exception"] = {"type": class_name(type(e)), "message": message}
    return _assemble(e, moment, message, stack, section, False, "{}")


def _section(e: BaseException, moment: Moment, final: bool) -> Data:
    time_ns, monotonic_ns, max_error_us, synchronized = moment
    section: Data = {
        "schema_version": SCHEMA_VERSION,
        "kind": "exit" if isinstance(e, SystemExit) else "exception",
        "final": final,
        "time_ns": time_ns,
        "monotonic_ns": monotonic_ns,
    }
    if max_error_us is not None:
        section["clock"] = {"max_error_us": max_error_us, "synchronized": synchronized}
    return section


def _assemble(
    e: BaseException,
    moment: Moment,
    message: str,
    stack: str,
    section: Data,
    collateral: bool,
    identity: str,
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
    if len(identity) > 2:
        own = f"{own[:-1]}, {identity[1:]}"
    content = (
        f'{{"message": {encode(torch_part(message, stack))}, "firstfault": {own}}}'
    )
    short = {
        key: section[key] for key in ("schema_version", "kind", "final", "time_ns")
    }
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
