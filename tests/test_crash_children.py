"""Children that crash, forked or started, never write their rank's own file."""

import json
import re
import subprocess
import sys
from pathlib import Path
from signal import SIGABRT, SIGKILL, SIGSEGV
from typing import Any

import pytest

import firstfault
from boxes import read_box
from conftest import Run, clean_environment
from crashes import comparable, crash, crashed_thread, faults_library, functions


def child_of(ours: Any) -> tuple[int, int]:
    """Return ID and exit status of the child that the program told of."""
    found = re.search(r"child (\d+) ended with (-?\d+)", ours.stderr)
    assert found, ours.stderr
    return int(found[1]), int(found[2])


@pytest.mark.parametrize("under", ["activate", "firstfault"])
@pytest.mark.parametrize("fault", ["read_null", "os_abort", "kill:7"])
def test_a_forked_child(directory: Path, under: str, fault: str) -> None:
    steps = ["threads:3", f"fork:{fault}", f"fork:{fault}"]
    ours = crash(directory, *steps, under=under)
    assert ours.status == 0
    children = re.findall(r"child (\d+) ended with (-?\d+)", ours.stderr)
    assert len({status for _, status in children}) == 1
    assert int(children[0][1]) < 0
    names = [f"error.{ours.pid}.child_{child}.json" for child, _ in children]
    assert ours.files == sorted(names)
    for (child, status), name in zip(children, names, strict=True):
        record = ours.record(name)
        section = record["firstfault"]
        assert section["process"]["pid"] == int(child)
        assert section["process"]["ppid"] == ours.pid
        assert section["signal"]["number"] == -int(status)
        assert section["threads_total"] == 1
        assert "main" in functions(crashed_thread(record))


def test_parent_and_child_both_crash(directory: Path) -> None:
    ours = crash(directory, "fork:read_null", "os_abort")
    child, status = child_of(ours)
    assert (status, ours.status) == (-SIGSEGV, -SIGABRT)
    assert ours.files == [f"error.{ours.pid}.child_{child}.json", "error.json"]
    record = ours.record()
    assert record["firstfault"]["process"]["pid"] == ours.pid
    assert "os_abort" in functions(crashed_thread(record))
    assert "fork" in functions(crashed_thread(ours.record(ours.files[0])))


WAYS = ["fork", "raw_clone", "vfork"]


@pytest.mark.parametrize("under", ["activate", "firstfault"])
@pytest.mark.parametrize("fault", ["read_null", "c_abort"])
@pytest.mark.parametrize("way", WAYS)
def test_a_crash_after_that_of_a_child(
    directory: Path, tmp_path: Path, way: str, fault: str, under: str
) -> None:
    """What the child's handler left, in shared memory too, is none of its parent's."""
    (tmp_path / "theirs").mkdir()
    bare = "nothing" if under == "activate" else "torch_handler"
    steps = [f"{way}:{fault}", "threads:3", fault]
    ours = crash(directory, *steps, under=under)
    assert ours.status == (-SIGSEGV if fault == "read_null" else -SIGABRT)
    # Once for the child and once for its parent.
    dumps = 2 if under == "firstfault" else 0
    assert ours.stderr.count("Fatal Python error") == dumps
    # faulthandler itself is at a loss where a child has used it up in shared memory.
    if way != "vfork" or under == "activate":
        theirs = crash(tmp_path / "theirs", *steps, under=bare)
        assert ours.status == theirs.status
        said, wanted = (
            comparable(re.sub(r"child \d+", "child", each.stderr))[:3]
            for each in (ours, theirs)
        )
        assert said == wanted
    child, last = ours.files
    assert last == "error.json"
    assert child.startswith(f"error.{ours.pid}.child_")
    childs = ours.record(child)["firstfault"]
    assert childs["signal"]["number"] == -ours.status
    assert childs["process"]["ppid"] == ours.pid
    record = ours.record()
    section = record["firstfault"]
    assert section["process"]["pid"] == ours.pid
    assert section["signal"]["number"] == -ours.status
    assert section["threads_total"] == 4
    assert {stage["status"] for stage in section["stages"]} == {"ok"}
    assert "main" in functions(crashed_thread(record))
    box = read_box(directory / f"error.{ours.pid}.box")
    assert (box.state, box.crash_signal) == ("crashed", -ours.status)


