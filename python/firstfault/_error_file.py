"""Reads error files: every shape that torch and firstfault write, and what is none.

A file that is torn, foreign or hostile is a damaged entry, never an exception.
"""

from __future__ import annotations

import os
import stat

from firstfault._errors import MissingMessageError
from firstfault._text import cut, is_message, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FILE_BYTES = 16 * 1024 * 1024
_FIRST_BYTES = 200
_LATEST = 2**40
"""Seconds since the Unix epoch that no clock shows; a later time is no time."""


class ErrorFile:
    """What an error file says.

    Attributes:
        data: The JSON object; of a damaged file ``{"message": damage}``.
        damage: Why the file cannot be used, with its first bytes; empty if it can be.
        timestamp: Seconds since the Unix epoch: the record's own time, else when the
            file was last written.
        time_ns: Nanoseconds since the Unix epoch, None where the record has none.
    """

    __slots__ = ("damage", "data", "time_ns", "timestamp")

    def __init__(self, data: dict[str, Any], damage: str, written: int) -> None:
        self.data = data
        self.damage = damage
        self.time_ns = time_ns_of(data)
        own = _timestamp_of(data)
        self.timestamp = written if own is None else own


def load(path: str) -> ErrorFile:
    """Read an error file, or the fuller copy beside it if that is of the same failure.

    At most 16 MiB are read.

    Raises:
        MissingMessageError: The file is a JSON object without ``message``.
        FileNotFoundError: There is no such file.
    """
    found = _load(path)
    if "firstfault" in found.data or not path.endswith(".json"):
        return found
    try:
        copy = _load(f"{path[:-5]}.firstfault.json")
    except (OSError, MissingMessageError):
        return found
    if section_of(copy.data).get("final") is not True:
        return found
    same = found.damage or says(found.data, message_of(copy.data))
    return copy if same else found


def damaged(
    path: str, reason: str, more: str = "", written: int | None = None
) -> ErrorFile:
    """Return what stands for an error file that cannot be used."""
    damage = printable(f"error file {path} is damaged ({reason}){more}")
    if written is None:
        import time

        written = int(time.time())
    return ErrorFile({"message": damage}, damage, written)


def failed_child(path: str) -> tuple[int, str, str] | None:
    """Return the first failure that a child of this process recorded beside its file.

    Returns:
        The child's process ID, its message and its call stack; None without one.
    """
    if not path.endswith(".json"):
        return None
    directory, _, name = path.rpartition("/")
    prefix = f"{name[:-5]}.{os.getpid()}.child_"
    found = []
    for entry in os.listdir(directory or "."):
        pid = entry.removeprefix(prefix).removesuffix(".json")
        if not entry.startswith(prefix) or not pid.isdecimal():
            continue
        data = load(os.path.join(directory, entry)).data
        message = data.get("message")
        extra = message.get("extraInfo") if isinstance(message, dict) else None
        stack = extra.get("py_callstack") if isinstance(extra, dict) else None
        time_ns = time_ns_of(data) or 0
        found.append((time_ns, int(pid), message_of(data) or "", str(stack or "")))
    return min(found)[1:] if found else None


def section_of(data: object) -> dict[str, Any]:
    """Return firstfault's section of an error file's data; empty where it has none."""
    section = data.get("firstfault") if isinstance(data, dict) else None
    return section if isinstance(section, dict) else {}


def says(data: object, message: str | None) -> bool:
    """Return whether a record of torch's has this message of ours."""
    theirs = message_of(data)
    return None not in (theirs, message) and is_message(str(theirs), str(message))


def time_ns_of(data: object) -> int | None:
    """Return the time of a record in nanoseconds since the Unix epoch, or None."""
    value = section_of(data).get("time_ns")
    good = type(value) is int and 0 < value < _LATEST * 10**9
    return value if good else None


def message_of(data: object) -> str | None:
    """Return the text of a record's message, whatever the file's shape, or None."""
    message = data.get("message") if isinstance(data, dict) else None
    if isinstance(message, dict):
        message = message.get("message")
    return message if isinstance(message, str) else None


def _timestamp_of(data: dict[str, Any]) -> int | None:
    message = data.get("message")
    holder = message.get("extraInfo") if isinstance(message, dict) else data
    value = holder.get("timestamp") if isinstance(holder, dict) else None
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        seconds = int(float(value))
    except (ValueError, OverflowError):
        return None
    return seconds if 0 < seconds < _LATEST else None


def _load(path: str) -> ErrorFile:
    content, written, reason = _read(path)
    data: Any = None
    if not reason:
        data, reason = _parse(content)
    if reason:
        first, _ = cut(repr(content[:_FIRST_BYTES])[1:], 4 * _FIRST_BYTES)
        return damaged(path, reason, f": {first}", written)
    return ErrorFile(data, "", written)


def _parse(content: bytes) -> tuple[dict[str, Any], str]:
    import json

    if not content.strip(b"\0\t\n\r "):
        return {}, "empty"
    try:
        data = json.loads(content)
    except RecursionError:
        return {}, "nested too deeply"
    except Exception as error:  # also not UTF-8, or a number of 5000 digits
        return {}, printable(f"no JSON: {error}"[:_FIRST_BYTES])
    if not isinstance(data, dict):
        return {}, f"a JSON {type(data).__name__}, not an object"
    if "message" not in data:
        raise MissingMessageError("message")
    if not isinstance(data["message"], (str, dict)):
        return {}, f"`message` is a JSON {type(data['message']).__name__}"
    return data, ""


def _read(path: str) -> tuple[bytes, int, str]:
    """Return a file's content, when it was written, and why it cannot be used."""
    try:
        # Not blocking: a FIFO in its place has no writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb", buffering=0) as file:
            status = os.fstat(descriptor)
            written = int(status.st_mtime)
            if not stat.S_ISREG(status.st_mode):
                return b"", written, "not a regular file"
            chunks, missing = [], FILE_BYTES + 1
            while missing > 0 and (chunk := file.read(min(missing, 2**20))):
                chunks.append(chunk)
                missing -= len(chunk)
            content = b"".join(chunks)
    except FileNotFoundError:
        raise
    except OSError as error:
        import time

        return b"", int(time.time()), error.strerror or type(error).__name__
    if len(content) > FILE_BYTES:
        return content[:_FIRST_BYTES], written, f"longer than {FILE_BYTES} bytes"
    return content, written, ""
