"""An exception as the facts of an error file; the exception itself is left as it was.

Everything here is bounded, and nothing trusts the exception: its ``__str__`` may raise,
recurse or call `sys.exit`, its chain may be a circle, its group may have a million
leaves.
"""

from __future__ import annotations

from firstfault._patience import within
from firstfault._text import clip, cut, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from traceback import TracebackException
    from types import TracebackType
    from typing import Any

MESSAGE_BYTES = 16 * 1024
CALLSTACK_BYTES = 64 * 1024
PART_BYTES = 2 * 1024
"""Limit of the message of one note, one member of a chain, one leaf of a group."""

CHAIN_ENTRIES = 16
NOTES = 16
MRO_ENTRIES = 32
LEAVES = 64
_WALK = 1000
"""How many exceptions are looked at to find the deepest cause, or the leaves."""
_FORMATTED = 256
"""A longer chain, or a group with more leaves, is not formatted by `traceback`."""


def class_name(cls: type) -> str:
    """Return ``cls.__name__``, even where a metaclass makes that raise."""
    try:
        return printable(cls.__name__)
    except BaseException:
        return printable(type.__dict__["__name__"].__get__(cls))


def text_of(value: object) -> str:
    """Return ``str(value)``, or what went wrong: ``<str() raised KeyError>``.

    Its middle is missing where it is very long, see `clip`.
    """
    try:
        return printable(clip(str(value)))
    except BaseException as error:
        return f"<str() raised {class_name(type(error))}>"


def headline(e: BaseException) -> str:
    """Return torch's message of an exception: ``ValueError: the text``."""
    return f"{class_name(type(e))}: {text_of(e)}"


def exit_status(e: SystemExit) -> int:
    """Return the exit status with which CPython leaves on this exception.

    None is 0, an integer is cut to eight bits, what does not fit a C long is 255, and
    anything else is printed and is 1. Source: CPython, Python/pythonrun.c.
    """
    code = e.code
    if code is None:
        return 0
    if not isinstance(code, int):
        return 1
    return int(code) & 0xFF if -(2**63) <= code < 2**63 else 255


