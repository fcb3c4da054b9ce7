"""The black box: what a worker leaves that nothing could warn of its death."""

import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from signal import SIGHUP, SIGKILL, SIGQUIT, SIGSEGV, SIGTERM
from typing import Any

import pytest

import firstfault
from boxes import SIZE, read_box
from conftest import PROGRAMS, Run, clean_environment
from crashes import missing
from process_groups import run_ranks

PROGRAM = """
import ctypes, os, signal, sys, threading
import firstfault

def dies(way):
    firstfault.breadcrumb("load", 7)
    firstfault.step(12)
    firstfault.breadcrumb("last words")
    exec(way)

@firstfault.record
def main():
    dies(sys.argv[1])

main()
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"
NOTES = [("enter", "main"), ("load", "7"), ("last words", None)]
RANK = {"RANK": "2", "TORCHELASTIC_RUN_ID": "job-7"}


def boxes(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.box"))


def told(record: dict[str, Any]) -> list[tuple[str, str | None]]:
    notes = record["firstfault"]["breadcrumbs"]
    assert all(note["time_ns"] > 10**18 for note in notes)
    return [(note["name"], note.get("value")) for note in notes]


@pytest.mark.parametrize("way", [KILL, "os._exit(3)", "os._exit(0)"])
def test_a_worker_that_vanishes_leaves_its_box(run: Run, way: str) -> None:
    ended = run(PROGRAM, way, env=RANK)
    assert ended.status in (-SIGKILL, 3, 0)
    assert ended.files == []
    (path,) = boxes(ended.directory)
    box = read_box(path)
    assert path.name == f"error.{box.pid}.box"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_blocks * 512 >= SIZE
    assert (box.state, box.step, box.rank, box.run_id) == ("running", 12, 2, "job-7")
    assert (box.notes, box.torn, box.lost) == (NOTES, 0, 0)
    assert box.host == os.uname().nodename


@pytest.mark.parametrize(
    "way",
    [
        "pass",
        "sys.exit(0)",
        "sys.exit(3)",
        "raise ValueError('no')",
        "raise KeyboardInterrupt",
    ],
)
def test_an_end_of_python_leaves_none(run: Run, way: str) -> None:
    ended = run(PROGRAM, way)
    assert boxes(ended.directory) == []
    if "error.json" in ended.files:
        assert ended.record()["firstfault"]["step"] == 12
        assert told(ended.record()) == NOTES


def test_a_crash_is_in_the_box_and_the_breadcrumbs_in_the_record(run: Run) -> None:
    ended = run(PROGRAM, "ctypes.string_at(16)")
    assert ended.status == -SIGSEGV
    box = read_box(boxes(ended.directory)[0])
    assert (box.state, box.crash_signal, box.crash_address) == ("crashed", 11, 16)
    record = ended.record()
    assert record["firstfault"]["step"] == 12
    assert told(record) == NOTES


@pytest.mark.parametrize("number", [SIGTERM, SIGHUP, SIGQUIT])
def test_a_snapshot_of_the_end_takes_its_place(run: Run, number: int) -> None:
    ended = run(PROGRAM, f"os.kill(os.getpid(), {number:d})")
    assert ended.status == -number
    assert boxes(ended.directory) == []
    (name,) = ended.files
    assert told(ended.record(name)) == NOTES


SHOW = """
import glob, subprocess
(path,) = glob.glob(os.path.dirname(os.environ["TORCHELASTIC_ERROR_FILE"]) + "/*.box")
subprocess.run([sys.executable, "-m", "firstfault", "show", path])
"""


def test_show_tells_of_a_process_while_it_lives_and_when_it_is_gone(run: Run) -> None:
    ended = run(PROGRAM, SHOW + KILL, env=RANK)
    assert ended.status == -SIGKILL
    (path,) = boxes(ended.directory)
    command = [sys.executable, "-m", "firstfault", "show", str(path)]
    gone = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    alive = ended.stdout
    assert alive.splitlines()[0] == "The process is alive"
    vanished = "The process vanished while main ran: no error file, no exit"
    assert gone.splitlines()[0] == vanished
    assert alive.splitlines()[1:] == gone.splitlines()[1:]
    assert "who   rank 2, host " in gone
    assert re.search(r"when .*, step 12, run job-7", gone)
    notes = [line.split(maxsplit=1)[1] for line in gone.splitlines()[-3:]]
    assert notes == ["enter main", "load 7", "last words"]
    told = json.loads(
        subprocess.run(
            [*command, "--json"], capture_output=True, text=True, check=True
        ).stdout
    )
    assert (told["black_box"]["state"], told["black_box"]["process"]) == (
        "running",
        "gone",
    )
    assert told["firstfault"]["step"] == 12


def is_killed_in_its_group(jobs: str, backend: str | None) -> None:
    """Die without a word once all ranks have met."""
    import torch.distributed as dist

    job, rank = Path(jobs), int(os.environ["RANK"])
    os.environ["TORCHELASTIC_ERROR_FILE"] = str(job / f"{rank}" / "error.json")

    @firstfault.record
    def main() -> None:
        where = {"init_method": f"file://{job}/store", "rank": rank, "world_size": 2}
        dist.init_process_group(backend, **where)
        firstfault.breadcrumb("after")
        (job / f"{rank}" / "is_there").touch()
        while len(list(job.glob("*/is_there"))) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), SIGKILL)

    main()


# What torch makes of the backend asked for; None is one for each device that is there.
GROUPS = {"gloo": r"gloo", "cpu:gloo": r"cpu:gloo", None: r"cpu:gloo(,.*)?"}


@pytest.mark.parametrize("backend", GROUPS)
def test_a_process_group_is_a_breadcrumb(tmp_path: Path, backend: str | None) -> None:
    for rank in "01":
        (tmp_path / rank).mkdir()
    ranks = run_ranks(is_killed_in_its_group, 2, str(tmp_path), backend, group=False)
    assert [rank.status for rank in ranks] == [-SIGKILL, -SIGKILL], ranks
    for rank in "01":
        (path,) = boxes(tmp_path / rank)
        names = [note for note in read_box(path).notes if note[0] != "enter"]
        (name, value), after = names
        assert name == "process_group"
        assert re.fullmatch(GROUPS[backend] + "/2", value or "")
        assert after == ("after", None)


TERM = f"os.kill(os.getpid(), {SIGTERM:d})"
STAYS = {
    "no snapshot": (TERM, {"FIRSTFAULT_SNAPSHOT": "0"}),
    "the program goes on": (
        f"signal.signal(15, lambda *_: None); import firstfault._native;"
        f"firstfault.ErrorHandler().initialize(); {TERM}; {KILL}",
        {},
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_a_box_stays_that_has_more_to_tell(run: Run, name: str) -> None:
    way, env = STAYS[name]
    ended = run(PROGRAM, way, env=env)
    assert ended.status in (-SIGTERM, -SIGKILL)
    (path,) = boxes(ended.directory)
    box = read_box(path)
    assert (box.state, box.request_signal) == ("running", SIGTERM)


def test_a_record_has_the_latest_thirty_two(run: Run) -> None:
    way = "[firstfault.breadcrumb('n', n) for n in range(1000)]; ctypes.string_at(0)"
    ended = run(PROGRAM, way)
    assert told(ended.record()) == [("n", str(n)) for n in range(968, 1000)]
    box = read_box(boxes(ended.directory)[0])
    assert box.notes == [("n", str(n)) for n in range(1000 - 448, 1000)]


ENDINGS = {
    "main returned": ("main()\nos._exit(0)", "exiting", [("leave", "main")]),
    "main raised": (
        "try: main()\nexcept ValueError: os._exit(1)",
        "exiting",
        [("leave", "main: ValueError")],
    ),
    "main runs again": (
        "try: main()\nexcept ValueError: firstfault.record(os._exit)(1)",
        "running",
        [("leave", "main: ValueError"), ("enter", "_exit")],
    ),
    "inside another": (
        "def outer(): main(); os._exit(1)\nfirstfault.record(outer)()",
        "running",
        [("leave", "main")],
    ),
    "exit() of C": (
        "firstfault.record(lambda: ctypes.CDLL(None).exit(3))()",
        "running",
        [("exit", "called by native code")],
    ),
}


@pytest.mark.parametrize("way", ENDINGS)
def test_the_state_says_how_far_it_came(run: Run, way: str) -> None:
    last, state, notes = ENDINGS[way]
    body = "raise ValueError" if "ValueError" in last else "pass"
    program = PROGRAM.removesuffix("main()\n") + last
    ended = run(program, body)
    box = read_box(boxes(ended.directory)[0])
    assert (box.state, box.notes[-len(notes) :]) == (state, notes)


# Takes the right to remove names from the directory, also from root.
LOCK = """
import os
from pathlib import Path

