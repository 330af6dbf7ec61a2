"""Recomputes the numbers and statements of the seminar's material (`seminar.yaml`) with this
project's code."""

import importlib.util
import itertools
import json
import struct
import warnings
from collections.abc import Callable, Iterator
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import torch
from torch import nn
from torch.autograd.profiler_util import FunctionEventAvg
from torch.nn.utils import prune

from mfulab.core.files import write_csv
from mfulab.core.parts import Record, pick_all
from mfulab.device.peaks import peak
from mfulab.flops import formulas, memory
from mfulab.flops.count import count
from mfulab.flops.counter import Operations
from mfulab.lab.tables import columns, seminar_texts, statements
from mfulab.mfu.models import model_config
from mfulab.models.build import build
from mfulab.models.convolutional import DigitCNN, SimpleCNN
from mfulab.models.counted import count_model

Values = Iterator[tuple[str, Any]]


def recompute() -> list[Record]:
    """Returns the whole table, in the material's order. Each value is compared with the printed
    number, rounded to its digits."""
    parts = (_counts(), _gpt2(), _hardware(), _numbers(), _practice(), statements.values())
    values = dict(itertools.chain.from_iterable(parts))
    table = []
    for line in seminar_texts.lines():
        value = values.get(line.get("value", ""))
        known = values | {"value": value}
        row = {name: line.get(name, "") for name in ("key", "source", "place", "case", "printed")}
        used = Record()
        for name in ("formula", "answer", "note"):
            template = line.get(name, "")
            row[name] = template.format(**known)
            used |= pick_all(known, seminar_texts.names(template))
        row["values"] = json.dumps(used, ensure_ascii=False, default=float)
        row["value"] = value
        row["agrees"] = _agrees(line, value)
        table.append(row)
    return table


def _agrees(line: Record, value: Any) -> bool:
    """True if a value, scaled and rounded as in the material, is the printed one, or if the
    material's statement holds."""
    printed = line["holds"]
    if value is None or isinstance(printed, bool):
        return printed is True
    scaled = value / line.get("scale", 1)
    if "digits" in line:
        scaled = round(scaled, line["digits"])
    return bool(scaled == printed)


def save(out: Path) -> None:
    """Writes the table as CSV."""
    write_csv(out, recompute(), columns.SEMINAR)


def _operations(model: nn.Module, *shape: int) -> Operations:
    """Counts one training step on the meta device, with the sum of outputs as loss."""
    model.to("meta")
    inputs = torch.randn(shape, device="meta")
    return count(model, lambda: model(inputs).sum()).operations


def _forward(model: nn.Module, *shape: int) -> int:
    """FLOPs of a forward pass on inputs of this shape."""
    return _operations(model, *shape).sum("forward").flops


def _step(operations: Operations, layer: str = "") -> int:
    """FLOPs of forward and backward, of one layer if named."""
    forward = operations.sum("forward", layer=layer or None)
    backward = operations.sum("backward", layer=layer or None)
    return forward.flops + backward.flops


def _inference(model: str) -> Operations:
    """Counts inference of a configured model with one sample."""
    return count_model(model_config(model), 1, mode="inference").count.operations


def _counts() -> Values:
    yield "linear_4_3", _forward(nn.Linear(4, 3, bias=False), 1, 4)
    yield "sums_4_3", (4 - 1) * 3
    yield "convolution_2_2", _forward(nn.Conv2d(3, 1, 3), 1, 3, 4, 4)
    yield "convolution_32_32", _forward(nn.Conv2d(3, 16, 3, padding=1), 1, 3, 32, 32) // 2
    yield "linear_4096", _forward(nn.Linear(4096, 1000), 1, 4096) // 2
    yield "convolution_3_3", _forward(nn.Conv2d(3, 6, 3), 1, 3, 5, 5)
    yield "linear_5_3", _forward(nn.Linear(5, 3), 1, 5)

    operations = _operations(DigitCNN(), 1, 1, 28, 28)
    layers = {
        "convolution_1": "convolutions.0",
        "convolution_2": "convolutions.2",
        "linear_1": "hidden",
        "linear_2": "classifier",
    }
    for name, layer in layers.items():
        yield f"digit_{name}", operations.sum("forward", layer=layer).flops
    total = operations.sum("forward").flops
    yield "digit_total", total
    yield "digit_off", 1_060_400 - total
    yield "digit_ms", 1000 * total / 1e9

    yield "simple_image", _forward(SimpleCNN(), 1, 3, 224, 224)
    operations = _operations(SimpleCNN(), 32, 3, 224, 224)
    step = _step(operations)
    linear = _step(operations, "classifier")
    yield "simple_step", step
    yield "simple_linear", linear
    yield "simple_convolution", step - linear
    yield "simple_mfu", 100 * step / 0.0231 / 19.5e12
    yield "first_step", 50 * 0.0231 / 2
    yield "simple_mixed_mfu", 100 * ((step - linear) / 156e12 + linear / 19.5e12) / 0.0231
    step = _step(_operations(nn.Linear(1024, 1024), 16, 1024))
    yield "linear_step", step
    yield "linear_mfu", 50.72 * step / 16e9
    resnet = _inference("resnet18").sum("forward")
    yield "resnet_both", resnet.flops + resnet.other_flops
    yield "resnet_macs", resnet.flops // 2
    yield "resnet_gflop", resnet.flops / 1e9
    yield "resnet_other_gflop", resnet.other_flops / 1e9
    yield "resnet_gmac", resnet.flops / 2e9
    depthwise = nn.Conv2d(128, 128, 3, padding=1, groups=128)
    pointwise = nn.Conv2d(128, 128, 1)
    plain = _forward(nn.Conv2d(128, 128, 3, padding=1), 1, 128, 8, 8)
    yield "separable_share", _forward(nn.Sequential(depthwise, pointwise), 1, 128, 8, 8) / plain
    mobilenet = _inference("mobilenet_v2").sum("forward")
    yield "mobilenet_share", mobilenet.flops / resnet.flops


