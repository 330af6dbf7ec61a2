"""The seminar's sweep of a GPU: what it measures, its order, and four minutes at most."""

from pathlib import Path

import pytest

from mfulab.lab.planning import costs
from mfulab.lab.planning.composition import compose_experiments
from mfulab.lab.planning.runs import Plan, plan

CONFIG = Path(__file__).parents[3] / "config"


def planned(device: str, *overrides: str) -> Plan:
    [composition] = compose_experiments(
        [f"device={device}", "experiment=seminar_gpu", *overrides], CONFIG
    )
    return plan(
        composition, "nvidia-h100-80gb-hbm3" if device == "cuda" else "amd-here", device, {}, 85e9
    )


def configs(found: Plan, step: str) -> list[dict]:
    return [run.config for run in found.runs if run.step == step and "replicate=" not in run.name]


@pytest.fixture(scope="module")
def gpu() -> Plan:
    return planned("cuda")


def test_its_estimate_is_at_most_four_minutes(gpu):
    sweep = costs.Sweep([gpu], 0.0)
    assert sweep.budget_min == 4
    assert sweep.rest(run.folder for run in gpu.runs).estimate_s() <= 240
    assert any("model=simple_cnn" in folder for folder in sweep.headline)


def test_the_texts_matmuls_are_timed_at_one_size_beside_those_that_correct_them(gpu):
    matmuls = configs(gpu, "bench_matmul")
    at_one_size = {config["kernel"]["name"] for config in matmuls if config["size"] == "2704"}
    written = {f"numba_cuda_seminar{suffix}" for suffix in ("", "_transposed", "_shared")}
    corrected = {f"numba_cuda_{name}" for name in ("naive", "transposed", "shared")}
    expected = (
        {"torch", "cublas", "cuda_naive", "cuda_coalesced", "cuda_vectorised"} | written | corrected
    )
    assert at_one_size == expected
    assert {config["first_calls"] for config in matmuls} == {10}
    found = {config["size"] for config in matmuls if config["kernel"]["name"] == "torch"}
    assert found >= {"64", "256", "1024"}
    assert sum(config["kernel"]["name"] == "cuda_coalesced" for config in matmuls) == 4
    seen = [c["size"] for c in matmuls if c["kernel"]["name"] == "cuda_elementwise"]
    assert seen == ["16777216x1x1x1"]


def test_the_lab_s_steps_are_the_lab_s_and_pinning_and_sparsity_differ_in_one_key(gpu):
    steps = configs(gpu, "profile_step")
    lab = {
        (c["model"]["name"], c["batch_size"]) for c in steps if c["workload"]["name"] == "training"
    }
    assert lab == {("simple_cnn", 32), ("linear_1024", 16)}
    loaded = [
        config["workload"]["loader_pinned"]
        for config in steps
        if config["workload"]["name"] == "training_loaded"
    ]
    assert sorted(map(str, loaded)) == ["False", "None"]
    pruned = {
        c["model"]["pruning"]: c["precision"]["name"]
        for c in steps
        if c["model"]["name"] == "perceptron"
    }
    assert pruned == {"none": "bf16", "two_of_four": "bf16"}
    assert len(steps) == 6
    [read] = configs(gpu, "read_utilization")
    assert read["load"] == "steady"


def test_memory_of_the_text_s_matrix_is_moved_by_hand(gpu):
    walks = configs(gpu, "probe_memory")
    found = [(walk["pattern"], walk["working_set_bytes"]) for walk in walks]
    assert found == [(pattern, 4 * 2704**2) for pattern in ("host", "cuda_malloc", "cuda_memcpy")]


def test_a_cpu_measures_its_half_alone():
    assert {run.step for run in planned("cpu").runs} == {"environment", "ceilings", "bench_matmul"}
    found = {config["kernel"]["name"] for config in configs(planned("cpu"), "bench_matmul")}
    assert found == {"numpy", "torch"}