def lock():
    Path(os.environ["TORCHELASTIC_ERROR_FILE"]).parent.chmod(0o555)
    if os.getuid() == 0:
        os.setuid(65534)
"""


def test_a_box_that_cannot_be_removed_says_that_all_went_well(run: Run) -> None:
    ended = run(LOCK + PROGRAM + "lock()\n", "pass", env=RANK)
    assert (ended.status, ended.stderr, ended.files) == (0, "", [])
    (path,) = boxes(ended.directory)
    assert (read_box(path).state, read_box(path).step) == ("finished", 12)
    found = report(ended.directory)
    assert found["root_cause"] is None
    assert found["ranks"]["succeeded"] == "2"


def test_a_forked_child_has_no_box_and_leaves_its_parents_alone(run: Run) -> None:
    way = (
        "[(os.fork() or (firstfault.breadcrumb('child'), firstfault.step(99),"
        " firstfault.record(print)(), sys.exit())) and os.wait() for _ in range(3)];"
        "pid = os.fork();"
        "pid or ctypes.string_at(0);"
        f"os.wait(); {KILL}"
    )
    ended = run(PROGRAM, way)
    assert ended.status == -SIGKILL
    (path,) = boxes(ended.directory)
    box = read_box(path)
    assert path.name == f"error.{box.pid}.box"
    assert (box.state, box.step, box.notes) == ("running", 12, NOTES)
    (child,) = ended.files
    assert "step" not in ended.record(child)["firstfault"]
    assert "breadcrumbs" not in ended.record(child)["firstfault"]


def test_children_that_inherit_the_claim_have_none(run: Run) -> None:
    way = f"import subprocess; subprocess.run([sys.executable, __file__, {KILL!r}]); "
    ended = run(PROGRAM, way + KILL)
    (path,) = boxes(ended.directory)
    assert read_box(path).notes == NOTES


def test_a_launcher_and_its_trainer_have_one_each(run: Run) -> None:
    way = f"""
