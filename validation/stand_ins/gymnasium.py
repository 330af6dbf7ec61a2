"""Stands in for gymnasium and gym: a task with CartPole's four numbers and two actions, whose
episodes all have the same length."""

import numpy as np

EPISODE = 20


class Spec:
    """Facts of the task."""

    reward_threshold = 1e9


class Task:
    """Answers with noise; an episode has EPISODE steps."""

    spec = Spec()

    def __init__(self) -> None:
        self._drawn = np.random.default_rng(0)
        self._step = 0

    def _state(self) -> np.ndarray:
        return self._drawn.standard_normal(4, dtype=np.float32)

    def reset(self, seed: int | None = None) -> tuple[np.ndarray, dict[str, object]]:
        """Begins an episode."""
        self._step = 0
        return self._state(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        """One step: state, reward, whether the episode is over, whether it was cut, and nothing."""
        self._step += 1
        return self._state(), 1.0, self._step >= EPISODE, False, {}

    def close(self) -> None:
        """Ends the task."""


def make(name: str, **_: object) -> Task:
    """The task, whatever its name is."""
    return Task()
