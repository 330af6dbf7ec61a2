"""First facts: a machine without a GPU says so, and a probe that fails hides no other."""

import importlib
import json

import pytest
import torch

from mfulab.hardware.identity import cuda_devices
from mfulab.samplers.reading import Reading
from mfulab.timing.windows import Pace


@pytest.fixture
def facts(benchmark_scripts):
    return importlib.import_module("gpu_facts")


@pytest.mark.skipif(bool(cuda_devices()), reason="this machine has a GPU: see the test below")
def test_without_a_gpu_it_tells_what_can_be_told(facts, tmp_path, capsys):
    out = tmp_path / "facts.json"
    facts.main(["--quick", "--out", str(out)])
    assert "No GPU to tell facts about: device=cuda:" in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert set(found) == {"software", "cpu"}
    assert found["software"]["packages"]["torch"] == torch.__version__
    assert found["cpu"]["fp32_1024_tflop_s"] > 0
    assert found["cpu"]["utilization_percent"]["unit"] == "%"


def test_a_probe_that_fails_hides_no_other(facts, capsys):
    def refused(device):
        raise RuntimeError("the driver said no")

    found = facts.collect({"first": refused, "second": lambda device: {"answer": 2.5}}, torch.device("cpu"))
    assert found["first"]["error"] == "RuntimeError: the driver said no"
    assert found["second"]["answer"] == 2.5
    assert all("took_s" in each for each in found.values())


def test_a_probe_that_is_cut_off_leaves_what_was_found_before(facts, tmp_path):
    def hangs(device):
        raise KeyboardInterrupt

    out = tmp_path / "facts.json"
    with pytest.raises(KeyboardInterrupt):
        facts.collect({"first": lambda device: {"answer": 2.5}, "second": hangs}, torch.device("cpu"), out)
    assert json.loads(out.read_text())["first"]["answer"] == 2.5


def test_a_reading_is_its_value_or_its_reason(facts):
    told = facts.told(
        {"power_w": Reading(650.0, "W", "counter", 5.25), "x": Reading(None, "%", "GPM", reason="no GPM")}
    )
    assert told == {
        "power_w": {"value": 650.0, "unit": "W", "source": "counter over 5.25 s"},
        "x": {"value": None, "reason": "no GPM"},
    }
    assert "650 W  (counter over 5.25 s)" in facts.describe(told)
    assert "-  (no GPM)" in facts.describe(told)


def test_a_rate_is_of_the_product_that_was_timed(facts, monkeypatch):
    monkeypatch.setattr(facts, "SIZE", 64)
    found = facts.rate("fp32", Pace(windows=2, window_s=0.02, warm_up_s=0.02, tolerance=0.5))(torch.device("cpu"))
    assert found["tflop_s"] > 0
    assert found["share_of_peak_at_its_clock_percent"] is None, "a CPU tells no clock"


@pytest.mark.gpu
def test_every_probe_of_a_gpu_answers(facts, tmp_path):
    facts.main(["--quick", "--out", str(tmp_path / "facts.json")])
    found = json.loads((tmp_path / "facts.json").read_text())
    assert {name: each["error"] for name, each in found.items() if "error" in each} == {}
    assert found["bf16 8192³"]["tflop_s"] > found["fp32 8192³"]["tflop_s"]
    assert found["copies"]["host_to_device_pinned_gb_s"] >= 0.9 * found["copies"]["host_to_device_gb_s"]
