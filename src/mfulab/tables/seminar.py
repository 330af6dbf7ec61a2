"""Numbers and statements of the seminar's material, computed anew by this project's own code."""

import importlib.util
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils import prune

from mfulab.core.files import write_csv
from mfulab.core.groups import ModelConfig
from mfulab.device.peaks import peak
from mfulab.flops import formulas, memory
from mfulab.flops.count import count
from mfulab.flops.counter import Operations
from mfulab.models.build import build
from mfulab.models.convolutional import DigitCNN, SimpleCNN
from mfulab.models.counted import count_model


@dataclass(frozen=True)
class Recomputed:
    """One printed number.

    Attributes:
        source: lab, kernels, optimise, hardware or accounting; `material` if only that it stands there is known, and
            `ours` for a number of this project that stands in no text.
        case: what the number is of.
        printed: as the source prints it; empty for a number of ours.
        formula: how it comes about.
        value: what the code computes; None if the answer is no number.
        answer: the same for a reader, with its unit.
        agrees: whether the source is right, to the digits that it prints.
        note: why not, or what is left out.
    """

    source: str
    case: str
    printed: str
    formula: str
    value: float | None
    answer: str
    agrees: bool
    note: str = ""


def recompute() -> list[Recomputed]:
    """The whole table, in the order of the material. Takes a second or two, and no device."""
    return [
        *_layers(),
        *_digit_cnn(),
        *_simple_cnn(),
        *_resnet18(),
        *_hardware(),
        *_memory(),
        *_gpt2(),
        *_number_formats(),
        *_bindings(),
        *_definitions(),
    ]


def save(out: Path) -> None:
    """Writes the table as CSV."""
    write_csv(out, map(asdict, recompute()))


def _operations(model: nn.Module, *shape: int) -> Operations:
    """Counts one training step on the meta device, the sum of outputs for a loss."""
    model = model.to("meta")
    return count(model, lambda: model(torch.randn(shape, device="meta")).sum()).operations


def _forward(model: nn.Module, *shape: int) -> int:
    return _operations(model, *shape).sum("forward").flops


def _layers() -> Iterator[Recomputed]:
    flops = _forward(nn.Linear(4, 3, bias=False), 1, 4)
    yield Recomputed("lab", "linear 4→3", "24 FLOPs", "2·4·3", flops, f"{flops} FLOP", flops == 24)
    flops = _forward(nn.Conv2d(3, 1, 3), 1, 3, 4, 4)
    yield Recomputed(
        "lab",
        "convolution 3×3, 3→1 channels, 2×2 out",
        "216",
        "2·(3·3·3)·1·(2·2)",
        flops,
        f"{flops} FLOP",
        flops == 216,
    )
    macs = _forward(nn.Conv2d(3, 16, 3, padding=1), 1, 3, 32, 32) // 2
    yield Recomputed(
        "lab", "convolution 3→16, 3×3, 32×32 out", "0.44 MMACs", "(3·3·3)·16·(32·32)", macs, f"{macs:,} MAC",
        round(macs / 1e6, 2) == 0.44,
    )  # fmt: skip
    macs = _forward(nn.Linear(4096, 1000), 1, 4096) // 2
    yield Recomputed(
        "lab", "linear 4096→1000", "4.1 M MACs", "4096·1000", macs, f"{macs:,} MAC", round(macs / 1e6, 1) == 4.1
    )
    flops = _forward(nn.Conv2d(3, 6, 3), 1, 3, 5, 5)
    yield Recomputed(
        "optimise", "convolution, 6 kernels 3×3×3, 3×3 out", "2,916 FLOPs", "2·(3·3·3)·6·(3·3)", flops,
        f"{flops:,} FLOP", flops == 2916,
    )  # fmt: skip
    flops = _forward(nn.Linear(5, 3), 1, 5)
    yield Recomputed("optimise", "linear 5→3", "30", "2·5·3", flops, f"{flops} FLOP", flops == 30)


