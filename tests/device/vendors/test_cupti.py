"""A GPU before Hopper without an exporter: CUPTI's samples of metrics that fit one pass."""

import itertools
import math
import sys

import pytest
import torch
from support.cupti_stand_in import Machine, TriggerMode

from mfulab.core.said import Said
from mfulab.device.vendors import cupti

UUID = "GPU-00000000-0000-0000-0000-000000000001"


def fixed(name, place):
    return {"sm__cycles_active": 80.0, "sm__pipe_tensor_cycles_active": 12.0}.get(name, 5.0)


def sampler(clock=None):
    return cupti.PmSampler(UUID, "this GPU has no GPM", now=clock or itertools.count().__next__)


def window(each):
    each.start()
    return each.stop()


@pytest.mark.parametrize(
    ("chip", "trigger", "missing"),
    [
        ("TU104", TriggerMode.GPU_SYSCLK_INTERVAL, set()),
        ("GA100", TriggerMode.GPU_SYSCLK_INTERVAL, set()),
        ("AD104", TriggerMode.GPU_TIME_INTERVAL, {"fp64_active_percent", "fp16_active_percent"}),
    ],
)
def test_a_chip_gives_what_fits_one_pass_and_says_what_does_not(
    monkeypatch, chip, trigger, missing
):
    machine = Machine(chip, fixed).install(monkeypatch, UUID)
    found = window(sampler())
    assert machine.configured["trigger"] == trigger
    assert (found["sm_active_percent"].value, found["tensor_active_percent"].value) == (80.0, 12.0)
    assert {name for name in cupti.METRICS if found[name].value is None} == missing
    assert all(found[name].reason.key == "not_in_one_pass" for name in missing)
    dram = "fbpa__dram_sectors" if chip == "TU104" else "dram__cycles_active"
    assert f"{dram}.{cupti.SHARE}" in machine.configured["metrics"]
    assert found["pcie_received_gb_s"].value is None
    assert machine.enabled == 0


def test_values_are_means_over_time_without_samples_that_hold_none(monkeypatch):
    def values(name, place):
        return math.nan if place == 19 else 100.0 if place < 10 else 0.0

    Machine("GA100", values, (3_000_000,) * 10 + (1_000_000,) * 10).install(monkeypatch, UUID)
    found = window(sampler())
    assert found["sm_active_percent"].value == pytest.approx(100 * 30 / 39)


def test_each_window_begins_anew_and_few_samples_say_nothing(monkeypatch):
    machine = Machine("AD104", fixed).install(monkeypatch, UUID)
    each = sampler()
    assert (
        window(each)["sm_active_percent"].value == window(each)["sm_active_percent"].value == 80.0
    )
    machine.spans = machine.spans[:3]
    found = window(each)["sm_active_percent"]
    assert (found.value, found.reason.key) == (None, "few_samples")
    assert machine.enabled == 0


@pytest.mark.parametrize(
    ("refuses", "says"),
    [
        (
            PermissionError("Insufficient privileges for PM sampling"),
            "PermissionError: Insufficient privileges",
        ),
        (
            RuntimeError("CUPTI could not load the nvperf* libraries"),
            "RuntimeError: CUPTI could not load",
        ),
    ],
)
def test_what_cupti_refuses_is_the_reason_of_each_column(monkeypatch, refuses, says):
    Machine("TU104", fixed, refuses=refuses).install(monkeypatch, UUID)
    found = window(sampler())
    assert {one.value for one in found.values()} == {None}
    assert says in str(found["sm_active_percent"].reason)
    assert str(found["sm_active_percent"].reason).startswith(
        "this GPU has no GPM, and CUPTI does not"
    )


def test_an_overflow_a_missing_package_and_a_process_without_cuda_are_reasons_too(monkeypatch):
    Machine("GA100", fixed, (1_000,) * 5_000).install(monkeypatch, UUID)
    assert "overflow" in str(window(sampler(iter((0.0, 1.0)).__next__))["sm_active_percent"].reason)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    unused = window(sampler())["sm_active_percent"].reason
    assert unused.numbers["refusal"] == Said("cuda_unused")
    monkeypatch.setitem(sys.modules, "cupti", None)
    assert "pip install cupti-python" in str(window(sampler())["sm_active_percent"].reason)