path = os.environ["TORCHELASTIC_ERROR_FILE"]
os.environ["TORCHELASTIC_ERROR_FILE"] = path.replace("error.json", "own.json")
os.fork() or firstfault.record(lambda: {KILL})()
os.wait()
{KILL}
"""
    ended = run(PROGRAM, way)
    first, second = boxes(ended.directory)
    assert first.name.startswith("error.")
    assert second.name.startswith("own.")
    assert read_box(first).notes == NOTES
    assert read_box(second).notes == [("enter", "<lambda>")]
    assert read_box(first).pid != read_box(second).pid


def test_exec_keeps_the_process_and_takes_the_box_over(run: Run) -> None:
    way = f"os.execv(sys.executable, [sys.executable, __file__, {KILL!r}])"
    ended = run(PROGRAM, way)
    (path,) = boxes(ended.directory)
    assert read_box(path).notes == NOTES


def test_another_process_s_box_of_the_same_id_is_left(
    run: Run, directory: Path
) -> None:
    # Containers give the same IDs again and again.
    first = (
        "import os, sys\n"
        "with open(f'{sys.argv[2]}/error.{os.getpid()}.box', 'w') as box:\n"
        "    box.write('x')\n"
    )
    ended = run(first + PROGRAM, KILL, str(directory))
    old, new = sorted(boxes(directory), key=lambda path: path.stat().st_size)
    assert old.read_text() == "x"
    assert new.name == f"error.{read_box(new).pid}.2.box"
    assert ended.status == -SIGKILL


def test_it_is_in_the_archive_where_there_is_one(run: Run, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    ended = run(PROGRAM, KILL, env={**RANK, "FIRSTFAULT_DIR": str(archive)})
    assert boxes(ended.directory) == []
    (path,) = boxes(archive)
    pid = read_box(path).pid
    host = os.uname().nodename
    name = f"job-7/attempt_0/rank_2.{host}.{pid}.{pid}.box"
    assert str(path.relative_to(archive)) == name


@pytest.mark.parametrize(
    "env",
    [
        {"FIRSTFAULT_DISABLE": "1"},
        {"TORCHELASTIC_ERROR_FILE": None},
        {"TORCHELASTIC_ERROR_FILE": "/dev/null"},
    ],
)
def test_without_a_target_there_is_none(run: Run, env: dict[str, str | None]) -> None:
    ended = run(PROGRAM, KILL, env=env)
    assert ended.status == -SIGKILL
    assert boxes(ended.directory.parent) == []


def in_mount_namespace(script: str) -> tuple[str, ...]:
    """Return a prefix that runs a program behind a script in namespaces of its own."""
    prefix = ("unshare", "--mount", "--map-root-user")
    probe = [*prefix, "mount", "-t", "tmpfs", "none", "/mnt"]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        missing("mount namespaces")
    return (*prefix, "sh", "-ec", script, "sh")


@pytest.mark.parametrize("full", [("errors",), ("errors", "/dev/shm"), ()])
def test_a_full_disk_costs_the_box_its_place(
    run: Run, directory: Path, tmp_path: Path, full: tuple[str, ...]
) -> None:
    """Beside the error file, else in /dev/shm, else in the temporary directory."""
    (tmp_path / "tmp").mkdir()
    places = [str(directory), "/dev/shm", str(tmp_path / "tmp")]
    count = len(full) if full else 3
    mounts = "".join(
        f"mount -t tmpfs -o size={'16k' if number < count else '1m'} none {place}\n"
        for number, place in enumerate(places)
    )
    after = (
        f"find {' '.join(places)} -name '*.box' -printf '%p %s\\n' >&2\nexit $status\n"
    )
    script = f'{mounts}"$@" & wait $! && status=0 || status=$?\n{after}'
    ended = run(
        PROGRAM,
        KILL,
        prefix=in_mount_namespace(script),
        env={"TMPDIR": str(tmp_path / "tmp")},
    )
    assert ended.status == 128 + SIGKILL
    found = dict(
        line.rsplit(" ", 1) for line in ended.stderr.splitlines() if ".box " in line
    )
    sizes = {Path(path).parent: int(size) for path, size in found.items()}
    expected = {} if count == 3 else {Path(places[count]): SIZE, directory: 4096}
    assert sizes == expected, ended.stderr


def test_a_box_in_memory_goes_with_its_page_at_a_clean_end(
    run: Run, directory: Path, tmp_path: Path
) -> None:
    script = (
        f"mount -t tmpfs -o size=16k none {directory}\n"
        "mount -t tmpfs none /dev/shm\n"
        f'"$@"\nfind {directory} /dev/shm -type f >&2\n'
    )
    ended = run(PROGRAM, "pass", prefix=in_mount_namespace(script))
    assert (ended.status, ended.stderr) == (0, "")


def test_values_of_every_kind(run: Run) -> None:
    way = (
        """
