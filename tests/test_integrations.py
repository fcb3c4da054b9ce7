"""The tools around a training loop, each the real one, on two ranks."""

import importlib
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import needs
from firstfault.deferred import Deferred, DeferredErrors, training_run
from process_groups import run_ranks

CULPRIT, FAILING = 1, 3

PATIENCE = 240.0
"""Seconds for ranks that load a large library, on a busy machine."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of MLflow without runs: to make the tables takes longer than a run."""
    path = tmp_path_factory.mktemp("mlflow") / "empty.db"
    program = "import mlflow; mlflow.search_experiments()"
    environment = os.environ | {"MLFLOW_TRACKING_URI": f"sqlite:///{path}"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    return path


def rank() -> int:
    """Return this process's rank."""
    return int(os.environ["RANK"])


def train(errs: Deferred, way: str) -> int | None:
    """Train; return the step after which this rank stopped, None at the end."""
    import torch.distributed as dist

    for step in range(20):
        errs.step(step)
        if rank() == (0 if way.endswith("on rank 0") else CULPRIT) and step == FAILING:
            match way.split()[0]:
                case "deferred":
                    errs.capture(OSError(28, "No space left on device"), "metadata")
                case "trunk":
                    raise LookupError("broken")
                case "exit":
                    raise SystemExit(0)
                case "interrupt":
                    raise KeyboardInterrupt
        dist.barrier()
        if errs.should_stop():
            return step
    return None


def tracked(
    library: str, way: str, options: dict[str, Any]
) -> tuple[int | None, int | None]:
    """Train inside a tracker's run; return where this rank stopped, and as is said."""

    def tracker() -> Any:
        module = importlib.import_module(f"firstfault.integrations.{library}")
        return module.run(**options)

    def post_train() -> None:
        if way == "post":
            raise LookupError("no table of results")

    stopped = None
    try:
        with training_run(tracker=tracker, post_train=post_train) as errs:
            stopped = train(errs, way)
    except DeferredErrors as error:
        return stopped, error.stopped_at
    return stopped, None


WAYS = {"good": [0, 0], "deferred": [0, 0], "trunk": [1, 1], "post": [1, 0]}
"""The ways out, and the statuses of the ranks; an agreed stop is returned here."""


MORE_WAYS = {
    "deferred on rank 0": [0, 0],
    "trunk on rank 0": [1, 1],
    "exit": [1, 0],
    "exit on rank 0": [0, 1],
    "interrupt": [1, 1],
    "interrupt on rank 0": [1, 1],
}


@needs("mlflow", "sqlalchemy")
@pytest.mark.parametrize("way", WAYS | MORE_WAYS)
def test_mlflow(way: str, empty_store: Path, tmp_path: Path) -> None:
    database = shutil.copy(empty_store, tmp_path)
    environment = {"MLFLOW_TRACKING_URI": f"sqlite:///{database}"}
    ranks = run_ranks(
        tracked, 2, "mlflow", way, {"run_name": "x"}, env=environment, deadline=PATIENCE
    )
    statuses = [one.status for one in ranks]
    assert statuses == (WAYS | MORE_WAYS)[way], ranks[0].output
    with sqlite3.connect(database) as store:
        statuses = store.execute("select status from runs").fetchall()
        tags = dict(store.execute("select key, value from tags"))
    assert statuses == [("FINISHED" if way == "good" else "FAILED",)]
    assert ("firstfault.failure" in tags) == (way != "good")
    if way.startswith("deferred"):
        stop_step = ranks[0].value[0]
        assert ranks[0].value == ranks[1].value == (stop_step, stop_step)
        assert FAILING <= stop_step < 20
        assert tags["firstfault.stopped_at"] == str(stop_step)
        assert "No space left on device" in tags["firstfault.failure"]


@needs("wandb")
@pytest.mark.parametrize("way", WAYS)
def test_wandb(way: str, tmp_path: Path) -> None:
    environment = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    options = {"project": "x", "dir": str(tmp_path)}
    ranks = run_ranks(
        tracked, 2, "wandb", way, options, env=environment, deadline=PATIENCE
    )
    assert [one.status for one in ranks] == WAYS[way], ranks[0].output
    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    exit_code, summary = read_wandb(path)
    assert exit_code == (0 if way == "good" else 1)
    assert ("firstfault/failure" in summary) == (way != "good")
    if way == "deferred":
        stop_step = ranks[0].value[0]
        assert ranks[0].value == ranks[1].value == (stop_step, stop_step)
        assert summary["firstfault/stopped_at"] == str(stop_step)


def read_wandb(path: Path) -> tuple[int | None, dict[str, str]]:
    """Return the exit code and the summary that a run has left on the disk."""
    from wandb.proto import wandb_internal_pb2

    exit_code, summary = None, {}
    for data in log_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("exit"):
            exit_code = record.exit.exit_code
        for item in record.summary.update:
            summary[item.key or "/".join(item.nested_key)] = item.value_json
    return exit_code, summary


def log_records(log: bytes) -> Iterator[bytes]:
    """Yield the records of a log as LevelDB writes it, after a header of 7 bytes.

    Source: https://github.com/google/leveldb/blob/main/doc/log_format.md
    """
    block, head = 32 * 1024, 7
    offset, parts = head, b""
    while offset + head <= len(log):
        if block - offset % block < head:
            offset += block - offset % block
            continue
        _, length, kind = struct.unpack_from("<IHB", log, offset)
        offset += head
        parts += log[offset : offset + length]
        offset += length
        if kind in {1, 4}:  # Whole, or the last part.
            yield parts
            parts = b""


def fit() -> tuple[int | None, list[str]]:
    """Fit by Lightning; return where it stopped, and which hooks came after."""
    import torch
    import torch.distributed as dist
    from lightning.pytorch import LightningModule, Trainer

    from firstfault.integrations.lightning import StopTogether

    hooks = []

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            if rank() == CULPRIT and index == FAILING:
                with errs.defer("metrics"):
                    raise OSError(28, "No space left on device")
            return self.layer(batch[0]).sum()

        def on_train_epoch_end(self) -> None:
            dist.barrier()  # A collective in the closing code.
            hooks.append("epoch end")

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

        def train_dataloader(self) -> Any:
            data = torch.utils.data.TensorDataset(torch.randn(200, 4))
            return torch.utils.data.DataLoader(data, batch_size=2)

    stop = None
    try:
        with Deferred() as errs:
            stop = StopTogether(errs)
            trainer = Trainer(
                accelerator="cpu",
                devices=2,
                strategy="ddp",
                callbacks=[stop],
                min_epochs=2,
                max_epochs=3,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            trainer.fit(Model())
    except DeferredErrors as error:
        hooks.append(f"raised {sorted(error.failures)}")
    return stop and stop.stop_step, hooks


@needs("lightning")
def test_lightning() -> None:
    first, second = run_ranks(fit, 2, deadline=PATIENCE)
    assert (first.status, second.status) == (0, 0), first.output
    assert first.value == second.value
    stop_step, hooks = first.value
    assert FAILING < stop_step < 50
    assert hooks == ["epoch end", f"raised [{CULPRIT}]"]


def accelerated(
    way: str, library: str, options: dict[str, Any]
) -> tuple[int | None, int | None]:
    """Train by Accelerate; return where this rank stopped, and as is said."""
    from accelerate import Accelerator

    from firstfault.integrations import accelerate

    accelerator = Accelerator(cpu=True, log_with=library)
    accelerator.init_trackers("x", init_kwargs={library: options})
    assert accelerator.num_processes == 2
    stopped = None
    try:
        with accelerate.training_run(accelerator) as errs:
            stopped = train(errs, way)
    except DeferredErrors as error:
        return stopped, error.stopped_at
    return stopped, None


@needs("accelerate", "mlflow", "sqlalchemy")
@pytest.mark.parametrize("way", ["good", "deferred", "trunk"])
def test_accelerate_with_mlflow(way: str, empty_store: Path, tmp_path: Path) -> None:
    database = shutil.copy(empty_store, tmp_path)
    environment = {"MLFLOW_TRACKING_URI": f"sqlite:///{database}"}
    ranks = run_ranks(
        accelerated, 2, way, "mlflow", {}, env=environment, deadline=PATIENCE
    )
    assert [one.status for one in ranks] == WAYS[way], ranks[0].output
    with sqlite3.connect(database) as store:
        statuses = store.execute("select status from runs").fetchall()
    assert statuses == [("FINISHED" if way == "good" else "FAILED",)]
    if way == "deferred":
        stop_step = ranks[0].value[0]
        assert ranks[0].value == ranks[1].value == (stop_step, stop_step)
        assert FAILING <= stop_step < 20


@needs("accelerate", "wandb")
@pytest.mark.parametrize("way", ["good", "deferred", "trunk"])
def test_accelerate_with_wandb(way: str, tmp_path: Path) -> None:
    environment = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    options = {"dir": str(tmp_path)}
    ranks = run_ranks(
        accelerated, 2, way, "wandb", options, env=environment, deadline=PATIENCE
    )
    assert [one.status for one in ranks] == WAYS[way], ranks[0].output
    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    exit_code, _ = read_wandb(path)
    assert exit_code == (0 if way == "good" else 1)