def _hardware() -> Values:
    for size in (1024, 4):
        yield f"product_{size}", formulas.matmul_flops(size, size, size)
    for name, fma in (("turing_fp32", 64), ("turing_fp16", 512)):
        yield name, 72 * fma * 2 * 1.77e9
        yield f"{name}_tflop_s", 72 * fma * 2 * 1.77e-3
    yield "padding_1536", -1536 % 128
    yield "padding_1537", -1537 % 128
    yield "transposed_stride", np.transpose(np.zeros((1024, 1024), np.float32)).strides[1]
    yield "numpy_rate", 2e9 / 0.194
    yield "numpy_gflop_s", 2 / 0.194
    yield "numpy_large_gflop_s", 2 * 2.7**3 / 0.194
    yield "predicted_numpy", 10 / 0.194
    yield "predicted_torch", 1 / 0.017
    yield "apart_sectors", len({thread * 1024 * 4 // 32 for thread in range(32)})
    yield "close_sectors", len({thread * 4 // 32 for thread in range(32)})

    plain = memory.training_memory(7_000_000_000, element_bytes=2).total
    mixed = memory.training_memory(7_000_000_000, element_bytes=2, master_copy=True).total
    yield "adam_plain", plain
    yield "adam_plain_gb", plain / 1e9
    yield "adam_mixed_gb", mixed / 1e9
    for name, layers in (("cache_layer", 1), ("cache_all", 32)):
        shape = formulas.TransformerShape(0, layers, 32, 128, 4096, 0, 32, True)
        size = 2 * shape.cache_elements(2048)
        yield name, size
        yield f"{name}_mb", size / 1e6
        yield f"{name}_gb", size / 1e9
        yield f"{name}_gib", size / 2**30


def _gpt2() -> Values:
    operations = _inference("gpt2")
    token = operations.sum("forward").flops / 1024
    yield "gpt2_token", token
    yield "gpt2_rate", 1e13 / token
    scores = operations.sum("forward", layer="transformer.h.0.attn", operator="mfulab::attention")
    projections = operations.sum("forward", layer="transformer.h.0.attn").flops - scores.flops
    yield "attention", scores.flops
    yield "attention_causal", scores.causal_flops
    yield "softmax", 3 * 12 * 1024**2
    yield "projections", projections
    yield "attention_whole", scores.flops + projections
    fused = 34 * 1024 * 768
    layer = fused + 5 * 12 * 1024**2
    yield "activations_scores", layer
    yield "activations_fused_mb", fused / 1e6
    yield "activations_scores_mb", layer / 1e6
    yield "activations_model", 12 * layer
    yield "activations_model_mb", 12 * layer / 1e6
    yield "activations_model_fused_mb", 12 * fused / 1e6
    yield "activations_printed_mb", 1024 * 12 * 768 * 4 / 1e6
    with torch.device("meta"):
        gpt2 = build(model_config("gpt2"))
    yield "gpt2_parameters", sum(parameter.numel() for parameter in gpt2.parameters())


def _numbers() -> Values:
    yield "bits_of_one", struct.unpack(">I", struct.pack(">f", 1.0))[0]
    yield "epsilon_fp32", torch.finfo(torch.float32).eps
    yield "epsilon_fp64", torch.finfo(torch.float64).eps
    yield "sum_of_tenths", 0.1 + 0.2
    yield "microsecond", round(1 / 1e-6)
    with mpmath.workprec(113):
        yield "epsilon_binary128", float(mpmath.eps)
        tenths_off = mpmath.mpf(1) / 10 + mpmath.mpf(2) / 10 - mpmath.mpf(3) / 10
        yield "tenths_binary128", float(tenths_off)
    yield "epsilon_longdouble", float(np.finfo(np.longdouble).eps)
    yield "tenths_decimal", _decimal_tenths()
    seven = Context(prec=7)
    third = seven.divide(Decimal(1), Decimal(3))
    yield "thirds_decimal", seven.multiply(third, Decimal(3))
    yield "ulp_one", float(np.spacing(np.float32(1)))
    yield "ulp_fp32", float(np.spacing(np.float32(2**24)))
    yield "counted", float(np.float32(2**24) + np.float32(1))
    a100 = peak("NVIDIA A100-SXM4-80GB", "bf16")
    yield "a100_peak", a100.datasheet if a100 else None


def _decimal_tenths() -> float:
    """0.1 + 0.2 − 0.3 in decimal formats, which all give the same."""
    results = set()
    for digits in (7, 16, 34):
        tenths = Context(prec=digits).add(Decimal("0.1"), Decimal("0.2"))
        results.add(float(tenths - Decimal("0.3")))
    (result,) = results
    return result


class _LayerNorm(nn.Module):
    """Layer norm written out as in the listing: eight calls of seven operators, as addition occurs
    twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))
        self.beta = nn.Parameter(torch.zeros(width))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        mean = inputs.mean(-1, keepdim=True)
        variance = inputs.var(-1, keepdim=True, unbiased=False)
        normal = (inputs - mean) / torch.sqrt(variance + 1e-5)
        return self.gamma * normal + self.beta


def _quantised_statically() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    model.qconfig = torch.quantization.get_default_qconfig()  # type: ignore[assignment]
    prepared = torch.quantization.prepare(model)
    prepared(torch.ones(2, 4))
    torch.quantization.convert(prepared)(torch.ones(2, 4))


def _raised(call: Callable[[], object]) -> str:
    """Name of the exception that a call raises, or `none`."""
    with warnings.catch_warnings(action="ignore"):
        try:
            call()
        except Exception as error:
            return type(error).__name__
    return "none"


def _practice() -> Values:
    yield from _cuda_python()
    layer = nn.Linear(64, 64)
    prune.l1_unstructured(layer, "weight", amount=0.5)
    yield "pruned_rows", int((layer.weight == 0).all(dim=1).sum())
    event = FunctionEventAvg()
    yield "old_attribute", _existence(hasattr(event, "self_cuda_time_total"))
    yield "new_attribute", _existence(hasattr(event, "self_device_time_total"))
    answer = _raised(lambda: layer.bias.sub_(0.1))
    yield "update_raises", int(answer != "none")
    yield "update_answer", answer
    answer = _raised(_quantised_statically)
    yield "static_raises", int(answer != "none")
    yield "static_answer", answer
    for name, norm in (("norm_fused", nn.LayerNorm(64)), ("norm_operators", _LayerNorm(64))):
        calls = 0
        operators = set()
        for key, total in _operations(nn.Sequential(norm), 8, 64).totals.items():
            if key.direction == "forward" and key.layer == "0":
                calls += total.calls
                operators.add(key.operator)
        yield name, calls
        yield f"{name}_kinds", len(operators)
    yield "soft_gradient", _soft_gradient()
    yield "deprecated", _deprecated()


def _existence(exists: bool) -> str:
    """Word for whether something exists."""
    if exists:
        return "exists"
    return "does not exist"


def _cuda_python() -> Values:
    """Yields whether cuda-python has a cuBLAS module, and whether it raises for a device that does
    not exist."""
    raised = None
    module = "cuda-python is not installed"
    answer = module
    if importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.bindings"):
        from cuda.bindings import runtime

        module = _existence(importlib.util.find_spec("cuda.bindings.cublas") is not None)
        answer = _raised(lambda: runtime.cudaSetDevice(9999))
        raised = int(answer != "none")
    yield "cublas_module", module
    yield "cuda_raised", raised
    yield "cuda_answer", answer


def _soft_gradient() -> float:
    """Ratio of the gradient norm of distillation at temperature 4 to that at 1."""
    generator = torch.Generator().manual_seed(0)
    teacher = 1e-3 * torch.randn(10, generator=generator, dtype=torch.float64)
    start = 1e-3 * torch.randn(10, generator=generator, dtype=torch.float64)
    norms: list[float] = []
    for temperature in (1.0, 4.0):
        student = start.clone().requires_grad_()
        ours = torch.log_softmax(student / temperature, 0)
        theirs = torch.log_softmax(teacher / temperature, 0)
        loss = nn.functional.kl_div(ours, theirs, reduction="sum", log_target=True)
        loss.backward()
        gradient = torch.as_tensor(student.grad)
        norms.append(float(torch.linalg.vector_norm(gradient)))
    return norms[1] / norms[0]


def _deprecated() -> int:
    """Number of calls in the material that PyTorch warns are deprecated."""
    linear = nn.Linear(2, 2)
    amp = torch.cuda.amp
    calls: list[Callable[[], object]] = [
        lambda: amp.autocast(enabled=False),
        lambda: amp.GradScaler(enabled=False),
        lambda: torch.quantization.quantize_dynamic(linear, {nn.Linear}),
        lambda: torch.jit.script(linear),
    ]
    return sum(map(_is_deprecated, calls))


def _is_deprecated(call: Callable[[], object]) -> bool:
    """True if PyTorch warns that a call is deprecated."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    kinds = (FutureWarning, DeprecationWarning)
    return any(issubclass(warning.category, kinds) for warning in caught)
