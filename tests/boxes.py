"""Reads black boxes on its own, by their published layout, and checks every slot."""

import struct
from dataclasses import dataclass
from pathlib import Path

MAGIC = b"ffaultbx"
SIZE = 65_536
RING, SLOT = 8192, 128
STATES = {1: "running", 2: "exiting", 3: "finished", 4: "crashed"}
_MASK = 2**64 - 1


@dataclass(frozen=True)
class Box:
    """What a box says."""

    pid: int
    state: str
    step: int | None
    rank: int | None
    run_id: str
    host: str
    request_signal: int
    crash_signal: int
    crash_address: int
    lost: int
    notes: list[tuple[str, str | None]]
    torn: int


def checksum(words: list[int]) -> int:
    """Return the checksum of a slot's words."""
    total = 0x9E3779B97F4A7C15
    for word in words:
        total = (total ^ word) * 0xFF51AFD7ED558CCD & _MASK
        total = (total << 29 | total >> 35) & _MASK
    return total


def read_box(path: Path) -> Box:
    """Return what a box says; its slots whole or left out, and counted."""
    data = path.read_bytes()
    assert data[:8] == MAGIC
    assert len(data) == SIZE
    header = struct.unpack_from("<21Q", data)
    notes, torn = [], 0
    for at in range(RING, SIZE, SLOT):
        words = struct.unpack_from("<16Q", data, at)
        if words[0] == 0:
            continue
        good = words[0] % 2 == 0 and checksum([words[0], *words[2:]]) == words[1]
        if not good:
            torn += 1
            continue
        name, value, has_value = data[at + 24], data[at + 25], data[at + 26] & 1
        text = data[at + 32 : at + SLOT]
        second = text[name : name + value].decode() if has_value else None
        notes.append((words[0], text[:name].decode(), second))
    crash = struct.unpack_from("<10Q", data, 4096)
    return Box(
        pid=header[3],
        state=STATES[header[8]],
        step=_signed(header[10]) if header[11] else None,
        rank=None if header[16] == _MASK else header[16],
        run_id=_text(data[576:1088]),
        host=_text(data[320:576]),
        request_signal=header[14],
        crash_signal=crash[0],
        crash_address=crash[5],
        lost=header[13],
        notes=[note[1:] for note in sorted(notes)],
        torn=torn,
    )


def _signed(word: int) -> int:
    return word - 2**64 if word >> 63 else word


def _text(data: bytes) -> str:
    return data.split(b"\0", 1)[0].decode()