def _digit_cnn() -> Iterator[Recomputed]:
    operations = _operations(DigitCNN(), 1, 1, 28, 28)
    layers = {
        "convolution 1": ("convolutions.0", "2·9·5·26²", 60_840),
        "convolution 2": ("convolutions.2", "2·(9·5)·5·24²", 259_200),
        "linear 1": ("hidden", "2·2880·128", 737_280),
        "linear 2": ("classifier", "2·128·10", 2_560),
    }
    for name, (layer, formula, printed) in layers.items():
        flops = operations.sum("forward", layer=layer).flops
        yield Recomputed(
            "optimise", f"digit CNN, {name}", f"{printed:,}", formula, flops, f"{flops:,} FLOP", flops == printed
        )
    total = operations.sum("forward").flops
    yield Recomputed(
        "optimise", "digit CNN, total", "1,060,400", "sum of the four", total, f"{total:,} FLOP", total == 1_060_400,
        f"the source's sum is off by {1_060_400 - total}",
    )  # fmt: skip
    milliseconds = 1000 * total / 1e9
    yield Recomputed(
        "optimise", "digit CNN at 1 GFLOP/s", "1 ms", "total ÷ 10⁹", milliseconds, f"{milliseconds:.2f} ms",
        round(milliseconds) == 1,
    )  # fmt: skip


def _simple_cnn() -> Iterator[Recomputed]:
    image = _forward(SimpleCNN(), 1, 3, 224, 224)
    yield Recomputed(
        "lab", "SimpleCNN, one image, forward", "0.030 GFLOPs", "2·32·27·112² + 2·401,408·10", image, f"{image:,} FLOP",
        round(image / 1e9, 3) == 0.030,
    )  # fmt: skip
    operations = _operations(SimpleCNN(), 32, 3, 224, 224)
    step = operations.sum("forward").flops + operations.sum("backward").flops
    percent = 100 * step / 0.0231 / 19.5e12
    yield Recomputed(
        "lab", "SimpleCNN on an A100, a step of 32 images in 0.0231 s", "MFU 0.01 %",
        f"{step:,} ÷ 0.0231 s ÷ 19.5 TFLOP/s", percent, f"{percent:.2f} %", round(percent, 2) == 0.01,
        "the source divides one image's forward pass by the time of 32 images' forward and backward pass",
    )  # fmt: skip
    operations = _operations(nn.Linear(1024, 1024), 16, 1024)
    step = operations.sum("forward").flops + operations.sum("backward").flops
    percent = 50.72 * step / 16e9
    yield Recomputed(
        "lab", "Linear(1024, 1024), batch 16", "MFU 50.72 %", f"50.72 % · {step:,} ÷ (16·10⁹)", percent,
        f"{percent:.2f} %", round(percent, 2) == 50.72,
        "the source assumes 1 GFLOP a sample, and its time is summed CPU self time, not wall time",
    )  # fmt: skip


def _resnet18() -> Iterator[Recomputed]:
    config = ModelConfig(
        name="resnet18",
        _target_="mfulab.models.huggingface.build",
        arguments={
            "architecture": "ResNetForImageClassification",
            "layer_type": "basic",
            "hidden_sizes": [64, 128, 256, 512],
            "depths": [2, 2, 2, 2],
            "num_labels": 1000,
        },
        input_shape=[3, 224, 224],
    )  # type: ignore[call-arg]
    forward = count_model(config, 1, mode="inference").count.operations.sum("forward")
    both = forward.flops + forward.other_flops
    yield Recomputed(
        "lab", "ResNet-18, one image, forward", "3.64 GFLOPs",
        "convolutions and linear layer + norms, activations, sums", both,
        f"{forward.flops / 1e9:.3f} + {forward.other_flops / 1e9:.3f} GFLOP", round(both / 1e9, 2) == 3.64,
        f"{forward.flops / 1e9:.3f} GFLOP count towards MFU",
    )  # fmt: skip
    macs = forward.flops // 2
    yield Recomputed(
        "lab", "ResNet-18, one image, forward, MACs", "1.81 GMACs", "half of them", macs, f"{macs / 1e9:.3f} GMAC",
        round(macs / 1e9, 2) == 1.81,
    )  # fmt: skip


