"""Loads do what they claim by their own clock, whatever the machine does meanwhile."""

import pytest
import torch

from mfulab.models import loads
from mfulab.models.loads import LOADS, Load, Loader, filled

CPU = torch.device("cpu")


class Clock:
    """Time that only work and sleep move."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(loads.time, "sleep", self.sleep)

    def sleep(self, seconds):
        self.now += seconds

    def __call__(self):
        return self.now


@pytest.mark.parametrize(
    ("duty", "call_s"), [(0.25, 0.01), (0.5, 0.01), (0.75, 0.005), (1.0, 0.03), (0.0, 0.01)]
)
def test_a_duty_cycle_is_kept_and_overruns_are_in_the_truth(monkeypatch, duty, call_s):
    clock = Clock(monkeypatch)
    loader = Loader(Load("nothing", duty=duty, period_s=0.1), CPU)
    loader._work, loader._flops = (lambda: clock.sleep(call_s)), 100
    ran = loader.run(2.0, clock)
    # The last call of each period may begin just before its end.
    assert duty - 1e-6 <= ran.duty <= duty + (call_s / 0.1 if duty else 0)
    assert ran.worked_s == pytest.approx(ran.calls * call_s)
    assert ran.flops == 100 * ran.calls
    assert 2.0 <= ran.wall_s <= 2.0 + call_s + 1e-6


def test_a_call_longer_than_a_period_leaves_periods_out(monkeypatch):
    clock = Clock(monkeypatch)
    loader = Loader(Load("nothing", duty=0.25, period_s=0.1), CPU)
    loader._work = lambda: clock.sleep(0.33)
    ran = loader.run(2.0, clock)
    assert ran.duty == pytest.approx(0.33 / 0.4, abs=0.03)


def test_half_of_a_padded_product_is_zeros(monkeypatch):
    monkeypatch.setitem(loads.SIDE, "cpu", 8)
    loader = Loader(LOADS["padded"], CPU)
    ran = loader.run(0.001)
    assert ran.flops == ran.calls * 2 * 8**3 > 0
    assert ran.useful_flops == ran.flops // 2


@pytest.mark.parametrize(
    ("load", "cpu", "gpu"), [("idle", 0, 0), ("steady", 1, 1), ("spin_one", 1 / 4, 1 / 4)]
)
def test_what_a_load_fills(load, cpu, gpu):
    assert filled(LOADS[load], CPU, 4) == cpu
    assert filled(LOADS[load], torch.device("cuda"), 4) == gpu


def test_copies_take_a_core_of_a_cpu_and_no_sm():
    assert filled(LOADS["copies"], CPU, 4) == 1 / 4
    assert filled(LOADS["copies"], torch.device("cuda"), 4) == 0