@pytest.mark.parametrize("way", WAYS)
def test_a_childs_crash_is_not_in_its_parents_box(directory: Path, way: str) -> None:
    steps = [f"{way}:read_null", f"kill:{SIGKILL:d}"]
    ours = crash(directory, *steps, under="activate")
    assert ours.status == -SIGKILL
    box = read_box(directory / f"error.{ours.pid}.box")
    assert (box.state, box.crash_signal) == ("running", 0)
    assert [name for name in ours.files if "child_" not in name] == []


def test_a_child_that_recovers_and_one_that_does_not(directory: Path) -> None:
    steps = ["fork:touch:100", "touch:100", "fork:touch:1", "report_files"]
    ours = crash(directory, *steps, under="activate", before=[f"install:0:{SIGSEGV:d}"])
    assert (ours.status, ours.files) == (0, [])
    assert ours.stderr.endswith("\n[]\n")
    assert [line.split()[-1] for line in ours.stderr.splitlines()[:2]] == ["0", "0"]


def test_a_forked_child_that_has_recorded_an_exception_by_hand(directory: Path) -> None:
    """One record for one end, and what the parent has recorded stays the parent's."""
    steps = [
        "record_error:the parent's",
        "fork:both:record_error,the child's:read_null",
    ]
    ours = crash(directory, *steps)
    child, status = child_of(ours)
    assert (status, ours.status) == (-SIGSEGV, 0)
    name = f"error.{ours.pid}.child_{child}.json"
    assert ours.files == [name, "error.json"]
    section = ours.record(name)["firstfault"]
    assert section["signal"]["number"] == SIGSEGV
    # What the parent had survived is none of the child's.
    assert [e["message"] for e in section["preceded_by"]] == ["ValueError: the child's"]
    assert ours.record()["message"]["message"] == "ValueError: the parent's"


def test_what_a_parent_survived_is_not_in_its_childs_record(directory: Path) -> None:
    steps = ["record_error:the parent's", "fork:read_null", "read_null"]
    child, own = (crash(directory, *steps)).files
    sections = [
        json.loads((directory / name).read_bytes())["firstfault"]
        for name in (child, own)
    ]
    assert ["preceded_by" in section for section in sections] == [False, True]


def test_a_forked_child_that_crashes_behind_its_exception(directory: Path) -> None:
    """The exception keeps the child's own file; the crash of its end stands beside."""
    ours = crash(directory, "fork:fail_and_crash:the child's:read_null")
    child, status = child_of(ours)
    assert (status, ours.status) == (-SIGSEGV, 0)
    stem = f"error.{ours.pid}.child_{child}"
    assert ours.files == [f"{stem}.{child}.json", f"{stem}.json"]
    assert ours.record(f"{stem}.json")["firstfault"]["kind"] == "exception"
    later = ours.record(f"{stem}.{child}.json")["firstfault"]
    assert later["signal"]["number"] == SIGSEGV
    assert later["stages"]


