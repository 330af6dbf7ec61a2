"""The probe of a GPU's state: a product, a copy and the clock, at the same speed a moment later."""

import json

import pytest
import torch

from mfulab.device.gpu import clock_reader
from mfulab.timing.probe import DISTURBED, Probe, best_of, packed

pytestmark = pytest.mark.gpu


def test_a_gpu_that_nothing_disturbs_reads_nearly_the_same_each_time():
    device = torch.device("cuda")
    probe = Probe(device, clock_reader(device))
    states = [probe.again() for _ in range(20)]
    best = best_of(states)
    slow = [state for state in states[5:] if state.slowdown(best) >= DISTURBED]
    assert len(slow) <= 3
    assert not any(state.others_s or state.total_s for state in states), (
        "other processes are asked of a CPU alone"
    )
    assert len(json.loads(packed(states, 1))["at_s"]) == len(set(states))