def chain_of(e: BaseException) -> tuple[list[tuple[BaseException, str]], int]:
    """Return what led to an exception, nearest first, and how many were left out.

    Each comes with how it led to the one before: ``cause`` (``raise … from``) or
    ``context`` (raised while it was handled, and not suppressed). The last is the first
    that was raised. Where there are more than 16, eight at either end are kept.
    """
    chain: list[tuple[BaseException, str]] = []
    seen = {id(e)}
    current = e
    while len(chain) < _WALK:
        if current.__cause__ is not None:
            earlier, relation = current.__cause__, "cause"
        elif current.__context__ is not None and not current.__suppress_context__:
            earlier, relation = current.__context__, "context"
        else:
            break
        if id(earlier) in seen:
            break
        seen.add(id(earlier))
        chain.append((earlier, relation))
        current = earlier
    excess = len(chain) - CHAIN_ENTRIES
    if excess > 0:
        chain[CHAIN_ENTRIES // 2 : -CHAIN_ENTRIES // 2] = []
    return chain, max(excess, 0)


def leaves_of(e: BaseException) -> tuple[list[BaseException], int]:
    """Return the first 64 leaves of a group, depth first, and how many more were seen.

    Empty for an exception that is no group.
    """
    if not isinstance(e, BaseExceptionGroup):
        return [], 0
    leaves: list[BaseException] = []
    waiting = [e]
    steps = 0
    while waiting and steps < _WALK:
        steps += 1
        current: BaseException = waiting.pop()
        if isinstance(current, BaseExceptionGroup):
            waiting.extend(reversed(current.exceptions[:_WALK]))
        else:
            leaves.append(current)
    return leaves[:LEAVES], len(leaves[LEAVES:]) + len(waiting)


def is_collateral(
    e: BaseException,
    chain: list[tuple[BaseException, str]],
    judge: Callable[[str], bool],
) -> bool:
    """Return whether the deepest cause says that a peer or the store was lost.

    A group is collateral where all its leaves are. `judge` is asked about each text.
    """
    deepest = chain[-1][0] if chain else e
    leaves, _ = leaves_of(deepest)
    return all(
        judge(cut(headline(leaf), PART_BYTES)[0]) for leaf in leaves or [deepest]
    )


def describe(e: BaseException, truncated: dict[str, int]) -> dict[str, object]:
    """Return ``exception`` of an error file; counts in `truncated` what was cut."""
    facts = _entry(e, MESSAGE_BYTES)
    mro = [_qualified(cls) for cls in type(e).__mro__[:-1]]
    facts["mro"] = mro[:MRO_ENTRIES]
    _count(truncated, "mro", len(mro[MRO_ENTRIES:]))
    if notes := _notes(e, truncated):
        facts["notes"] = notes
    chain, excess = chain_of(e)
    _count(truncated, "chain", excess)
    if chain:
        facts["chain"] = [
            _entry(member, PART_BYTES) | {"relation": relation}
            for member, relation in chain
        ]
    leaves, excess = leaves_of(e)
    _count(truncated, "group", excess)
    if leaves:
        facts["group"] = [_entry(leaf, PART_BYTES) for leaf in leaves]
    try:
        retryable = getattr(e, "retryable", None)
    except BaseException:
        retryable = None
    if isinstance(retryable, bool):
        facts["retryable"] = retryable
    return facts


def callstack(e: BaseException, truncated: dict[str, int]) -> str:
    """Return the traceback as Python prints it, its middle cut out above 64 KiB.

    It is made from the exception itself, which need not be the one being handled. Where
    the program's files do not answer, it is without its chain and its source lines.
    """
    _, excess = chain_of(e)
    _, more = leaves_of(e)
    if max(excess, more) > _FORMATTED:
        _count(truncated, "py_callstack_chain", excess + more)
        text = plain_callstack(e)
    else:
        try:
            within(_program_of(e), _load_sources, e)
            import traceback

            shown = traceback.TracebackException.from_exception(e, compact=True)
            text = "".join(_clipped(shown).format())
        except Exception:
            text = plain_callstack(e)
    text, missing = cut(printable(text), CALLSTACK_BYTES)
    _count(truncated, "py_callstack", missing)
    return text


def _program_of(e: BaseException) -> str:
    step = e.__traceback__
    return "" if step is None else step.tb_frame.f_code.co_filename


def _load_sources(e: BaseException) -> None:
    """Read what formatting a traceback needs: `traceback` itself, and all source files.

    Nothing of the exception's own runs: this is done in a thread that is not its own.
    """
    import linecache
    import traceback

    shown = [e, *(member for member, _ in chain_of(e)[0]), *leaves_of(e)[0]]
    files = {
        frame.f_code.co_filename: frame.f_globals
        for member in shown
        for frame, _ in traceback.walk_tb(member.__traceback__)
    }
    for name, module in files.items():
        linecache.checkcache(name)
        linecache.getlines(name, module)


def _clipped(shown: TracebackException) -> TracebackException:
    """Return the traceback with its very long messages and notes clipped.

    It has copied none of them; its `format` would walk through each several times.
    """
    waiting: list[Any] = [shown]
    while waiting:
        one = waiting.pop()
        one._str = clip(str(one))
        if isinstance(one.__notes__, list):
            one.__notes__ = [
                clip(note) if isinstance(note, str) else note for note in one.__notes__
            ]
        waiting += filter(None, (one.__cause__, one.__context__))
        waiting += one.exceptions or ()
    return shown


def plain_callstack(e: BaseException) -> str:
    """Return the traceback without its chain and its source lines; loads no module."""
    lines = ["Traceback (most recent call last):"]
    frames: list[str] = []
    skipped = 0
    step: TracebackType | None = e.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        frames.append(
            f'  File "{code.co_filename}", line {step.tb_lineno}, in {code.co_name}'
        )
        if len(frames) > 128:
            del frames[64]
            skipped += 1
        step = step.tb_next
    if skipped:
        frames.insert(64, f"  [{skipped} frames cut]")
    return "\n".join([*lines, *frames, cut(headline(e), MESSAGE_BYTES)[0], ""])


def _entry(e: BaseException, limit: int) -> dict[str, object]:
    cls = type(e)
    return {
        "type": _name(cls, "__qualname__"),
        "module": _name(cls, "__module__"),
        "message": cut(text_of(e), limit)[0],
    }


def _notes(e: BaseException, truncated: dict[str, int]) -> list[str]:
    try:
        notes = list(getattr(e, "__notes__", ()))
    except BaseException:
        return []
    _count(truncated, "notes", len(notes[NOTES:]))
    return [cut(text_of(note), PART_BYTES)[0] for note in notes[:NOTES]]


def _qualified(cls: type) -> str:
    return f"{_name(cls, '__module__')}.{_name(cls, '__qualname__')}"


def _name(cls: type, attribute: str) -> str:
    try:
        return printable(getattr(cls, attribute))
    except BaseException:
        return class_name(cls)


def _count(truncated: dict[str, int], what: str, number: int) -> None:
    if number:
        truncated[what] = truncated.get(what, 0) + number
