"""Lightning: a callback by which all ranks stop after the same batch."""

from __future__ import annotations

from lightning.pytorch import Callback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from firstfault.deferred import Deferred


class StopTogether(Callback):  # type: ignore[misc]
    """Stops the trainer on all ranks after the same batch once a rank has failed.

    ::

        with Deferred() as errs:
            trainer = Trainer(strategy="ddp", callbacks=[StopTogether(errs)])
            trainer.fit(model)

    The loop, its closing hooks included, is walked by all ranks; the error is raised
    when the ``with`` block ends. In hooks of the model and of other callbacks, use
    ``errs.defer("where")`` around what this rank does alone. Put this callback last:
    what those before it defer is agreed on after the same batch.

    Attributes:
        stop_step: The trainer's ``global_step`` when it stopped, None before that.
    """

    def __init__(self, errs: Deferred) -> None:
        self.errs = errs
        self.stop_step: int | None = None

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Say which step begins."""
        self.errs.step(trainer.global_step)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop where all ranks do."""
        if self.errs.should_stop():
            trainer.should_stop = True
            # Errors outweigh a minimum of epochs or steps, which would go on.
            trainer.fit_loop.min_epochs = None
            trainer.fit_loop.epoch_loop.min_steps = None
            if self.stop_step is None:
                self.stop_step = trainer.global_step