def _hardware() -> Iterator[Recomputed]:
    flops = formulas.matmul_flops(1024, 1024, 1024)
    yield Recomputed(
        "accounting", "product of two 1024×1024 matrices", "2,147,483,648", "2·1024³", flops, f"{flops:,} FLOP",
        flops == 2_147_483_648,
    )  # fmt: skip
    flops = formulas.matmul_flops(4, 4, 4)
    yield Recomputed(
        "hardware", "one 4×4×4 product-and-sum of a tensor core", "128 FLOP", "4·4·(2·4−1) + 4·4 = 2·4³", flops,
        f"{flops} FLOP", flops == 128 == 4 * 4 * (2 * 4 - 1) + 16,
    )  # fmt: skip
    for name, fma in (("fp32", 64), ("tensor cores, fp16", 512)):
        peak = 72 * fma * 2 * 1.77e9
        yield Recomputed(
            "ours", f"peak of a Turing card with 72 SMs at 1.77 GHz, {name}", "",
            f"72 SMs · {fma} FMA · 2 · 1.77 GHz", peak, f"{peak / 1e12:.1f} TFLOP/s", True,
        )  # fmt: skip


def _memory() -> Iterator[Recomputed]:
    plain = memory.training_memory(7_000_000_000, element_bytes=2).total
    mixed = memory.training_memory(7_000_000_000, element_bytes=2, master_copy=True).total
    yield Recomputed(
        "accounting", "7 B parameters in 16 bits: weights, gradients, Adam", "14 + 14 + 28 = 56 GB",
        "(2 + 2 + 4)·7·10⁹", plain, f"{plain / 1e9:.0f} GB", plain == 56e9,
        f"mixed precision with fp32 master weights and moments takes 16 bytes a parameter: {mixed / 1e9:.0f} GB",
    )  # fmt: skip
    layer = memory.key_value_cache_bytes(layers=1, key_value_heads=32, head_width=128, tokens=2048)
    yield Recomputed(
        "accounting", "KV cache of one layer, 4096 wide, 2048 tokens, fp16", "536 MB", "2·4096·2048·2 B", layer,
        f"{layer / 1e6:.1f} MB", round(layer / 1e6) == 536, "the source counts the layers in already",
    )  # fmt: skip
    whole = memory.key_value_cache_bytes(layers=32, key_value_heads=32, head_width=128, tokens=2048)
    yield Recomputed(
        "accounting", "KV cache of 32 layers", "17 GB", "32·2·4096·2048·2 B", whole,
        f"{whole / 1e9:.2f} GB ({whole / 2**30:.0f} GiB)", round(whole / 1e9) == 17,
        "the source forgets that keys and values are two, and multiplies by the layers twice",
    )  # fmt: skip


def _gpt2() -> Iterator[Recomputed]:
    config = ModelConfig(
        name="gpt2",
        _target_="mfulab.models.huggingface.build",
        arguments={"architecture": "GPT2LMHeadModel"},
        task="language_modeling",
        sequence_length=1024,
        vocabulary_size=50257,
    )  # type: ignore[call-arg]
    operations = count_model(config, 1, mode="inference").count.operations
    token = operations.sum("forward").flops / 1024
    yield Recomputed(
        "accounting", "GPT-2 small, forward, a token", "≈ 6 M FLOP", "12·(24·768² + 4·1024·768) + 2·768·50,257", token,
        f"{token:,.0f} FLOP", round(token / 1e6) == 6,
        "at 1024 tokens of context, with the output head; the source counts a part of one layer",
    )  # fmt: skip
    rate = 1e13 / token
    yield Recomputed(
        "accounting", "GPT-2 small at 10 TFLOP/s", "1.67 M tokens/s", "10¹³ ÷ FLOP a token", rate,
        f"{rate:,.0f} tokens/s", round(rate / 1e6, 2) == 1.67, "follows from the row above",
    )  # fmt: skip
    attention = operations.sum("forward", layer="transformer.h.0.attn", operator="mfulab::attention")
    full = formulas.attention_flops(1024, 768)
    yield Recomputed(
        "accounting", "attention of one layer, forward (GPT-2 small, 1024 tokens)", "4·B·S²·D", "4·1·1024²·768",
        attention.flops, f"{attention.flops:,} FLOP", attention.flops == full,
        f"{attention.causal_flops:,} when causal; the softmax adds about 3·B·H·S²: {3 * 12 * 1024**2:,}",
    )  # fmt: skip


