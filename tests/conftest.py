"""What all tests share: programs that run, end and leave files, and their schema."""

import contextlib
import functools
import importlib.resources
import importlib.util
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

PROGRAMS = Path(__file__).parent / "programs"
SPARE_PLACE = Path("/dev/shm")

# For each connection torch asks the name server who the peer is, mostly this machine,
# and waits five seconds for an answer that is lost: no test's processes ask.
os.environ.setdefault("RES_OPTIONS", "attempts:0")

# Variables that would make a test depend on who runs it.
FOREIGN = ("FIRSTFAULT_", "TORCHELASTIC_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_")


def needs(*libraries: str) -> pytest.MarkDecorator:
    """Skip a test where a library is not installed, which `make test-all` does.

    There it is not skipped, and fails for want of it: a broken installation would else
    look like a success.
    """
    lacking = [name for name in libraries if importlib.util.find_spec(name) is None]
    may_lack = os.environ.get("INTEGRATIONS") != "required"
    reason = f"{', '.join(lacking)} not installed: `make test-all` does that"
    return pytest.mark.skipif(may_lack and bool(lacking), reason=reason)


def clean_environment(**more: str | None) -> dict[str, str]:
    """Return this process's environment without a job's variables, and with these."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)
    }
    environment |= {key: value for key, value in more.items() if value is not None}
    return environment


@dataclass(frozen=True)
class Ended:
    """How a program ended and what it left in its directory."""

    status: int
    stdout: str
    stderr: str
    directory: Path

    @property
    def files(self) -> list[str]:
        """The names of the files left, without black boxes."""
        return sorted(
            path.name for path in self.directory.iterdir() if path.suffix != ".box"
        )

    def record(self, name: str = "error.json") -> dict[str, Any]:
        """Return a record that was left, checked against the schema."""
        return read_record(self.directory / name)


Run = Callable[..., Ended]


@pytest.fixture(autouse=True)
def nothing_stays_pending() -> Iterator[None]:
    """Fail a test that leaves a deferred error in this process, which nobody raises."""
    yield
    captures = sys.modules.get("firstfault.deferred._captures")
    assert captures is None or not captures._unraised


@pytest.fixture
def errs() -> Iterator[Any]:
    """A rank's `Deferred`; what it has deferred is dropped when the test is over."""
    from firstfault.deferred import Deferred, DeferredErrors

    errs = Deferred()
    yield errs
    with contextlib.suppress(DeferredErrors):
        errs.finish()


@pytest.fixture(scope="session", autouse=True)
def _nothing_ignored() -> None:
    """Let programs die of requests to end also where the tests themselves ignore them.

    Under nohup, or in a shell's background, these are ignored, and a program inherits
    that; what is handled, be it by nothing, is back at its default in a program.
    """
    for number in signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.fixture(autouse=True)
def _no_litter() -> Iterator[None]:
    """Warn of what a test leaves in memory, where records go that found no place."""
    before = spared()
    yield
    # A warning only: it may be of another run on this machine.
    if litter := spared() - before:
        warnings.warn(f"left in {SPARE_PLACE}: {sorted(litter)}", stacklevel=1)


def spared() -> set[str]:
    """Return the names of the files that are in the spare place now."""
    return {path.name for path in SPARE_PLACE.glob("firstfault.*")}


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in list(os.environ):
        if key.startswith(FOREIGN):
            monkeypatch.delenv(key)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """An empty directory for error files."""
    path = tmp_path / "errors"
    path.mkdir()
    return path


@pytest.fixture
def error_file(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The error file of this process, as torchelastic would name it."""
    path = directory / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    return path


@pytest.fixture
def run(tmp_path: Path, directory: Path) -> Iterator[Run]:
    """Run a program: its source, or the path of one, and what surrounds it.

    What it leaves in the spare place is removed behind the test.
    """
    ran = []

    def run(
        program: str | Path,
        *arguments: str,
        env: Mapping[str, str | None] | None = None,
        flags: tuple[str, ...] = (),
        prefix: tuple[str, ...] = (),
        timeout: float = 60,
    ) -> Ended:
        if isinstance(program, str):
            path = tmp_path / "program.py"
            path.write_text(program)
        else:
            path = program
        default = {
            "TORCHELASTIC_ERROR_FILE": str(directory / "error.json"),
            "PYTHONPATH": str(PROGRAMS),
        }
        with subprocess.Popen(
            [*prefix, sys.executable, *flags, str(path), *arguments],
            env=clean_environment(**{**default, **(env or {})}),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="surrogateescape",
        ) as process:
            ran.append(process.pid)
            try:
                stdout, stderr = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
        return Ended(process.returncode, stdout, stderr, directory)

    yield run
    for pid in ran:
        for path in SPARE_PLACE.glob(f"firstfault.*.{pid}.*"):
            path.unlink()


@functools.cache
def error_file_validator() -> jsonschema.Draft202012Validator:
    """Return the validator of the schema that the package ships."""
    schema = importlib.resources.files("firstfault") / "schema" / "error-file.json"
    return jsonschema.Draft202012Validator(json.loads(schema.read_text()))


def read_record(path: Path) -> dict[str, Any]:
    """Return an error file of ours, checked against the schema."""
    record: dict[str, Any] = json.loads(path.read_bytes())
    error_file_validator().validate(record)
    return record
