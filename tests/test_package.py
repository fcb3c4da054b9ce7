"""What is installed: typed, and whole as a wheel without torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import clean_environment, read_record

ROOT = Path(__file__).parent.parent

CRASHING = """
import ctypes
from firstfault import record

@record
def main():
    ctypes.string_at(0)

main()
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_wheel_works_without_torch(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "maturin", "build", "--release", "--locked"]
    subprocess.run([*build, "--out", str(tmp_path)], cwd=ROOT, check=True, timeout=900)
    (wheel,) = tmp_path.glob("firstfault-*-cp311-abi3-*.whl")
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    python = str(environment / "bin" / "python")
    install = [python, "-m", "pip", "install", "--no-index", "--no-deps", str(wheel)]
    subprocess.run(install, check=True)
    listed = subprocess.check_output([python, "-m", "pip", "list", "--format=json"])
    assert {entry["name"] for entry in json.loads(listed)} <= {
        "firstfault",
        "pip",
        "setuptools",
    }

    program = tmp_path / "train.py"
    program.write_text(CRASHING)
    job = tmp_path / "job" / "run" / "attempt_0" / "0"
    job.mkdir(parents=True)
    died = subprocess.run(
        [python, str(program)],
        env=clean_environment(
            TORCHELASTIC_ERROR_FILE=str(job / "error.json"), RANK="0"
        ),
        cwd=tmp_path,
        check=False,
    )
    assert died.returncode == -11
    frames = read_record(job / "error.json")["firstfault"]["threads"][0]["python"]
    assert [frame["function"] for frame in frames[:2]] == ["string_at", "main"]

    report = subprocess.check_output(
        [str(environment / "bin" / "firstfault"), "report", str(tmp_path / "job")],
        cwd=tmp_path,
        text=True,
    )
    assert report.startswith("ROOT CAUSE  rank 0 ")
    assert "in string_at (ctypes/__init__.py:" in report
