"""MFU of a Hugging Face `Trainer`, in whatever it logs to."""

import functools
from typing import Any

import transformers

from mfulab.loop.interactive.training import TrainingWindow


class TrainerCallback(TrainingWindow, transformers.TrainerCallback):
    """Logs `mfu`, `hfu`, `utilization` and more every few steps through `trainer.log`; prints the
    ladder at the end.

        trainer.add_callback(mfulab.TrainerCallback(trainer, every=50, warm_up=3))

    A step is an optimiser's step, its micro-batches included. Evaluation and saving are left out of
    the times. It takes the arguments of `TrainingWindow` after the trainer, which logs: a callback
    alone reaches no logger.
    """

    def __init__(self, trainer: transformers.Trainer, **options: Any) -> None:
        super().__init__(**options)
        self._trainer = trainer
        train = trainer.train

        @functools.wraps(train)
        def trained(*args: object, **kwargs: object) -> object:
            self._mark("setup")
            try:
                return train(*args, **kwargs)
            except BaseException as error:
                self._close(error)
                raise

        trainer.train = trained  # type: ignore[method-assign]  # no event tells a callback of an error

    def on_train_begin(
        self,
        args: object,
        state: transformers.TrainerState,
        control: object,
        **_: object,
    ) -> None:
        self._begin(state.global_step)

    def on_step_begin(self, *_: object, **__: object) -> None:
        self._mark("loader")

    def on_step_end(
        self,
        args: object,
        state: transformers.TrainerState,
        control: transformers.TrainerControl,
        **_: object,
    ) -> None:
        self._step(lambda: self._trainer.model_wrapped, self._trainer.log, state.global_step)
        # Loggers' own callbacks close them as training ends, before this one is called.
        if state.global_step >= state.max_steps or control.should_training_stop:
            self._close(log=self._trainer.log)

    def on_evaluate(self, *_: object, **__: object) -> None:
        self._skip("evaluation")

    def on_save(self, *_: object, **__: object) -> None:
        self._skip("checkpoint")

    def on_train_end(self, *_: object, **__: object) -> None:
        self._close(log=self._trainer.log)
