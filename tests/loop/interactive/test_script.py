"""The phases of a script's steps, marked at the ends of calls."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from mfulab.loop.interactive import script
from mfulab.loop.interactive.split import Split
from mfulab.timing.clocks import HostClock


class Scripted(HostClock):
    """A clock that a loader alone moves on."""

    now = 0.0

    def mark(self) -> None:
        self._marks.append(self.now)


class Fed(Dataset):
    """Samples of which each `period`th keeps the loop waiting for a second."""

    def __init__(self, clock: Scripted, period: int) -> None:
        self.clock, self.period = clock, period

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        self.clock.now += float(index % self.period == self.period - 1)
        return torch.ones(2)


def fail(error: Exception) -> None:
    raise error


@given(st.sampled_from([1, 2, 4, 8]))
def test_the_loader_of_a_mean_step_is_shown_where_only_some_batches_wait(period):
    clock, model = Scripted(), torch.nn.Linear(2, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mfulab.loop.interactive.split.clock_for", lambda device: clock)
        split = Split([model], torch.device("cpu"), fail)
        try:
            for batch in DataLoader(Fed(clock, period)):
                model(batch).sum().backward()
                split.step()
                if len(split.steps) > script.SPLIT_STEPS:
                    break
        finally:
            split.close()
    row = split.row()
    assert row["loader_ms"] == pytest.approx(1e3 / period)
    assert (row["forward_ms"], row["backward_ms"], row["optimiser_ms"]) == (0.0, 0.0, None)
