"""MLflow: a run is FAILED, never FINISHED, when anything went wrong on any rank."""

from __future__ import annotations

from contextlib import contextmanager

from firstfault._exception import headline
from firstfault._notices import WARNING, log
from firstfault._text import cut

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

FAILURE_TAG = "firstfault.failure"
"""Tag of a failed run: the message of its error."""

STOPPED_AT_TAG = "firstfault.stopped_at"
"""Tag of a run with deferred errors: the step at which all ranks stopped."""

_TAG_BYTES = 4096


@contextmanager
def run(**options: Any) -> Iterator[Any]:
    """Surround a training run with an MLflow run; give it to `training_run`.

    ::

        from firstfault.deferred import training_run
        from firstfault.integrations import mlflow

        with training_run(tracker=lambda: mlflow.run(run_name="pretrain")) as errs:
            ...

    Whatever leaves the block makes the run FAILED, also one that was ended meanwhile,
    and is named in its tags.

    Args:
        options: What ``mlflow.start_run`` takes.
    """
    import mlflow

    with mlflow.start_run(**options) as active:
        try:
            yield active
        except BaseException as error:
            _fail(active.info.run_id, error)
            raise


def _fail(run_id: str, error: BaseException) -> None:
    from mlflow import MlflowClient

    tags = {FAILURE_TAG: cut(headline(error), _TAG_BYTES)[0]}
    stopped_at = getattr(error, "stopped_at", None)
    if stopped_at is not None:
        tags[STOPPED_AT_TAG] = str(stopped_at)
    try:
        client = MlflowClient()
        for key, value in tags.items():
            client.set_tag(run_id, key, value)
        client.set_terminated(run_id, "FAILED")
    except Exception as failure:
        log(WARNING, "suppressed while leaving: MLflow: %s", headline(failure))
