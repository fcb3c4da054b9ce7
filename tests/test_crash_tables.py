"""Unwind tables that are broken cost a native stack, never the record."""

import random
import struct
from pathlib import Path
from signal import SIGSEGV

import pytest

from crashes import crash, crashed_thread, faults_library, functions
from test_crash_stages import stages

# Programs that find a caller's frame. Source: DWARF 5, 6.4.2 and 2.5.1.
EXPRESSION, NOTHING, SKIP = b"\x0f", b"\0", b"\x2f\xfd\xff"
PROGRAMS = {
    "at zero": EXPRESSION + b"\x01\x30",
    "endless": EXPRESSION + b"\x03" + SKIP,
    "cut": EXPRESSION + b"\x7f",
}


def section(elf: bytes, wanted: bytes) -> range:
    """Return where a section's bytes are in an ELF file. Source: elf(5)."""
    (table,) = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<3H", elf, 58)
    headers = [struct.unpack_from("<2I4Q", elf, table + size * n) for n in range(count)]
    for name, *_, offset, length in headers:
        if elf[headers[names][4] + name :].startswith(wanted + b"\0"):
            return range(offset, offset + length)
    raise AssertionError(wanted)


def with_program(elf: bytearray, program: bytes) -> None:
    """Let every function find its caller by this. Source: LSB, ".eh_frame"."""
    frames = section(elf, b".eh_frame")
    at, written = frames.start, 0
    while at + 8 < frames.stop:
        length, cie = struct.unpack_from("<2I", elf, at)
        end = at + 4 + length
        start = at + 17 + elf[at + 16]
        if cie and end - start >= len(program):
            elf[start:end] = program.ljust(end - start, NOTHING)
            written += 1
        at = end
    assert written > 100


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_wrong_program(directory: Path, tmp_path: Path, program: str) -> None:
    elf = bytearray(faults_library().read_bytes())
    with_program(elf, PROGRAMS[program])
    broken = tmp_path / "broken.so"
    broken.write_bytes(elf)
    ours = crash(directory, "threads:2", "through:read_null", library=broken)
    assert (ours.status, ours.files) == (-SIGSEGV, ["error.json"])
    assert "panicked" not in ours.stderr
    record = ours.record()
    found = stages(record)
    assert found.pop("own_native_stack") in ("ok", "skipped")
    assert set(found.values()) == {"ok"}
    assert len(crashed_thread(record)["native"]) >= 1
    waiting = [t for t in record["firstfault"]["threads"] if "waiting" in functions(t)]
    assert len(waiting) == 2
    assert all(len(thread["native"]) > 5 for thread in waiting)


@pytest.mark.parametrize("name", [b".eh_frame", b".eh_frame_hdr"])
def test_noise(tmp_path: Path, name: bytes) -> None:
    broken = tmp_path / "broken.so"
    for seed in range(30):
        noise = random.Random(seed)
        elf = bytearray(faults_library().read_bytes())
        # The header's own encodings stay: without them nothing would look further.
        for at in section(elf, name)[8:]:
            if noise.random() < 0.5 ** (seed % 10):
                elf[at] = noise.choice([0, 127, 128, 255, noise.randrange(256)])
        broken.write_bytes(elf)
        directory = tmp_path / str(seed)
        directory.mkdir()
        ours = crash(directory, "through:read_null", under="activate", library=broken)
        assert (ours.status, ours.files) == (-SIGSEGV, ["error.json"])
        assert ours.stderr == ""
        found = stages(ours.record())
        found.pop("own_native_stack")
        assert set(found.values()) == {"ok"}