CHILDREN = {
    "multiprocessing": """
import multiprocessing
child = multiprocessing.get_context("fork").Process(target=faults.read_null)
child.start()
child.join()
print(child.pid, child.exitcode)
""",
    "inherits": """
import subprocess
child = subprocess.Popen([sys.executable, __file__, sys.argv[1], "crash"])
print(child.pid, child.wait())
""",
    "spawned": """
import multiprocessing
child = multiprocessing.get_context("spawn").Process(target=start_and_crash)
child.start()
child.join()
print(child.pid, child.exitcode)
""",
    "forkserver": """
import multiprocessing
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["firstfault"])
child = context.Process(target=start_and_crash)
child.start()
child.join()
print(child.pid, child.exitcode)
""",
    "own_file": """
import os, subprocess
path = os.environ["TORCHELASTIC_ERROR_FILE"].replace("error.json", "own.json")
child = subprocess.Popen(
    [sys.executable, __file__, sys.argv[1], "crash"],
    env={**os.environ, "TORCHELASTIC_ERROR_FILE": path},
)
print(child.pid, child.wait())
""",
    "own_rank": """
import os, subprocess
child = subprocess.Popen(
    [sys.executable, __file__, sys.argv[1], "crash"],
    env={**os.environ, "RANK": "7"},
)
print(child.pid, child.wait())
""",
}
PROGRAM = """
import ctypes, sys
from firstfault import record

def crash():
    ctypes.CDLL(sys.argv[1]).read_null()

def start_and_crash():
    record(crash)()

faults = ctypes.CDLL(sys.argv[1])

@record
def main():
    if "crash" in sys.argv:
        crash()
    {body}

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("way", CHILDREN)
def test_a_started_child(directory: Path, tmp_path: Path, way: str) -> None:
    program = tmp_path / "parent.py"
    body = CHILDREN[way].strip().replace("\n", "\n    ")
    program.write_text(PROGRAM.replace("{body}", body))
    parent = subprocess.Popen(
        [sys.executable, program, faults_library()],
        env=clean_environment(
            TORCHELASTIC_ERROR_FILE=str(directory / "error.json"), RANK="0"
        ),
        stdout=subprocess.PIPE,
        text=True,
    )
    stdout, _ = parent.communicate(timeout=60)
    assert parent.returncode == 0
    child, status = map(int, stdout.split())
    assert status == -SIGSEGV
    name = {
        "own_file": "own.json",
        "own_rank": "error.json",
    }.get(way, f"error.{parent.pid}.child_{child}.json")
    files = [path.name for path in directory.iterdir() if path.suffix != ".box"]
    assert files == [name]
    section = json.loads((directory / name).read_bytes())["firstfault"]
    assert section["process"]["pid"] == child
    if way != "forkserver":
        assert section["process"]["ppid"] == parent.pid


LAUNCHER = """
import ctypes, os, sys
from firstfault import record

faults = ctypes.CDLL(sys.argv[1])

@record
def train():
    faults.read_null()

def as_rank(number, start):
    # As a launcher does: by a process that it forks.
    child = os.fork()
    if child == 0:
        path = os.path.dirname(os.environ["TORCHELASTIC_ERROR_FILE"])
        os.environ["TORCHELASTIC_ERROR_FILE"] = f"{path}/own_{number}.json"
        os.environ["RANK"] = str(number)
        start()
        os._exit(0)
    print(child, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)

@record
def main():
    as_rank(5, train)
    as_rank(6, faults.read_null)
    if sys.argv[2] == "crash":
        faults.c_abort()

main()
"""


@pytest.mark.parametrize("end", ["crash", "well"])
def test_a_launcher_forked_into_a_trainer(run: Run, end: str) -> None:
    """A rank of its own, once it is recorded; until then it is its launcher's child."""
    ended = run(LAUNCHER, str(faults_library()), end, env={"RANK": "0"})
    (trainer, first), (child, second) = (
        map(int, line.split()) for line in ended.stdout.splitlines()
    )
    assert first == second == -SIGSEGV
    assert ended.status == (-SIGABRT if end == "crash" else 0)
    own = ended.record("own_5.json")["firstfault"]
    assert (own["process"]["pid"], own["rank"]["rank"]) == (trainer, 5)
    assert own["process"]["entrypoint"] == "train"
    launcher = own["process"]["ppid"]
    forked = f"error.{launcher}.child_{child}.json"
    expected = {forked, "own_5.json"} | ({"error.json"} if end == "crash" else set())
    assert set(ended.files) == expected
    assert ended.record(forked)["firstfault"]["process"]["pid"] == child
    boxes = {path.name: read_box(path) for path in ended.directory.glob("*.box")}
    own_box = boxes.pop(f"own_5.{trainer}.box")
    assert (own_box.state, own_box.rank, own_box.crash_signal) == ("crashed", 5, 11)
    assert own_box.notes == [("enter", "train")]
    if end == "crash":
        section = ended.record()["firstfault"]
        assert (section["process"]["pid"], section["rank"]["rank"]) == (launcher, 0)
        assert section["signal"]["name"] == "SIGABRT"
        box = boxes.pop(f"error.{launcher}.box")
        assert (box.state, box.crash_signal) == ("crashed", SIGABRT)
        assert box.notes == [("enter", "main")]
    assert not boxes
    report = firstfault.report(ended.directory)
    assert report.root_cause is not None
    assert report.root_cause.category == "segfault"
    assert report.root_cause.rank == 5
