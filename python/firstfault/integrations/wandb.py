"""Weights & Biases: a run that failed, when anything went wrong on any rank."""

from __future__ import annotations

from contextlib import contextmanager

from firstfault._exception import headline
from firstfault._notices import WARNING, log
from firstfault._text import cut

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

FAILURE = "firstfault/failure"
"""Entry in the summary of a failed run: the message of its error."""

STOPPED_AT = "firstfault/stopped_at"
"""Entry in the summary of a run with deferred errors: where all ranks stopped."""

_TEXT_BYTES = 4096


@contextmanager
def run(**options: Any) -> Iterator[Any]:
    """Surround a training run with a run of Weights & Biases, for `training_run`.

    ::

        from firstfault.deferred import training_run
        from firstfault.integrations import wandb

        with training_run(tracker=lambda: wandb.run(project="pretrain")) as errs:
            ...

    Whatever leaves the block ends the run with exit code 1, which marks it as failed,
    and is named in its summary.

    Args:
        options: What ``wandb.init`` takes.
    """
    import wandb

    active = wandb.init(**options)
    try:
        yield active
    except BaseException as error:
        _fail(active, error)
        raise
    else:
        active.finish()


def _fail(active: Any, error: BaseException) -> None:
    try:
        active.summary[FAILURE] = cut(headline(error), _TEXT_BYTES)[0]
        stopped_at = getattr(error, "stopped_at", None)
        if stopped_at is not None:
            active.summary[STOPPED_AT] = stopped_at
        active.finish(exit_code=1)
    except Exception as failure:
        log(WARNING, "suppressed while leaving: W&B: %s", headline(failure))
