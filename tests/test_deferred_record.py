"""The records of deferred errors: provisional at once, then what ends the process."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import PROGRAMS, Ended, Run, clean_environment, read_record
from launchers import run_launcher

PROGRAM = """
import ctypes, os, signal, sys, threading
from firstfault import record
from firstfault.deferred import *

@record
def main():
    errs = Deferred()
    errs.step(17)
    with errs.defer("metadata"):
        with open("/dev/full", "w", buffering=1) as file:
            file.write("metadata\\n")
    errs.call(int, "x")
    errs.call(int, "y")
    {act}

main()
"""
FULL = "OSError: [Errno 28] No space left on device"
LATER = {
    "message": FULL,
    "kind": "deferred",
    "deferred": {"where": "metadata", "step": 17, "suppressed": 2, "stopped_at": 18},
}


def ended(run: Run, act: str) -> Ended:
    """Run a program that defers three errors, and then does this."""
    return run(PROGRAM.format(act=act.replace("\n", "\n    ")))


def test_the_record_is_there_at_once_with_time_place_and_step(run: Run) -> None:
    ended_ = ended(run, "os.kill(os.getpid(), signal.SIGKILL)")
    assert ended_.status == -signal.SIGKILL
    record = ended_.record()
    section = record["firstfault"]
    assert (section["kind"], section["final"]) == ("deferred", False)
    assert section["deferred"] == {"where": "metadata", "step": 17, "suppressed": 0}
    assert record["message"]["message"] == FULL
    assert section["exception"]["type"] == "OSError"
    assert "in main" in record["message"]["extraInfo"]["py_callstack"]


def test_what_is_raised_in_the_end_is_the_rank_s_own_failure(run: Run) -> None:
    ended_ = ended(
        run,
        "errs.step(18)\nassert errs.should_stop()\nimport time\n"
        "time.sleep(0.05)\nprint(time.time_ns())\nerrs.finish()",
    )
    assert ended_.status == 1
    record = ended_.record()
    section = record["firstfault"]
    assert (section["kind"], section["final"]) == ("deferred", True)
    assert section["deferred"] == LATER["deferred"]
    assert section["exception"]["type"] == "OSError"
    assert section["time_ns"] < int(ended_.stdout) - 50_000_000
    assert "preceded_by" not in section
    message = record["message"]["message"]
    at = 'deferred at step 17 in "metadata"'
    assert message == f"DeferredErrors: rank 0 failed: {FULL}, {at} (1 sub-exception)"
    seconds = int(record["message"]["extraInfo"]["timestamp"])
    assert seconds == section["time_ns"] // 10**9
    assert FULL in ended_.stderr


@pytest.mark.parametrize(
    ("act", "kind", "status"),
    [
        ("ctypes.string_at(0)", "signal", -signal.SIGSEGV),
        ("raise KeyError('trunk')", "exception", 1),
        ("sys.exit(3)", "exit", 3),
    ],
)
def test_a_later_failure_takes_its_place_and_carries_it(
    run: Run, act: str, kind: str, status: int
) -> None:
    ended_ = ended(run, f"errs.step(18)\nassert errs.should_stop()\n{act}")
    assert ended_.status == status
    section = ended_.record()["firstfault"]
    assert (section["kind"], section["final"]) == (kind, True)
    assert "deferred" not in section
    (before,) = section["preceded_by"]
    assert before.pop("time_ns") < section["time_ns"]
    assert before == LATER


def test_an_error_raised_by_the_function_style_is_a_deferred_one(run: Run) -> None:
    ended_ = run(
        "import firstfault\nfrom firstfault.deferred import *\n"
        "def upload(): raise ValueError({'not': 'plain'})\n"
        "@firstfault.record\ndef main():\n"
        "    firstfault.step(3)\n"
        "    try_or_defer(upload)\n"
        "    import time; time.sleep(0.05); print(time.time_ns())\n"
        "    raise_if_deferred_error()\n"
        "main()\n"
    )
    assert ended_.status == 1
    section = ended_.record()["firstfault"]
    assert (section["kind"], section["final"]) == ("deferred", True)
    assert section["deferred"] == {"where": "upload", "suppressed": 0}
    assert section["time_ns"] < int(ended_.stdout) - 50_000_000


def test_a_rank_that_only_stopped_says_so(run: Run) -> None:
    ended_ = run(
        "from firstfault import record\nfrom firstfault.deferred import *\n"
        "@record\ndef main():\n"
        "    peer = RemoteDeferredError(3, 'OSError', 'full', 'tb', where='hook')\n"
        "    raise DeferredErrors('rank 3 failed: OSError: full', {3: peer}, 18)\n"
        "main()\n"
    )
    assert ended_.status == 1
    record = ended_.record()
    section = record["firstfault"]
    assert (section["kind"], section["final"]) == ("deferred", True)
    assert section["deferred"] == {"stopped_at": 18}
    # As a victim's: torch goes by whole seconds, and the culprit's must come first.
    seconds = int(record["message"]["extraInfo"]["timestamp"])
    assert seconds == section["time_ns"] // 10**9 + 1


@pytest.mark.parametrize(
    "message",
    ["'\\udcff' + '\\ud83d'", "'x' * 10_000_000", "b'\\xff\\x00'.decode('latin-1')"],
    ids=["surrogates", "huge", "control"],
)
def test_whatever_it_says_the_record_is_whole(run: Run, message: str) -> None:
    ended_ = run(
        "from firstfault.deferred import *\nfrom firstfault import record\n"
        "class Own(Exception):\n"
        "    def __reduce__(self): raise TypeError\n"
        "@record\ndef main():\n"
        f"    with Deferred() as errs, errs.defer('upload'): raise Own({message})\n"
        "main()\n"
    )
    assert ended_.status == 1
    record = ended_.record()
    assert record["firstfault"]["exception"]["type"] == "Own"
    assert len(json.dumps(record)) < 300_000


def test_switched_off_it_defers_and_writes_nothing(run: Run) -> None:
    ended_ = run(PROGRAM.format(act="errs.finish()"), env={"FIRSTFAULT_DISABLE": "1"})
    assert (ended_.status, ended_.files) == (1, [])
    assert "DeferredErrors: rank 0 failed" in ended_.stderr


def test_a_job_stops_at_one_step_and_its_report_names_the_rank(tmp_path: Path) -> None:

    arguments = [
        "--standalone",
        "--nproc-per-node",
        "4",
        "--redirects",
        "3",
        "--log-dir",
    ]
    launcher = [sys.executable, "-m", "torch.distributed.run", *arguments]
    job = run_launcher(
        [*launcher, str(tmp_path / "logs"), str(PROGRAMS / "deferring.py"), "full"],
        env=clean_environment(OMP_NUM_THREADS="1"),
        stderr=subprocess.PIPE,
    )
    assert job.returncode == 1
    (tmp_path / "logs" / "agent.err").write_text(job.stderr)
    (attempt,) = tmp_path.glob("logs/*/attempt_0")
    stopped = {(attempt / f"{rank}/stdout.log").read_text() for rank in range(4)}
    # Peers may be in the next step already.
    assert stopped in ({"stopped at step 17\n"}, {"stopped at step 18\n"})
    for rank in range(4):
        section = read_record(attempt / f"{rank}/error.json")["firstfault"]
        assert (section["kind"], section["final"]) == ("deferred", True)
    command = [sys.executable, "-m", "firstfault", "report", str(tmp_path / "logs")]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert text.startswith("ROOT CAUSE  rank 0 (local rank 0")
    assert ": disk_full, confidence high\n" in text
    assert f'{FULL}, deferred at step 17 in "metadata"\n' in text
    assert "RANKS  primary 0 · collateral 1-3 (stopped_by_agreement 3)" in text
    # torchrun chooses by time, and says the same.
    assert "rank      : 0 (local_rank: 0)" in job.stderr.split("Root Cause")[1]