class Bad:
    def __str__(self): raise TypeError
for value in ("", 1.5, True, None, [1], b"x", Bad(), "\\udcff", "a\\0b", 2**70):
    firstfault.breadcrumb("v", value)
firstfault.breadcrumb("\\udcff", "x")
firstfault.step(-2**63)
firstfault.step(True)
for call, wrong in (
    (firstfault.breadcrumb, 5), (firstfault.step, "1"), (firstfault.step, 2**63)
):
    try: call(wrong)
    except (TypeError, OverflowError): pass
    else: raise SystemExit("accepted")
"""
        + KILL
    )
    ended = run(PROGRAM.replace("exec(way)", "exec(way, globals())"), way)
    assert ended.status == -SIGKILL, ended.stderr
    box = read_box(boxes(ended.directory)[0])
    values = ["", "1.5", "True", None, "[1]", "b'x'", "<cannot be shown>"]
    assert [value for _, value in box.notes[3:10]] == values
    assert box.notes[11] == ("v", "a\0b")
    assert box.notes[12] == ("v", str(2**70))
    assert "\ufffd" in str(box.notes[10][1])
    assert "\ufffd" in box.notes[13][0]
    assert box.step == 1


def test_before_activation_nothing_happens(run: Run) -> None:
    ended = run("import firstfault\nfirstfault.breadcrumb('x')\nfirstfault.step(1)")
    assert (ended.status, ended.stderr, boxes(ended.directory)) == (0, "", [])


def test_names_stay_once_loaded() -> None:
    assert firstfault.breadcrumb is firstfault.breadcrumb
    assert "breadcrumb" in vars(firstfault)
    assert "step" in firstfault.__all__


def test_a_box_that_was_cut_short_costs_the_crash_nothing_else(run: Run) -> None:
    way = (
        "import glob; path = os.path.dirname(os.environ['TORCHELASTIC_ERROR_FILE']);"
        "os.truncate(glob.glob(path + '/*.box')[0], 0); ctypes.string_at(0)"
    )
    ended = run(PROGRAM, way)
    assert (ended.status, ended.files) == (-SIGSEGV, ["error.json"])
    section = ended.record()["firstfault"]
    assert section["signal"]["number"] == SIGSEGV
    stages = {stage["name"]: stage["status"] for stage in section["stages"]}
    assert (stages["black_box"], stages["minimal"]) == ("fault", "ok")
    assert "breadcrumbs" not in section


def kill_while_writing(directory: Path, rounds: int, seed: int) -> None:
    """Kill a forked writer at a random moment, many times; its box must be whole."""
    program = PROGRAMS / "breadcrumbs.py"
    process = subprocess.Popen(
        [sys.executable, program, str(directory), str(rounds), str(seed)],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    seen = 0
    for line in process.stdout:
        path = Path(line.strip())
        box = read_box(path)
        assert box.state == "running"
        assert box.torn <= 1
        assert box.lost == 0
        numbers = [int(name[1:]) for name, _ in box.notes if name != "enter"]
        assert all(value == name for name, value in box.notes if name != "enter")
        if numbers:
            # Nothing is missing but what was being written.
            last = numbers[-1]
            assert numbers == list(range(numbers[0], last + 1))
            assert len(box.notes) + box.torn == min(last + 2 + box.torn, 448)
        seen += len(numbers)
        path.unlink()
    process.communicate()
    assert process.returncode == 0
    assert seen > rounds


def test_killed_while_writing_every_slot_is_whole(directory: Path) -> None:
    kill_while_writing(directory, 300, 1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_while_writing_ten_thousand_times(directory: Path) -> None:
    kill_while_writing(directory, 10_000, random.randrange(2**32))


def report(*paths: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "firstfault", "report", *map(str, paths)]
    done = subprocess.run(
        [*command, "--format", "json"], check=True, capture_output=True, timeout=60
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("way", [KILL, "os._exit(3)"])
def test_the_report_says_that_it_vanished(run: Run, way: str) -> None:
    ended = run(PROGRAM, way, env=RANK)
    cause = report(ended.directory)["root_cause"]
    assert (cause["rank"], cause["category"], cause["step"]) == (2, "vanished", 12)
    assert cause["breadcrumbs"][-1]["name"] == "last words"


def test_the_report_on_a_job_that_runs_finds_no_failure(
    directory: Path, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, program, "sys.stdin.read()"],
        env=clean_environment(TORCHELASTIC_ERROR_FILE=str(directory / "error.json")),
        stdin=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + 30
        while not boxes(directory) or read_box(boxes(directory)[0]).step is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        found = report(directory)
        assert found["root_cause"] is None
        assert found["incomplete"][-1] == "ranks 0 are still running"
        process.kill()
        # Not waited for: a dead process that its parent has not reaped is dead.
        while found["root_cause"] is None:
            assert time.monotonic() < deadline
            found = report(directory)
        assert found["root_cause"]["category"] == "vanished"
    finally:
        process.kill()
        process.communicate()


def test_a_rank_killed_under_torchrun_is_named_without_the_launchers_log(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "job"
    command = [sys.executable, "-m", "firstfault", "demo", "kill"]
    subprocess.run(
        [*command, "--directory", str(directory)],
        env=clean_environment(),
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=110,
    )
    (directory / "agent.err").unlink()
    found = report(directory)
    cause = found["root_cause"]
    assert (cause["rank"], cause["category"], cause["step"]) == (2, "vanished", 3)
    assert found["ranks"]["primary"] == "2"
    # The launcher ended the others by SIGTERM, and their snapshots say all that their
    # boxes could.
    (box,) = boxes(directory)
    assert read_box(box).rank == 2
