"""Text for error files: made printable, cut to a limit, encoded as JSON.

Without loading ``json``: a process that cannot load another module (out of file
descriptors, out of memory) must still be able to say why it died.
"""

from __future__ import annotations

CLIPPED = 64 * 1024
"""How many characters of a text are looked at, half of them at either end."""

_BEGIN, _END = "\n... ", " bytes cut ...\n"
"""Around the number of bytes that were cut."""


def clip(text: str) -> str:
    """Return the text without its middle, where it is too long to be walked through.

    An exception may say a hundred megabytes, each pass over which takes a second. So
    nobody counts its bytes either: each character that is cut counts as one.
    """
    missing = str.__len__(text) - CLIPPED
    if missing <= 0:
        return text
    first = str.__getitem__(text, slice(CLIPPED // 2))
    last = str.__getitem__(text, slice(-CLIPPED // 2, None))
    return f"{first}{_BEGIN}{missing}{_END}{last}"


def printable(text: str) -> str:
    r"""Return the text as an exact `str`, lone surrogates written out (``\udcff``)."""
    if type(text) is str and text.isascii():
        return text  # Known without a look, however long it is.
    return str.encode(text, "utf-8", "backslashreplace").decode()


def cut(text: str, limit: int, head: float = 0.5) -> tuple[str, int]:
    """Return the text, its middle cut out above a limit, and how many bytes that is.

    Args:
        text: Any printable text.
        limit: Bytes of UTF-8 that the result may have, at least 64.
        head: How much of the limit the beginning gets; the end gets the rest.
    """
    if len(text) * 4 <= limit:
        return text, 0
    data = text.encode()
    if len(data) <= limit:
        return text, 0
    room = limit - 48  # for the line that says what was cut
    first = data[: int(room * head)].decode(errors="ignore")
    last = data[len(data) - (room - int(room * head)) :].decode(errors="ignore")
    missing = len(data) - len(first.encode()) - len(last.encode())
    missing += _cut_before(text[len(first) : len(text) - len(last)])
    return f"{first}{_BEGIN}{missing}{_END}{last}", missing


def _cut_before(middle: str) -> int:
    """Return by how much more was cut out of the text than is left of its middle."""
    before, end, _ = middle.partition(_END)
    number = before.rpartition(_BEGIN)[2]
    if not end or not (number.isascii() and number.isdecimal()):
        return 0
    return int(number) - len(_BEGIN + number + _END)


def is_message(whole: str, message: str) -> bool:
    """Return whether `message` is the text `whole`, perhaps printable and `cut`."""
    whole = printable(whole)
    if _END in message:
        return whole.startswith(message.partition(_BEGIN)[0])
    return whole == message


def encode(value: object) -> str:
    """Return JSON of dicts, sequences, printable text, integers, booleans and None.

    In ASCII, because torch reads error files in the encoding of its locale.
    """
    if isinstance(value, str):
        return _quote(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(
                f"{_quote(key)}: {encode(entry)}" for key, entry in value.items()
            )
            + "}"
        )
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(encode, value)) + "]"
    raise TypeError(f"no JSON for {type(value).__name__}")


_ESCAPES = {number: f"\\u{number:04x}" for number in range(32)}
_ESCAPES |= {ord('"'): '\\"', ord("\\"): "\\\\", ord("\n"): "\\n", ord("\t"): "\\t"}


def _quote(text: str) -> str:
    text = text.translate(_ESCAPES)
    if not text.isascii():
        text = "".join(
            letter if letter.isascii() else _escape(ord(letter)) for letter in text
        )
    return f'"{text}"'


def _escape(number: int) -> str:
    if number < 0x10000:
        return f"\\u{number:04x}"
    number -= 0x10000
    return f"\\u{0xD800 | number >> 10:04x}\\u{0xDC00 | number & 0x3FF:04x}"
