"""Where a record cannot be written, or hardly: a warning, and the user's exception."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from conftest import Run

MAIN = """
from firstfault import record
@record
def main(): raise ValueError("the user's own")
main()
"""
# Makes the program an unprivileged user's, whom permissions bind; what it may not read
# any more is loaded before.
NOBODY = """
import os, traceback, warnings
from firstfault import record
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
"""

OWN = "\nValueError: the user's own\n"


@pytest.mark.parametrize("flags", [(), ("-W", "error"), ("-W", "ignore")])
class TestTheDirectory:
    def check(self, stderr: str, flags: tuple[str, ...], *reasons: str) -> None:
        assert stderr.endswith(OWN)
        said = stderr.partition("Traceback (most recent call last):")[0]
        if flags == ("-W", "ignore"):
            assert said == ""
            return
        assert "Unable to write error to file. " in said
        for reason in reasons:
            assert reason in said
        kind = "firstfault: " if flags else "UserWarning: "
        assert kind in said
        assert stderr.count("Traceback (most recent call last):") == 1

    def test_is_missing(self, flags: tuple[str, ...], run: Run, tmp_path: Path) -> None:
        target = tmp_path / "missing" / "error.json"
        env = {"TORCHELASTIC_ERROR_FILE": str(target)}
        ended = run(MAIN, env=env, flags=flags)
        assert ended.status == 1
        reason = "No such file or directory"
        self.check(
            ended.stderr, flags, "FileNotFoundError: ", reason, str(target.parent)
        )

    def test_is_read_only(self, flags: tuple[str, ...], run: Run) -> None:
        with tempfile.TemporaryDirectory() as name:  # where anyone may look
            closed = Path(name)
            closed.chmod(0o555)
            env = {"TORCHELASTIC_ERROR_FILE": str(closed / "error.json")}
            ended = run(NOBODY + MAIN, env=env, flags=flags)
            assert ended.status == 1
            reason = "Permission denied"
            self.check(ended.stderr, flags, "PermissionError: ", reason, name)
            assert list(closed.iterdir()) == []
            closed.chmod(0o755)

    def test_is_full(self, flags: tuple[str, ...], run: Run, directory: Path) -> None:
        limit = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
"""
        ended = run(limit + MAIN, flags=flags)
        assert ended.status == 1
        self.check(ended.stderr, flags, "File too large", str(directory / "error.json"))
        assert ended.files == []  # nothing half-written

    def test_is_a_file(self, flags: tuple[str, ...], run: Run, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        target = tmp_path / "file" / "error.json"
        env = {"TORCHELASTIC_ERROR_FILE": str(target)}
        ended = run(MAIN, env=env, flags=flags)
        self.check(ended.stderr, flags, "Not a directory")


def fill(path: Path) -> None:
    with open(path, "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 512)


def test_a_full_disk_leaves_nothing_half_written(run: Run, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k,nr_inodes=20", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        assert os.getuid() != 0, mounted.stderr
        pytest.skip("only root mounts")
    try:
        with pytest.raises(OSError, match="No space left"):
            fill(disk / "filler")
        env = {"TORCHELASTIC_ERROR_FILE": str(disk / "error.json")}
        ended = run(MAIN, env=env)
        assert ended.status == 1
        assert "No space left on device" in ended.stderr
        assert str(disk / "error.json") in ended.stderr
        assert ended.stderr.endswith(OWN)
        assert [path.name for path in disk.iterdir() if path.suffix != ".box"] == [
            "filler"
        ]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_no_memory_is_enough_for_a_record(run: Run) -> None:
    ended = run("""
import resource
from firstfault import record
@record
def main():
    kept = []
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 64 * 2**20,) * 2)
    size = 2**20
    while True:
        try: kept.append(bytearray(size))
        except MemoryError:
            if size == 64: raise
            size //= 2
main()
""")
    assert ended.status == 1
    record = ended.record()
    assert record["message"]["message"] == "MemoryError: "
    assert ", in main\n" in record["message"]["extraInfo"]["py_callstack"]


@pytest.mark.parametrize("lowered", ["before", "after"])
def test_no_descriptor_is_left_for_a_record(run: Run, lowered: str) -> None:
    ended = run(
        """
import resource, sys
def lower(when):
    if sys.argv[1] == when: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
lower("before")
from firstfault import record
@record
def main():
    lower("after")
    kept = []
    while True: kept.append(open("/dev/null"))
main()
""",
        lowered,
    )
    assert ended.status == 1
    assert ended.stderr.endswith(
        "OSError: [Errno 24] Too many open files: '/dev/null'\n"
    )
    # The descriptor that is kept for Python stacks makes room, if its number counts.
    if lowered == "before":
        assert ended.record()["message"]["message"].startswith("OSError: [Errno 24]")
    else:
        assert "Unable to write error to file" in ended.stderr


def test_no_module_need_be_loaded_for_a_record(run: Run) -> None:
    ended = run("""
import sys
from firstfault import record
class Refuse:
    def find_spec(self, name, path=None, target=None):
        raise ImportError(f"no more modules: {name}")
@record
def main():
    for name in ("json", "traceback", "logging", "warnings", "linecache"):
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Refuse())
    raise ValueError("é", 1)
main()
""")
    record = ended.record()
    assert record["message"]["message"] == "ValueError: ('é', 1)"
    stack = record["message"]["extraInfo"]["py_callstack"]
    assert stack.startswith("Traceback (most recent call last):\n  File ")
    assert stack.endswith("\nValueError: ('é', 1)\n")
    assert record["firstfault"]["exception"]["type"] == "ValueError"


def test_a_failure_of_our_own_costs_only_detail(run: Run) -> None:
    ended = run("""
import firstfault._error_record as inside
def broken(*_): raise ZeroDivisionError("a bug of ours")
inside.describe = broken
from firstfault import record
@record
def main(): raise ValueError("the user's own")
main()
""")
    record = ended.record()
    assert record["message"]["message"] == "ValueError: the user's own"
    assert record["firstfault"]["exception"] == {
        "type": "ValueError",
        "message": "ValueError: the user's own",
    }
    assert record["firstfault"]["final"] is True
    assert ended.stderr.endswith(OWN)


@pytest.mark.parametrize("flags", [(), ("-W", "error")])
@pytest.mark.parametrize("broken", ["make", "_native"])
def test_no_failure_of_our_own_reaches_the_user(
    broken: str, flags: tuple[str, ...], run: Run
) -> None:
    ended = run(
        f"""
import firstfault._error_handler as inside
from firstfault import record
@record
def main():
    inside.{broken} = None
    raise ValueError("the user's own")
main()
""",
        flags=flags,
    )
    assert "Unable to write error to file. " in ended.stderr
    assert ended.stderr.endswith(OWN)
    assert ended.stderr.count("Traceback") == 1


def test_activation_that_fails_is_a_warning(run: Run) -> None:
    ended = run("""
import firstfault._error_handler as inside
class Native:
    def activate(**_): raise OSError(28, "No space left on device", "/x")
inside._native = Native
from firstfault import record
print(record(lambda: 5)())
""")
    assert ended.stdout == "5\n"
    assert "UserWarning: Unable to prepare for crashes. OSError: [Errno 28]" in (
        ended.stderr
    )


def test_stderr_may_be_closed(run: Run, tmp_path: Path) -> None:
    env = {"TORCHELASTIC_ERROR_FILE": str(tmp_path / "missing" / "error.json")}
    for close in ("import sys; sys.stderr = None", "import os; os.close(2)"):
        ended = run(close + MAIN, env=env, flags=("-W", "error"))
        assert ended.status == 1


def test_no_descriptor_is_left_open(run: Run) -> None:
    ended = run("""
import os
from firstfault import record, ErrorHandler
@record
def main():
    handler = ErrorHandler()
    handler.record_exception(ValueError("once"))
    before = os.listdir("/proc/self/fd")
    for _ in range(5): handler.record_exception(ValueError("more"))
    print(len(before) == len(os.listdir("/proc/self/fd")))
main()
""")
    assert ended.stdout == "True\n"
