"""What happens to a job's files: other orders, clocks, cuts, names and forms."""

import random
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta

Files = dict[str, bytes]
# A name, files, and whether they are still known by the same names of hosts.
Variant = tuple[str, Files]

STAMP = re.compile(rb"\b([IWEF])(\d{4} \d\d:\d\d:\d\d)(\.\d{6})")
SUMMARY = re.compile(rb"(time\s+: )(\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d)")
SECONDS = re.compile(rb'("timestamp": "?)(\d{10})\b')
NANOSECONDS = re.compile(rb'("(?:start_)?time_ns": ?)(\d{19})\b')
LOG = re.compile(r"\.(log|err|out|txt)$")


def orders(name: str, files: Files) -> Iterator[Variant]:
    """Yield the same files, found in other orders."""
    yield "backwards", dict(reversed(files.items()))
    for seed in range(3):
        names = list(files)
        random.Random(f"{name} {seed}").shuffle(names)
        yield f"shuffled {seed}", {each: files[each] for each in names}


def clocks(files: Files) -> Iterator[Variant]:
    """Yield the files with the clock of one node five seconds off."""
    if any(name.endswith(".box") for name in files):
        # What is in a black box is under a checksum.
        return
    nodes = sorted({node for name in files if (node := _node(name)) is not None})
    for node in nodes if len(nodes) > 1 else []:
        for seconds in 5, -5:
            yield (
                f"node {node} {seconds:+} s",
                {
                    name: shift(data, seconds) if _node(name) == node else data
                    for name, data in files.items()
                },
            )


def shift(data: bytes, seconds: int) -> bytes:
    """Return a file with every time in it moved."""
    by = timedelta(seconds=seconds)

    def moved(form: str) -> Callable[[re.Match[bytes]], bytes]:
        def move(match: re.Match[bytes]) -> bytes:
            # A leap year, so that every day exists.
            text = match[2].decode()
            if form.startswith("%Y"):
                time = datetime.strptime(text, form) + by
            else:
                time = datetime.strptime(f"2024{text}", f"%Y{form}") + by
            tail = match[3] if match.re is STAMP else b""
            return match[1] + time.strftime(form).encode() + tail

        return move

    data = STAMP.sub(moved("%m%d %H:%M:%S"), data)
    data = SUMMARY.sub(moved("%Y-%m-%d_%H:%M:%S"), data)
    for pattern, unit in (SECONDS, 1), (NANOSECONDS, 10**9):
        data = pattern.sub(
            lambda match, unit=unit: (
                match[1] + b"%d" % (int(match[2]) + seconds * unit)
            ),
            data,
        )
    return data


def losses(name: str, files: Files) -> Iterator[Variant]:
    """Yield the files with some missing."""
    chance = random.Random(name)
    launchers = [each for each in files if each.startswith(("agent", "train-worker"))]
    yield "no launcher", {k: v for k, v in files.items() if k not in launchers}
    yield "no error file", {k: v for k, v in files.items() if not k.endswith(".json")}
    for number in range(2):
        lost = chance.choice(list(files))
        yield f"one lost {number}", {k: v for k, v in files.items() if k != lost}


def cuts(name: str, files: Files) -> Iterator[Variant]:
    """Yield the files with some cut short, as by a full disk or a log's limit."""
    chance = random.Random(name)
    cut = chance.choice(list(files))
    yield "one cut", files | {cut: files[cut][: len(files[cut]) // 2]}
    most = {k: v[: len(v) * 2 // 3] if LOG.search(k) else v for k, v in files.items()}
    yield "logs without ends", most
    tails = {k: v[len(v) // 3 :] if LOG.search(k) else v for k, v in files.items()}
    yield "logs without beginnings", tails


def names(files: Files) -> Iterator[Variant]:
    """Yield the files as somebody may have called them who put them away."""
    yield "put away", {f"incident/2026-11/{k}": v for k, v in files.items()}
    other = {}
    for name, data in files.items():
        renamed = re.sub(r"^agent(\d)\.err$", r"torchrun-\1.log", name)
        renamed = re.sub(r"^node(\d)/", r"gpu-\1/", renamed)
        renamed = re.sub(r"^console\.log$", "job-output.txt", renamed)
        other[renamed] = data
    yield "other names", other


def forms(files: Files) -> Iterator[Variant]:
    """Yield the logs in forms that say the same."""

    def each(form: Callable[[bytes], bytes]) -> Files:
        return {k: form(v) if LOG.search(k) else v for k, v in files.items()}

    def lines(form: bytes) -> Files:
        return each(lambda data: re.sub(rb"(?m)^(.*)$\n?", form, data.rstrip(b"\n")))

    yield "from Windows", each(lambda v: BOM_UTF8 + re.sub(rb"\r?\n", b"\r\n", v))
    yield "coloured, indented", lines(b"    \x1b[31m\\1\x1b[0m\n")
    yield "each line twice", lines(rb"\1\n\1\n")


def joined(ranks: Mapping[int, bytes], margin: str) -> bytes:
    """Return one log of all ranks, whose lines come in turns, each after a margin."""
    waiting = {
        rank: [margin.format(rank).encode() + line for line in data.splitlines(True)]
        for rank, data in ranks.items()
    }
    log = []
    while any(waiting.values()):
        for rank, left in waiting.items():
            log += left[:3]
            waiting[rank] = left[3:]
    return b"".join(log)


def _node(name: str) -> str | None:
    """Return the number of the node that a file was written on."""
    found = re.search(r"^(?:node|agent|train-worker-)(\d)|\.node(\d)\.", name)
    return (found[1] or found[2]) if found else None
