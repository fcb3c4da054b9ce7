"""The functions that a crash record names itself: those that modules export."""

import ctypes
import functools
import shutil
import struct
import tempfile
from pathlib import Path
from signal import SIGABRT, SIGSEGV
from typing import Any

import pytest

from conftest import read_record
from crashes import Crashed, crash, crashed_thread, faults_library
from mounts import served
from test_crash_stages import stages
from test_crash_tables import section

CHAIN = ["read_null", "stack_inner", "stack_middle", "stack_outer"]
FUNCTIONS = (2, 10)
PAGE = 4096


@functools.cache
def exported(path: str) -> list[tuple[int, int, str]]:
    """Return start, end and name of each function. Source: elf(5), `Elf64_Sym`."""
    elf = Path(path).read_bytes()
    names, found = section(elf, b".dynstr"), []
    for at in section(elf, b".dynsym")[::24]:
        name, info, _, of, start, size = struct.unpack_from("<I2BH2Q", elf, at)
        if info & 15 in FUNCTIONS and of and size:
            text = elf[names.start + name :].split(b"\0", 1)[0]
            found.append((start, start + size, text.decode()))
    return found


def first_address(path: str) -> int:
    """Return what a file states as the address of its first byte."""
    elf = Path(path).read_bytes()
    (table,) = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<2H", elf, 54)
    headers = [struct.unpack_from("<2I2Q", elf, table + size * n) for n in range(count)]
    return next(at for kind, _, _, at in headers if kind == 1) // PAGE * PAGE


def named(record: dict, thread: dict) -> list[tuple[str, str | None]]:
    """Return a thread's frames as module and function, after a look at each name.

    Whatever covers the frame in its module's own table is there, and nothing else.
    """
    modules = [module["path"] for module in record["firstfault"]["modules"]]
    result = []
    for frame in thread.get("native", []):
        path = modules[frame["module"]] if "module" in frame else ""
        name = frame.get("symbol")
        if path.startswith("/"):
            at = first_address(path) + int(frame["offset"], 16)
            covers = {f[2] for f in exported(path) if f[0] <= at < f[1]}
            assert name in (covers or {None}), (path, frame)
        result.append((Path(path).name, name))
    return result


def names_in(ours: Crashed, library: Path) -> list[str | None]:
    """Return the names of the crashed thread's functions in a library."""
    record = ours.record()
    assert stages(record)["symbols"] == "ok"
    found = named(record, crashed_thread(record))
    return [name for module, name in found if module == library.name]


@pytest.mark.parametrize("fault", ["through:read_null", "native_through:throw_cpp"])
def test_every_name_is_that_of_what_covers_the_frame(
    directory: Path, fault: str
) -> None:
    record = crash(directory, "threads:3", fault).record()
    assert set(stages(record).values()) <= {"ok", "skipped"}
    threads = [named(record, thread) for thread in record["firstfault"]["threads"]]
    assert len(threads) in (4, 5)
    assert all(any(name for _, name in thread) for thread in threads)
    assert any(("libc.so.6", None) in thread for thread in threads)


def test_what_is_hidden_has_no_name(directory: Path) -> None:
    """The fault is in a function of its own that the library keeps to itself."""
    ours = crash(directory, "through:read_null")
    assert names_in(ours, faults_library()) == [None, *CHAIN]


def test_who_threw_is_in_the_text(directory: Path) -> None:
    """As torchrun prints it, from a native thread."""
    ours = crash(directory, "native_through:throw_cpp")
    text = ours.record()["message"]["extraInfo"]["py_callstack"]
    for function in ("throw_cpp", *CHAIN[1:]):
        assert f" ({function})\n" in text
    assert "(_ZSt9terminatev)\n" in text
    assert f"\n  {faults_library().name}+0x" in text


def test_a_library_that_is_gone(directory: Path, tmp_path: Path) -> None:
    """Its symbols are read in memory, from a file system that is no disk's."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        copy = Path(memory, "gone.so")
        shutil.copy(faults_library(), copy)
        ours = crash(directory, f"unlink_and_call:{copy}:read_null")
    record = ours.record()
    assert stages(record)["symbols"] == "ok"
    modules = [module["path"] for module in record["firstfault"]["modules"]]
    assert f"{copy} (deleted)" in modules
    found = [frame.get("symbol") for frame in crashed_thread(record)["native"]]
    assert found[:2] == [None, "read_null"]


@pytest.mark.parametrize("name", [".dynsym", ".dynstr", ".gnu.hash", ".dynamic"])
def test_noise(tmp_path: Path, name: str) -> None:
    """A table that is overwritten costs the names, never the record."""
    elf = faults_library().read_bytes()
    span = section(elf, name.encode())
    for seed in range(12):
        directory = tmp_path / str(seed)
        directory.mkdir()
        where = f"{faults_library()}:{span.start}:{span.stop}:{seed}"
        ours = crash(directory, f"scramble_and_call:{where}:read_null")
        assert (ours.status, ours.files) == (-SIGSEGV, ["error.json"]), ours.stderr
        assert "panicked" not in ours.stderr
        found = stages(ours.record())
        assert found.pop("symbols") in ("ok", "skipped")
        assert set(found.values()) == {"ok"}


def test_a_symbol_table_that_does_not_answer(directory: Path) -> None:
    """The functions of that library have no names; all the rest is as ever."""
    ctypes.CDLL("libstdc++.so.6")
    maps = Path("/proc/self/maps").read_text().split()
    library = next(path for path in maps if "/libstdc++.so" in path)
    span = section(Path(library).read_bytes(), b".dynsym")
    pages = f"{-(-span.start // PAGE) * PAGE}:{span.stop // PAGE * PAGE}"
    local = directory.parent / "local.json"
    ended, _ = served().crash(
        directory,
        f"terminate_far:{library}:{directory}/far.so:{pages}",
        env={"TORCHELASTIC_ERROR_FILE": str(local)},
        after="kill -CONT $FILE_SERVER",
    )
    assert ended.status == 128 + SIGABRT
    assert (ended.ended_ns - ended.began_ns) < 10e9
    record = read_record(local)
    found = stages(record)
    assert found.pop("symbols") == "skipped"
    assert set(found.values()) == {"ok"}
    modules = [Path(m["path"]).name for m in record["firstfault"]["modules"]]
    frames: list[Any] = crashed_thread(record)["native"]
    names = [(modules[f["module"]], f.get("symbol")) for f in frames if "module" in f]
    assert ("libc.so.6", "abort") in names
    assert {name for module, name in names if module == "far.so"} == {None}
