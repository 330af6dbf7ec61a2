"""Resources of a run that several processes share: a GPU each, nodes for those that are spread."""

from types import SimpleNamespace

import pytest

from mfulab.lab.planning.inputs import Inputs, folder_of
from mfulab.lab.planning.rules import own_name
from mfulab.lab.planning.runs import Run
from mfulab.measurements.profile_step import ProfileStepConfig
from mfulab.measurements.registry import MEASUREMENTS

STEP = {
    "model": {"name": "m", "_target_": "torch.nn.Linear", "input_shape": [4]},
    "workload": {"name": "training"},
    "precision": {"name": "fp32", "dtype": "float32"},
    "execution": {"name": "eager"},
    "batch_size": 1,
}
ALONE = {"runtime": "20m", "nodes": None, "tasks": None, "tasks_per_gpu": None, "mpi": None}


@pytest.mark.parametrize(
    ("hardware", "parallel", "wanted"),
    [
        ("amd-4c", {"processes": 4}, ALONE | {"gpu": 0, "cpu_measurement": 1}),
        ("nvidia-h100", {}, ALONE | {"gpu": 1, "cpu_measurement": 0}),
        ("nvidia-h100", {"processes": 4}, ALONE | {"gpu": 4, "cpu_measurement": 0}),
        (
            "nvidia-h100",
            {"processes": 8, "nodes": 2},
            {"runtime": "20m", "gpu": 8, "cpu_measurement": 0}
            | {"nodes": 2, "tasks": 8, "tasks_per_gpu": 1, "mpi": "srun"},
        ),
    ],
)
def test_a_job_asks_for_a_gpu_a_process_and_for_its_nodes(hardware, parallel, wanted):
    text = ProfileStepConfig.model_validate(STEP | {"parallel": parallel}).model_dump_json(indent=1)
    inputs = Inputs.__new__(Inputs)  # of one run, without a plan on disk
    inputs.runs = {f"{hardware}/profile_step/run": Run("profile_step", "run", "", text)}
    wildcards = SimpleNamespace(
        hardware=hardware, run="run", get=lambda name: {"hardware": hardware, "run": "run"}[name]
    )
    found = inputs.resources(MEASUREMENTS["profile_step"])
    seen = {name: each(wildcards) if callable(each) else each for name, each in found.items()}
    assert seen == wanted


@pytest.mark.parametrize("prefix", ["", "mfulab_", "my_own_"])
def test_a_rule_is_ours_whatever_a_module_puts_before_its_name(prefix):
    wildcards = {"hardware": "amd-epyc-2c", "run": "model=a"}
    assert folder_of(f"{prefix}profile_step", wildcards) == "amd-epyc-2c/profile_step/model=a"
    for rule in ("page", "first_page", "tables"):
        assert own_name(prefix + rule) == rule