def _number_formats() -> Iterator[Recomputed]:
    bits = struct.unpack(">I", struct.pack(">f", 1.0))[0]
    yield Recomputed(
        "lab", "the bits of 1.0 in fp32", "0x3F800000", "sign 0, exponent 127, mantissa 0", bits, f"0x{bits:X}",
        bits == 0x3F800000,
    )  # fmt: skip
    for name, dtype, exponent in (("fp32", torch.float32, 23), ("fp64", torch.float64, 52)):
        epsilon = torch.finfo(dtype).eps
        yield Recomputed(
            "lab", f"machine epsilon of {name}", f"2^-{exponent}", f"{exponent} bits of mantissa", epsilon,
            f"{epsilon:.3g}", epsilon == 2.0**-exponent, "" if exponent == 23 else f"0.1 + 0.2 = {0.1 + 0.2!r} ≠ 0.3",
        )  # fmt: skip


def _bindings() -> Iterator[Recomputed]:
    try:
        found = importlib.util.find_spec("cuda.bindings.cublas") is not None
        answer = "exists" if found else "does not exist"
    except ModuleNotFoundError:
        found, answer = False, "cuda-python is not installed"
    yield Recomputed(
        "kernels", "from cuda.bindings import cublas", "“the latest way”", "look the module up", None, answer, found,
        "the official Python bindings of cuBLAS are nvmath.bindings.cublas",
    )  # fmt: skip


def _definitions() -> Iterator[Recomputed]:
    """Statements of the material, checked against the definition or against the code."""
    gpt2 = ModelConfig.model_validate(
        {
            "name": "gpt2",
            "_target_": "mfulab.models.huggingface.build",
            "arguments": {"architecture": "GPT2LMHeadModel"},
            "task": "language_modeling",
            "sequence_length": 8,
            "vocabulary_size": 50257,
        }
    )
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in build(gpt2).parameters())
    yield Recomputed(
        "material", "GPT-2 small, parameters", "117 M", "sum over the model's tensors", parameters, f"{parameters:,}",
        round(parameters / 1e6) == 117, "the published weights have 124 M; 117 M is of the first announcement",
    )  # fmt: skip
    a100 = peak("NVIDIA A100-SXM4-80GB", "bf16")
    dense = a100.datasheet if a100 else None
    yield Recomputed(
        "material", "peak of an A100", "312 T", "datasheet: bf16 and fp16, tensor cores, dense", dense,
        f"{dense:g} TFLOP/s", dense == 312,
        "holds for bf16 and fp16: in fp32 without TF32 the same card has 19.5 TFLOP/s",
    )  # fmt: skip
    alone = memory.training_memory(7_000_000_000, element_bytes=2).total
    yield Recomputed(
        "material", "memory of each of N devices in data parallelism", "memory ÷ N",
        "each holds all weights, gradients and moments", alone, f"{alone / 1e9:.0f} GB of 7 B parameters, for any N",
        False, "only sharding (FSDP, ZeRO) divides it: data parallelism divides the batch",
    )  # fmt: skip
    layer = nn.Linear(64, 64)
    prune.l1_unstructured(layer, "weight", amount=0.5)
    rows = int((layer.weight == 0).all(dim=1).sum())
    yield Recomputed(
        "material", "prune.l1_unstructured", "structured pruning", "rows of a pruned 64×64 layer that are all zero",
        rows, f"{rows} rows", False, "it zeroes single weights, the shapes stay: no FLOP and no time is saved",
    )  # fmt: skip
    yield Recomputed(
        "material", "GPU utilization", "actual ÷ theoretical FLOPs", "definition of NVML", None,
        "share of the time in which a kernel ran", False,
        "FLOPs ÷ theoretical FLOPs is MFU: the two part in every figure",
    )  # fmt: skip
    yield Recomputed(
        "material", "FLOPs", "floating-point operations per second", "definition", None,
        "floating-point operations; FLOP/s is the rate", False, "a model has FLOPs, a device FLOP/s",
    )  # fmt: skip
    yield Recomputed(
        "material", "energy efficiency of a language model", "tokens per watt", "(tokens/s) ÷ W = tokens ÷ J", None,
        "tokens per joule", False, "a watt is a rate already: tokens/s per watt are tokens per joule",
    )  # fmt: skip
    yield Recomputed(
        "material", "the profiler's times in seconds", "µs ÷ 1,000", "1 µs = 10⁻⁶ s", 1e-6, "µs ÷ 1,000,000", False,
        "÷ 1,000 gives milliseconds: taken for seconds, a rate comes out 1,000 times too low",
    )  # fmt: skip
