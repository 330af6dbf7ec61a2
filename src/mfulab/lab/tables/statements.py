"""Values for the seminar's statements on gradients, quantisation, devices and rates, computed
here."""

import importlib.util
import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from mfulab.device.datasheets import find
from mfulab.flops import formulas

Values = Iterator[tuple[str, Any]]
STEPS = 10  # manual updates whose graph is counted
A100 = "NVIDIA A100-SXM4-80GB"
H100 = "NVIDIA H100 80GB HBM3"
HALF = 2  # bytes of a 16-bit number


def values() -> Values:
    """Yields (name, value) for each name of `seminar.yaml` that this module computes."""
    yield from _gradients()
    yield from _quantisation()
    yield from _devices()
    yield from _slow_kernel()
    yield from _rates()


def _gradients() -> Values:
    weight = torch.ones(3, requires_grad=True)
    results = {"product": 2 * weight, "comparison": weight > 0, "index": weight.argmax()}
    with torch.no_grad():
        results["within no_grad"] = 2 * weight
    yield "recorded_results", sum(result.requires_grad for result in results.values())
    yield "all_results", len(results)
    yield "update_nodes", graph_nodes(updated(STEPS)) // STEPS
    yield "grad_zero", "exists" if hasattr(weight, "grad_zero_") else "does not exist"


def updated(steps: int) -> torch.Tensor:
    """Returns a weight after manual updates that autograd records, because they are not under
    no_grad."""
    weight = torch.ones(3, requires_grad=True)
    for _ in range(steps):
        (gradient,) = torch.autograd.grad((weight**2).sum(), weight)
        weight = weight - 0.1 * gradient
    return weight


def graph_nodes(result: torch.Tensor) -> int:
    """Counts the autograd nodes of a result's graph, without its leaves."""
    open_nodes = [result.grad_fn]
    seen = set()
    while open_nodes:
        node = open_nodes.pop()
        if node is None or node in seen or node.name().endswith("AccumulateGrad"):
            continue
        seen.add(node)
        open_nodes.extend(previous for previous, _ in node.next_functions)
    return len(seen)


class Quantised(nn.Module):
    """A linear layer between the stubs that static quantisation needs."""

    def __init__(self) -> None:
        super().__init__()
        self.into = torch.ao.quantization.QuantStub()
        self.linear = nn.Linear(64, 64)
        self.out_of = torch.ao.quantization.DeQuantStub()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.out_of(self.linear(self.into(inputs)))


def static_error(calibrated: bool) -> float:
    """Relative error, ‖quantised − float32‖ / ‖float32‖, of a statically quantised layer. If
    `calibrated`, inputs are passed first, from which observers read the range of each tensor."""
    torch.manual_seed(0)
    model = Quantised().eval()
    inputs = torch.randn(256, 64)
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        exact = model(inputs)
        model.qconfig = torch.ao.quantization.get_default_qconfig()  # type: ignore[assignment]
        prepared = torch.ao.quantization.prepare(model)
        if calibrated:
            prepared(inputs)
        error = torch.ao.quantization.convert(prepared)(inputs) - exact
    return float(torch.linalg.vector_norm(error) / torch.linalg.vector_norm(exact))


def _quantisation() -> Values:
    yield "uncalibrated_percent", 100 * static_error(calibrated=False)
    yield "calibrated_percent", 100 * static_error(calibrated=True)


def _devices() -> Values:
    yield "gpu_lanes", 132 * 4 * 32  # SMs of an H100, warps that they issue at once, their lanes
    yield "block_threads", 32 * 32  # what get_optimal_block_size of the text returns
    yield "fp32_products", torch.get_float32_matmul_precision()
    yield "cublas_error", _cublas_error()
    yield "last_error_values", _last_error_values()
    yield "cycles_a_second", 72 * 64 * 2
    for name, cycles in (("disk_least", 50_000), ("disk_most", 100_000)):
        yield f"{name}_us", cycles / 3e9 * 1e6


def _cublas_error() -> str:
    """Name of the exception in the official bindings of cuBLAS; needs no device."""
    if importlib.util.find_spec("nvmath") is None:
        return "an exception (nvmath-python is not installed here)"
    from nvmath.bindings import cublas

    return str(cublas.cuBLASError.__name__)


def _last_error_values() -> int | None:
    """Number of values that cudaGetLastError returns: only an error code. None without
    cuda-python."""
    if (
        importlib.util.find_spec("cuda") is None
        or importlib.util.find_spec("cuda.bindings") is None
    ):
        return None
    from cuda.bindings import runtime

    return len(runtime.cudaGetLastError())


def greatest_error(dropped_bits: int) -> float:
    """Largest absolute error of a float32 product of uniform 512×512 matrices whose operands lose
    `dropped_bits` bits of their fraction. TF32 drops 13."""
    operands, exact = _uniform_product()
    step = np.float32(2.0 ** (dropped_bits + 1) + 1)  # Dekker's splitting
    rounded = []
    for matrix in operands:
        if dropped_bits:
            large = step * matrix
            matrix = large - (large - matrix)
        rounded.append(matrix)
    return float(np.abs(rounded[0] @ rounded[1] - exact).max())


def rounded_once_error() -> float:
    """Largest absolute error of the same product if its sums are float64, as in the text's kernel:
    only the results are rounded to float32."""
    _, exact = _uniform_product()
    return float(np.abs(exact.astype(np.float32) - exact).max())


def _uniform_product() -> tuple[list[np.ndarray], np.ndarray]:
    """Two uniform 512×512 matrices in float32, and their product in float64."""
    generator = np.random.default_rng(0)
    operands = [generator.random((512, 512), dtype=np.float32) for _ in range(2)]
    return operands, operands[0].astype(np.float64) @ operands[1].astype(np.float64)


def _slow_kernel() -> Values:
    """Values about the text's slow kernel: its time ÷ NumPy's, transfers in it, and errors relative
    to those printed."""
    yield "numba_times", 0.540 / 0.194
    yield "torch_times", 0.017 / 0.194
    yield "counted_transfers_s", 0
    yield "numba_error_share", rounded_once_error() / 1.5e-4
    yield "numba_fp32_share", greatest_error(0) / 1.5e-4
    yield "fp32_share", greatest_error(0) / 6.0e-4
    yield "tf32_share", greatest_error(13) / 6.0e-4


def _rates() -> Values:
    slower, faster = map(find, (A100, H100))
    slower_gb_s = slower.memory_gb_s or math.nan
    faster_gb_s = faster.memory_gb_s or math.nan
    yield "faster_flops", float(faster.figures["bf16"]) / float(slower.figures["bf16"])
    yield "faster_bytes", faster_gb_s / slower_gb_s
    yield "a100_tb_s", slower_gb_s / 1e3
    weights = HALF * 124_439_808
    yield "gpt2_weights_mb", weights / 1e6
    yield "gpt2_bandwidth_rate", 1e9 * slower_gb_s / weights
    # 10 ms of kernels, then as long for the next batch.
    yield "waiting_share", 10 / (10 + 10)
    for name, heads in (("grouped_gb", 8), ("whole_gb", 32)):
        shape = formulas.TransformerShape(0, 32, 32, 128, 4096, 0, heads, True)
        yield f"cache_{name}", HALF * shape.cache_elements(2048) / 1e9
