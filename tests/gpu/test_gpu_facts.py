"""First facts: a machine without a GPU says so, and a probe that fails hides no other."""

import importlib
import json
import re
from types import SimpleNamespace

import pytest
import torch
from support.nvml_stand_in import Gpu, StandIn

from mfulab.core.said import Said
from mfulab.device.identity import gpus
from mfulab.device.samplers.reading import Reading
from mfulab.device.vendors import gpm as gpm_sampler
from mfulab.device.vendors import nvml, torch_build
from mfulab.timing.best_matmul import matmul_of
from mfulab.timing.clocks import HostClock
from mfulab.timing.pace import Pace


@pytest.fixture
def facts(benchmark_scripts):
    return importlib.import_module("gpu_facts")


@pytest.mark.skipif(bool(gpus()), reason="this machine has a GPU: see the test below")
def test_without_a_gpu_it_tells_what_can_be_told(facts, tmp_path, capsys):
    out = tmp_path / "facts.json"
    facts.main(["--quick", "--out", str(out)])
    assert "No GPU to tell facts about: device=cuda:" in capsys.readouterr().out
    found = json.loads(out.read_text())
    assert set(found) == {"software", "cpu"}
    installed = found["software"]["packages"]["torch"]
    assert installed.split("+")[0] == torch.__version__.split("+")[0]
    assert found["cpu"]["fp32_1024_tflop_s"] > 0
    assert found["cpu"]["utilization_percent"]["unit"] == "%"


def test_a_probe_that_fails_hides_no_other(facts, capsys):
    def refused(device):
        raise RuntimeError("the driver said no")

    found = facts.collect(
        {"first": refused, "second": lambda device: {"answer": 2.5}}, torch.device("cpu")
    )
    assert found["first"]["error"] == "RuntimeError: the driver said no"
    assert found["second"]["answer"] == 2.5
    assert all("took_s" in each for each in found.values())


def test_a_probe_that_is_cut_off_leaves_what_was_found_before(facts, tmp_path):
    def hangs(device):
        raise KeyboardInterrupt

    out = tmp_path / "facts.json"
    with pytest.raises(KeyboardInterrupt):
        facts.collect(
            {"first": lambda device: {"answer": 2.5}, "second": hangs}, torch.device("cpu"), out
        )
    assert json.loads(out.read_text())["first"]["answer"] == 2.5


def test_a_reading_is_its_value_or_its_reason(facts):
    told = facts.as_facts(
        {
            "power_w": Reading(650.0, "W", "counter", 5.25),
            "x": Reading(None, "%", "GPM", reason=Said("no_gpm")),
        }
    )
    assert told == {
        "power_w": {"value": 650.0, "unit": "W", "source": "counter over 5.25 s"},
        "x": {"value": None, "reason": str(Said("no_gpm"))},
    }
    assert "650 W  (counter over 5.25 s)" in facts.describe(told)
    assert "-  (this GPU has no GPM" in facts.describe(told)


def test_a_rate_is_of_the_product_that_was_timed(facts, monkeypatch):
    monkeypatch.setattr(facts, "SIZE", 64)
    found = facts.rate("fp32", Pace(windows=2, window_s=0.02, warm_up_s=0.02, tolerance=0.5))(
        torch.device("cpu")
    )
    assert found["tflop_s"] > 0
    assert found["share_of_peak_at_its_clock_percent"] is None, "a CPU tells no clock"


@pytest.fixture
def stand_in(facts, monkeypatch):
    """A GPU that NVML's stand-in knows; its products are a CPU's, and what needs CUDA fails."""

    def fails(device):
        raise RuntimeError("no CUDA here")

    def not_installed():
        raise facts.executed_operations.NotMeasurableError("ncu is not installed")

    made, cpu = Gpu(), torch.device("cpu")
    known = SimpleNamespace(
        name=made.name, multi_processor_count=132, uuid=made.uuid.removeprefix("GPU-")
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: known)
    monkeypatch.setattr(
        torch_build, "installed", lambda: torch_build.Build("2.13.0+cu130", "13.0", "")
    )
    monkeypatch.setattr(facts, "prepare", lambda config: (SimpleNamespace(type="cuda"), None))
    monkeypatch.setattr(facts, "clock_for", lambda device: HostClock())
    monkeypatch.setattr(
        facts, "matmul_of", lambda precision, *sides: matmul_of("fp32", 64, 64, 64, cpu)
    )
    monkeypatch.setattr(facts, "PRECISIONS", ("bf16",))
    monkeypatch.setattr(facts, "copies", fails)
    monkeypatch.setattr(facts, "profiler", fails)
    monkeypatch.setattr(facts.executed_operations, "find_ncu", not_installed)
    monkeypatch.setattr(facts.executed_operations, "counted_flops", lambda case: 1)
    # How long the windows of a CPU last is its own matter, and no sample here needs time.
    monkeypatch.setattr(gpm_sampler, "MINIMUM_S", 0)
    StandIn(made).install(monkeypatch)
    yield made
    nvml.why_absent.cache_clear()


def test_what_a_driver_tells_stands_in_the_file_and_what_fails_says_so(facts, stand_in, tmp_path):
    out = tmp_path / "facts.json"
    facts.main(["--quick", "--out", str(out)])
    found = json.loads(out.read_text())
    assert found["device"]["slug"] == "nvidia-h100-80gb-hbm3"
    assert found["device"]["computed_tflop_s"]["bf16"] == pytest.approx(989.4, abs=0.1)
    product = found["bf16 8192³"]
    assert product["tflop_s"] > 0
    assert product["tensor_active_percent"]["value"] == 60
    assert product["power_w"]["value"] is None
    assert re.search("shorter than 5 s|stood still", product["power_w"]["reason"]), (
        "short, or on a busy machine long"
    )
    assert product["clock_mhz"]["value"] == 1755
    assert found["copies"]["error"] == found["profiler"]["error"] == "RuntimeError: no CUDA here"
    assert found["nsight compute"]["reason"] == "ncu is not installed"


@pytest.mark.gpu
def test_every_probe_of_a_gpu_answers(facts, tmp_path):
    facts.main(["--quick", "--out", str(tmp_path / "facts.json")])
    found = json.loads((tmp_path / "facts.json").read_text())
    assert {name: each["error"] for name, each in found.items() if "error" in each} == {}
    assert found["bf16 8192³"]["tflop_s"] > found["fp32 8192³"]["tflop_s"]
    seen = found["copies"]["host_to_device_pinned_gb_s"]
    assert seen >= 0.9 * found["copies"]["host_to_device_gb_s"]
