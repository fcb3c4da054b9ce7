"""Reads what a core dump says of the crashed thread.

Source: core(5), linux/elfcore.h.
"""

import platform
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NT_PRSTATUS, NT_SIGINFO, NT_FILE = 1, 0x53494749, 0x46494C45
# Where the registers of elf_prstatus begin, and which one is the program counter.
REGISTERS = 112
PROGRAM_COUNTER = {"x86_64": 16, "aarch64": 32}
PT_LOAD, PT_NOTE = 1, 4


@dataclass(frozen=True)
class Core:
    """The crashed thread of a core dump; places are files with offsets."""

    program_counter: tuple[str, int]
    signal: int
    code: int
    address: int | tuple[str, int]
    threads: int


def read_core(path: Path) -> Core:
    """Return the facts of the thread that the kernel dumped first, the crashed one."""
    found = list(notes(path))
    statuses = [data for kind, data in found if kind == NT_PRSTATUS]
    information = next(data for kind, data in found if kind == NT_SIGINFO)
    register = REGISTERS + 8 * PROGRAM_COUNTER[platform.machine()]
    (program_counter,) = struct.unpack_from("<Q", statuses[0], register)
    signal, _, code = struct.unpack_from("<iii", information)
    (address,) = struct.unpack_from("<Q", information, 16)
    # A sent signal has its sender there: process ID and user ID.
    told = place(path, address) if code > 0 else address >> 32
    return Core(place(path, program_counter), signal, code, told, len(statuses))


def place(path: Path, address: int) -> tuple[str, int]:
    """Return the file that was mapped there and the offset in it; no name without."""
    found = next(data for kind, data in notes(path) if kind == NT_FILE)
    for start, end, offset, name in mappings(found):
        if start <= address < end:
            return name, address - start + offset
    return "", address


def read_memory(path: Path, address: int, length: int) -> bytes:
    """Return memory of the dead process, which must be in one mapping."""
    for kind, offset, start, size in segments(path):
        if kind == PT_LOAD and start <= address and address + length <= start + size:
            with path.open("rb") as file:
                file.seek(offset + address - start)
                return file.read(length)
    raise LookupError(hex(address))


def segments(path: Path) -> Iterator[tuple[int, int, int, int]]:
    """Yield kind, offset in the file, address and size of what the dump holds."""
    with path.open("rb") as file:
        header = file.read(64)
        assert header[:4] == b"\x7fELF", path
        (table,) = struct.unpack_from("<Q", header, 32)
        size, count = struct.unpack_from("<HH", header, 54)
        file.seek(table)
        programs = file.read(size * count)
    for index in range(count):
        kind, _, offset, start, _, length = struct.unpack_from(
            "<IIQQQQ", programs, index * size
        )
        yield kind, offset, start, length


def notes(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield kind and content of the notes."""
    for segment, offset, _, length in segments(path):
        if segment != PT_NOTE:
            continue
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(length)
        at = 0
        while at < len(data):
            name, content, kind = struct.unpack_from("<III", data, at)
            at += 12 + (name + 3) // 4 * 4
            yield kind, data[at : at + content]
            at += (content + 3) // 4 * 4


def mappings(note: bytes) -> list[tuple[int, int, int, str]]:
    """Return start, end, offset and name of each mapped file."""
    count, page = struct.unpack_from("<QQ", note)
    names = note[16 + 24 * count :].split(b"\0")
    ranges = struct.iter_unpack("<QQQ", note[16 : 16 + 24 * count])
    return [
        (start, end, offset * page, name.decode(errors="replace"))
        for (start, end, offset), name in zip(ranges, names, strict=False)
    ]
