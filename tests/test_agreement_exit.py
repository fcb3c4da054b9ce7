"""How jobs end that agreed, or had nothing to agree on: every rank with its status.

The rank whose process hosts the store takes it away when it ends. A thread that a wait
on the store holds at that moment, in an interpreter that is being finalized, aborts it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from conftest import clean_environment
from firstfault.deferred import Deferred
from firstfault.deferred._agreement import Agreement
from launchers import run_launcher
from process_groups import process_ids, run_ranks

JOBS = 100


def succeeds(close: bool) -> None:
    """Train three steps; close, or leave that to the end of the interpreter."""
    import torch
    import torch.distributed as dist

    agreement = Agreement.start()
    for _ in range(3):
        dist.all_reduce(torch.ones(1))
        assert not agreement.should_stop()
    agreement.finished()
    if close:
        dist.barrier()
        agreement.close()
        dist.destroy_process_group()


def succeeds_with_deferred() -> None:
    """Train three steps in a `Deferred`, whose end does all that."""
    import torch
    import torch.distributed as dist

    with Deferred() as errs:
        for _ in range(3):
            dist.all_reduce(torch.ones(1))
            assert not errs.should_stop()


# An interpreter with torch takes its time to end: one of each kind is for every day.
@pytest.mark.parametrize(
    ("store", "close"),
    [
        ("rank 0", False),
        ("agent", True),
        pytest.param("rank 0", True, marks=pytest.mark.slow),
        pytest.param("agent", False, marks=pytest.mark.slow),
    ],
)
def test_a_job_succeeds(store: str, close: bool) -> None:
    ranks = run_ranks(succeeds, 3, close, store=store, finalize=True)
    assert [rank.status for rank in ranks] == [0, 0, 0], ranks


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("store", ["rank 0", "agent"])
def test_a_hundred_jobs_in_a_row_succeed(store: str) -> None:
    for job in range(JOBS):
        if job % 2:
            ranks = run_ranks(succeeds_with_deferred, 3, store=store, finalize=True)
        else:
            close = job % 4 == 0
            ranks = run_ranks(succeeds, 3, close, store=store, finalize=True)
        assert [rank.status for rank in ranks] == [0, 0, 0], (job, ranks)


def outlives_the_store() -> None:
    """Close when rank 0, which hosted the store, is gone."""
    import torch.distributed as dist

    agreement = Agreement.start()
    agreement.finished()
    dist.barrier()
    if dist.get_rank() == 0:
        agreement.close()
        return
    while os.path.exists(f"/proc/{process_ids()['0']}/fd/1"):
        time.sleep(0.01)
    agreement.close()
    assert agreement.peers_lost == ()


def test_a_rank_outlives_the_store() -> None:
    ranks = run_ranks(outlives_the_store, 3, finalize=True)
    assert [rank.status for rank in ranks] == [0, 0, 0], ranks


def waits_in_the_store() -> None:
    """Leave with a daemon in a wait of the store, as an unguarded watcher would."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _get_default_store

    store = _get_default_store().clone()
    threading.Thread(target=store.wait, args=(["never"],), daemon=True).start()
    dist.barrier()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_wait_that_nobody_ends_aborts_a_rank() -> None:
    jobs = (run_ranks(waits_in_the_store, 3, finalize=True) for _ in range(20))
    assert any(rank.status == -6 for ranks in jobs for rank in ranks)


RESTARTED = """
import os, sys
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from firstfault.deferred._agreement import Agreement

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
port = int(os.environ["MASTER_PORT"])
agents = dist.TCPStore(os.environ["MASTER_ADDR"], port, is_master=False)
# Gloo itself would find the addresses of the first attempt in the agent's store. The
# agreement has to get along with that store as it is.
gloos = dist.PrefixStore(str(attempt), agents)
dist.init_process_group(
    "gloo", store=gloos, rank=int(os.environ["RANK"]), world_size=2
)
distributed_c10d._get_default_store = lambda: agents
agreement = Agreement.start()
stopped = False
for step in range(1, 6):
    dist.all_reduce(torch.ones(1))
    if attempt == 0 and dist.get_rank() == 1 and step == 2:
        agreement.announce()
    if stopped := agreement.should_stop():
        break
agreement.finished()
print(f"attempt {attempt} stopped {stopped}", flush=True)
dist.barrier()
agreement.close()
dist.destroy_process_group()
sys.exit(stopped)
"""


def test_a_restart_sees_no_old_flag(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(RESTARTED)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--max-restarts=1")
    done = run_launcher(
        [sys.executable, *launcher, "--nproc-per-node=2", str(program)],
        env=clean_environment(PYTHONFAULTHANDLER="1"),
        stdout=subprocess.PIPE,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("attempt 0 stopped True") >= 1
    assert done.stdout.count("attempt 1 stopped False") == 2
