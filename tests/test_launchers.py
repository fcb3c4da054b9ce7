"""The harness that the tests of whole jobs rely on."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import clean_environment
from launchers import descendants, run_launcher, show_and_end

HANGS = """
import os, pathlib, signal, sys
from firstfault import record

def await_data():
    pathlib.Path(sys.argv[1], os.environ["RANK"]).touch()
    signal.pause()

@record
def main():
    await_data()

main()
"""


def test_a_job_that_hangs_is_shown_and_ended(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(HANGS)
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node=2", str(program), str(tmp_path)),
        ],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as launcher:
        while not all((tmp_path / rank).exists() for rank in "01"):
            time.sleep(0.01)
        processes = [launcher.pid, *descendants(launcher.pid)]
        shown = show_and_end(launcher)
    assert "in await_data" in shown.split("--- ")[1], shown
    assert "in await_data" in shown.split("--- ")[2], shown
    assert len(processes) >= 3
    assert not any(os.path.exists(f"/proc/{pid}/fd/1") for pid in processes)


def test_a_deadline_is_kept() -> None:
    program = "import signal; print('started', flush=True); signal.pause()"
    with pytest.raises(AssertionError, match=r"did not end in 0\.1 s"):
        run_launcher([sys.executable, "-c", program], deadline=0.1)
