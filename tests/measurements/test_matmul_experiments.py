import importlib
from functools import cache

import pytest
from support.said import refused
from support.shape_classes import kernel_classes
from support.slow import few
from support.workflow_copy import ROOT

from mfulab.core.errors import UnsupportedError
from mfulab.kernels.base import Shape
from mfulab.kernels.cuda_elementwise import CudaElementwise
from mfulab.lab.planning import keys
from mfulab.lab.planning.composition import compose_experiments
from mfulab.lab.planning.runs import plan
from mfulab.measurements.bench_matmul import BenchMatmulConfig

CONFIG = ROOT / "config"
EXPERIMENTS = (
    "kernels",
    "seminar_matmul",
    "matmul_sizes",
    "matmul_shapes",
    "matmul_precision",
    "block_sizes",
    "transfers",
)


@cache
def _composed(experiment):
    return compose_experiments([f"experiment={experiment}"], CONFIG)[0]


def _runs(experiment, device):
    found = [
        run
        for run in plan(_composed(experiment), "test", device).runs
        if run.step == "bench_matmul"
    ]
    return [BenchMatmulConfig.model_validate(run.config) for run in found]


@pytest.mark.parametrize("experiment", few(EXPERIMENTS, 2))
def test_every_combination_makes_sense(experiment, monkeypatch):
    """None is planned only to be refused by its kernel: those are excluded, with the reason."""
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda *_: (9, 0))
    for device in ("cpu", "cuda"):
        runs = _runs(experiment, device)
        assert runs
        for config in runs:
            module, _, name = config.kernel.target.rpartition(".")
            kind = getattr(importlib.import_module(module), name)
            kind(config.precision.form.name, config.kernel.block).require(
                device, Shape(*config.shape)
            )


def test_a_ladder_has_every_implementation():
    names = set(keys.choices(CONFIG, "kernel"))
    planned = {
        config.kernel.name for device in ("cpu", "cuda") for config in _runs("kernels", device)
    }
    planned |= {
        config.kernel.name
        for device in ("cpu", "cuda")
        for config in _runs("seminar_matmul", device)
    }
    of_fp8 = {"torch_scaled", "torch_scaled_fast", "cuda_hopper_fp8", "cuda_hopper_fp8_deferred"}
    assert names - planned == of_fp8, "kernels has them with precision=fp8, as matmul_precision has"


def test_the_element_wise_product_takes_vectors_alone(monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda *_: (9, 0))
    CudaElementwise("fp32").require("cuda", Shape(100, 1, 1, 1))
    with refused(UnsupportedError, "elementwise_shape", shape="4×4×4"):
        CudaElementwise("fp32").require("cuda", Shape(1, 4, 4, 4))


def test_each_family_s_rungs_stand_one_above_the_other():
    kinds = kernel_classes()
    del kinds["cuda_elementwise"]  # no matmul, so on no ladder
    for name, kind in kinds.items():
        assert not kind.after or kinds[kind.after].family == kind.family, name
    for family in {kind.family for kind in kinds.values()}:
        own = [kind for kind in kinds.values() if kind.family == family]
        assert [kind.after for kind in own].count("") == 1, family
        for precision in {name for kind in own for name in kind.precisions}:
            after = [kind.after for kind in own if precision in kind.precisions]
            assert len(set(after)) == len(after), (family, precision, after)
