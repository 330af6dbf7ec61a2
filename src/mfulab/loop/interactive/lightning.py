"""MFU of a Lightning `Trainer`, in whatever it logs to."""

import functools
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mfulab.loop.interactive.training import TrainingWindow

if TYPE_CHECKING or find_spec("lightning") is None:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback


class LightningCallback(TrainingWindow, Callback):
    """Logs `mfu`, `hfu`, `utilization` and more every few batches to the trainer's loggers, and
    prints the ladder.

        Trainer(callbacks=[mfulab.LightningCallback(every=50, warm_up=3)])

    A step is a batch. Validation is left out of the times. It takes the arguments of
    `TrainingWindow`.
    """

    def setup(self, trainer: Any, pl_module: object, stage: str) -> None:
        self._mark("setup")
        save = trainer.save_checkpoint

        @functools.wraps(save)
        def saved(*args: object, **kwargs: object) -> object:
            self._mark("other")
            result = save(*args, **kwargs)
            self._skip("checkpoint")
            return result

        trainer.save_checkpoint = saved  # no event tells a callback that a checkpoint is written

    def on_train_start(self, trainer: Any, pl_module: object) -> None:
        self._begin(trainer.global_step)

    def on_train_batch_start(
        self, trainer: object, pl_module: object, batch: object, batch_idx: int
    ) -> None:
        self._mark("loader")
        if self.window is not None:
            self.window.note(batch)  # `training_step` is called past the module's hooks

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: object, batch: object, batch_idx: int
    ) -> None:
        self._step(lambda: pl_module, lambda metrics: _log(trainer, metrics), trainer.global_step)

    def on_validation_end(self, trainer: object, pl_module: object) -> None:
        self._skip("evaluation")

    def on_train_end(self, trainer: object, pl_module: object) -> None:
        self._close(log=lambda metrics: _log(trainer, metrics))

    def on_exception(self, trainer: object, pl_module: object, exception: BaseException) -> None:
        self._close(exception)


def _log(trainer: Any, metrics: dict[str, float]) -> None:
    for logger in trainer.loggers:
        logger.log_metrics(metrics, step=trainer.global_step)
