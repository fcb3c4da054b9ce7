"""HF Accelerate: a training run whose trackers end as failed when anything failed."""

from __future__ import annotations

from contextlib import contextmanager

from firstfault._exception import headline
from firstfault._notices import WARNING, log
from firstfault.deferred import training_run as surround

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from typing import Any

    from firstfault.deferred import Deferred


def training_run(accelerator: Any, **options: Any) -> AbstractContextManager[Deferred]:
    """Surround a training loop of Accelerate; yields the `Deferred` it is to use.

    ::

        accelerator = Accelerator(log_with="mlflow")
        accelerator.init_trackers("pretrain")
        with training_run(accelerator) as errs:
            ...

    It takes the place of ``accelerator.end_training()``, which ends trackers as
    successful whatever happened.

    Args:
        accelerator: The ``Accelerator``, its trackers started.
        options: What `firstfault.deferred.training_run` takes, but for the tracker.
    """
    return surround(tracker=lambda: _trackers(accelerator), **options)


@contextmanager
def _trackers(accelerator: Any) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for tracker in accelerator.trackers:
            try:
                _fail(tracker)
            except Exception as failure:
                log(WARNING, "suppressed while leaving: %s", headline(failure))
        raise
    for tracker in accelerator.trackers:
        tracker.finish()


def _fail(tracker: Any) -> None:
    """End a tracker as failed, where it can say so; Accelerate's own way cannot."""
    if tracker.name == "mlflow":
        import mlflow

        mlflow.end_run("FAILED")
    elif tracker.name == "wandb":
        tracker.run.finish(exit_code=1)
    else:
        tracker.finish()
