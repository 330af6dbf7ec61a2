"""Quickstart's sweep of a GPU: formats, batches, order and pace by what planning knows."""

from functools import cache
from pathlib import Path

import pytest

from mfulab.core.errors import ConfigurationError
from mfulab.core.groups import TimingConfig
from mfulab.lab.planning import costs, load
from mfulab.lab.planning.composition import compose_experiments
from mfulab.lab.planning.runs import Plan, plan
from mfulab.timing.pace import CUDA_PACE, SHORT, is_short, pace_for

CONFIG = Path(__file__).parents[3] / "config"
T4 = (("bf16", "tf32", "fp8"), 15.8e9)
H200 = ((), 150.8e9)


@cache
def planned(emulated, memory_bytes, *overrides) -> Plan:
    [composition] = compose_experiments(["experiment=quickstart_gpu", *overrides], CONFIG)
    return plan(
        composition, "nvidia-here", "cuda", dict.fromkeys(emulated, "no units"), memory_bytes
    )


def of(found: Plan, step: str) -> list[dict]:
    return [run.config for run in found.runs if run.step == step and "replicate=" not in run.name]


@pytest.mark.parametrize(
    ("here", "best", "batches"), [(H200, "bf16", {1, 16, 64}), (T4, "fp16", {1, 4, 32})]
)
def test_formats_and_batches_are_the_device_s(here, best, batches):
    steps = of(planned(*here), "profile_step")
    assert {config["precision"]["name"] for config in steps} == {best, "fp32"}
    assert {config["batch_size"] for config in steps} == {*batches, 2048}
    assert {config["workload"]["name"] for config in steps} == {"inference", "training"}
    assert [
        config["model"]["name"] for config in steps if config["execution"]["name"] == "compile"
    ] == ["tiny_kernels"]
    assert len(steps) >= 12
    matmuls = of(planned(*here), "bench_matmul")
    expected = {"numba_cuda_seminar", "cublas", "triton_plain", "cuda_warp_tile"}
    assert expected <= {m["kernel"]["name"] for m in matmuls}
    assert {m["precision"]["name"] for m in matmuls} == {best, "fp32"}


@pytest.mark.parametrize(("here", "rungs"), [(H200, {"bf16", "fp32"}), (T4, {"fp32"})])
def test_triton_multiplies_16_bits_where_it_uses_tensor_cores(here, rungs):
    found = planned(*here)
    triton = [
        config for config in of(found, "bench_matmul") if config["kernel"]["name"] == "triton_plain"
    ]
    assert {config["precision"]["name"] for config in triton} == rungs
    because = {
        each["because"] for each in found.excluded if each["run"].startswith("kernel=triton_plain")
    }
    assert any("no tensor cores before" in reason for reason in because) == (rungs == {"fp32"})


@pytest.mark.parametrize("experiment", ["quickstart_gpu", "seminar"])
def test_kernels_for_nvidia_are_not_tried_on_amd(experiment):
    [composition] = compose_experiments([f"experiment={experiment}"], CONFIG)
    for hardware, tried in (("amd-instinct-mi300x-oam", False), ("nvidia-h200", True)):
        found = plan(composition, hardware, "cuda", {}, 200e9)
        kernels = {config["kernel"]["name"] for config in of(found, "bench_matmul")}
        assert "torch" in kernels
        assert any(name.startswith(("numba_cuda", "cuda_", "cublas")) for name in kernels) == tried
        because = {each["because"] for each in found.excluded}
        assert any("written for NVIDIA" in reason for reason in because) != tried


P100 = (("fp16", "bf16", "tf32", "fp8"), 17.1e9)


@pytest.mark.parametrize(("here", "best"), [(H200, "bf16"), (T4, "fp16"), (P100, None)])
def test_a_rung_on_tensor_cores_is_there_where_they_are(here, best):
    found = planned(*here)
    rungs = [
        config for config in of(found, "bench_matmul") if config["kernel"]["name"] == "cuda_wmma"
    ]
    seen = [(config["precision"]["name"], int(config["size"])) for config in rungs]
    assert seen == ([(best, 1024), (best, 4096)] if best else [])
    because = {
        each["because"] for each in found.excluded if each["run"].startswith("kernel=cuda_wmma")
    }
    assert any("no tensor cores" in reason for reason in because) == (best is None), because


def test_it_stands_in_for_quickstart_on_a_gpu_alone(tmp_path):
    def name(**given):
        return load.load({"experiment": "quickstart", **given}).plans[0].experiment

    assert name(hardware="nvidia-h200") == "quickstart_gpu"
    assert name(device="cpu") == "quickstart"


def test_the_first_sentence_comes_first_then_one_ladder_then_the_rest():
    found = planned(*H200)
    sweep = costs.Sweep([found], 0.0)
    steps = [
        folder.partition("model=")[2].partition(",")[0]
        for folder in sweep.headline
        if "profile_step" in folder
    ]
    assert steps == ["spinning", "resnet50"]
    ladder = [turn for folder, turn in sweep.turns.items() if "size=4096,precision=fp32" in folder]
    rest = [turn for folder, turn in sweep.turns.items() if folder not in set().union(*found.first)]
    assert min(ladder) > max(rest)


def test_a_mistake_in_what_comes_first_is_told(tmp_path):
    for name, rule in (("first", "[{modell: gpt2}]"), ("first", "[{}]")):
        with pytest.raises(ConfigurationError, match=name):
            compose_experiments(["experiment=miniature", f"{name}={rule}"], CONFIG)


def test_a_short_pace_is_a_gpu_s_second_and_says_so():
    timing = TimingConfig.model_validate(SHORT["cuda"]["profile_step"])
    pace = pace_for("cuda", timing)
    assert 1.0 <= pace.windows * pace.window_s <= 1.25
    assert pace.is_traced_once
    assert not is_short("cpu", timing)
    assert not is_short("cuda", TimingConfig(window_time_s=CUDA_PACE.window_s))
    assert not pace_for("cuda", TimingConfig()).is_traced_once
    found = planned(*H200)
    names = [
        run.name for run in found.runs if run.step in ("profile_step", "bench_matmul", "ceilings")
    ]
    assert all("timing=short" in name or "search=quick" in name for name in names)
    careful = planned(*H200, "short_processes=false")
    assert {config["search"] for config in of(careful, "ceilings")} == {"careful"}
