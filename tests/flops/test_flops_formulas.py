"""The field's formulas against their sources' numbers and against the count."""

import pytest
import torch
from support.models import read

from mfulab.flops import formulas
from mfulab.flops.compare import compare_formulas, transformer_shape
from mfulab.flops.counter import OperatorCounter
from mfulab.flops.elementwise import OPTIMIZERS
from mfulab.flops.formulas import TransformerShape
from mfulab.flops.layers import LayerTracker
from mfulab.flops.operators import convolution_flops
from mfulab.models.counted import count_model

# nanoGPT's transformer_sizing: parameters without biases and without the table of positions.
NANOGPT = TransformerShape(
    parameters=123_551_232,
    layers=12,
    heads=12,
    head_width=64,
    width=768,
    vocabulary_size=50257,
    key_value_heads=12,
    causal=True,
)


def test_palm_formula_gives_nanogpts_number():
    assert formulas.palm_flops(NANOGPT, tokens=1024, context=1024) == 875_062_886_400


def test_megatron_formula_is_exact_for_gpt():
    counted = count_model(read("gpt2"), 1).count.operations
    flops = counted.sum("forward").flops + counted.sum("backward").flops
    found = formulas.megatron_flops(NANOGPT, tokens=1024, context=1024)
    assert found == pytest.approx(flops, rel=1e-12)


def test_shape_is_read_from_the_model():
    shape = transformer_shape(count_model(read("gpt2"), 1, 8).model)
    # Positions are left out; biases and norms are kept: that is all that differs from nanoGPT's.
    assert shape == TransformerShape(124_439_808 - 1024 * 768, 12, 12, 64, 768, 50257, 12, True)
    llama = transformer_shape(count_model(read("llama_3_1_8b"), 1, 8).model)
    assert llama == TransformerShape(
        8_030_261_248 - 128256 * 4096, 32, 32, 128, 4096, 128256, 8, True
    )
    assert not transformer_shape(count_model(read("bert_base"), 1, 8).model).causal
    assert transformer_shape(count_model(read("resnet18"), 1).model) is None


def compared(name, batch_size, length=None):
    counted = count_model(read(name), batch_size, length)
    return compare_formulas(counted.model, counted.count, batch_size, length or 1)


def test_formulas_are_compared_with_the_count():
    rows = compared("gpt2", 2, 512)
    deviations = [row["deviation_percent"] for row in rows]
    assert deviations[0] < -5  # no attention
    assert 0 < deviations[1] < 0.2  # biases and norms
    assert deviations[2] == pytest.approx(0, abs=1e-9)
    assert compared("resnet18", 1) == []


def test_palm_formula_holds_for_grouped_query_attention():
    rows = compared("llama_3_1_8b", 1, 1024)
    assert 0 < rows[1]["deviation_percent"] < 0.01


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (formulas.matmul_flops(1024, 1024, 1024), 2_147_483_648),
        (
            convolution_flops((1, 3, 32, 32), (16, 3, 3, 3), (1, 16, 32, 32), transposed=False),
            2 * 442_368,
        ),
        (
            convolution_flops((1, 32, 8, 8), (32, 1, 3, 3), (1, 32, 8, 8), transposed=False),
            2 * 9 * 32 * 64,
        ),
    ],
)
def test_small_formulas(value, expected):
    assert value == pytest.approx(expected, rel=1e-15)


def test_formats_take_their_own_time_each():
    """2 TFLOP at 4 TFLOP/s and 6 at 2: 8 in 3.5 s."""
    flops = {"bf16": 2e12, "fp32": 6e12, "fp8": 0}
    peaks = {"bf16": 4e12, "fp32": 2e12}
    assert formulas.seconds_at_peaks(flops, peaks) == 3.5
    assert formulas.weighted_peak_flop_s(flops, peaks) == 8e12 / 3.5
    unknown = {**flops, "fp8": 1}
    assert formulas.seconds_at_peaks(unknown, peaks) is None
    assert formulas.weighted_peak_flop_s(unknown, peaks) is None
    assert formulas.weighted_peak_flop_s({}, peaks) is None


@pytest.mark.parametrize(
    ("latent_width", "causal", "elements"),
    [(0, True, 4 * 2 * 3 * 5), (7, True, 4 * 7), (7, False, 0)],
)
def test_the_cache_by_hand(latent_width, causal, elements):
    shape = TransformerShape(1, 4, 6, 5, 30, 9, 3, causal, latent_width)
    assert shape.cache_elements(10) == 10 * elements


@pytest.mark.parametrize(
    ("active", "tokens", "read"), [(2, 1, 2), (2, 2, 3.5), (8, 9, 8), (1, 0, 0)]
)
def test_experts_read_by_tokens_that_are_routed_at_random(active, tokens, read):
    assert formulas.expected_experts_read(8, active, tokens) == pytest.approx(read)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_optimizer_flops_are_those_of_torchs_own_step(name):
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    model = torch.nn.Linear(50, 20, device="meta")
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    # One tensor after the other, as the formula is written; the scalar step counters are plain
    # numbers.
    optimizer = kind(model.parameters(), lr=1e-3, foreach=False)
    counter = OperatorCounter(LayerTracker(model))
    with counter:
        optimizer.step()
    arithmetic = counter.operations.sum().other_flops
    steps = 2 if name != "sgd" else 0  # each tensor's step counter is a tensor of one element
    assert not counter.operations.uncounted
    assert arithmetic - steps == OPTIMIZERS[name] * (50 * 20 + 20)


@pytest.mark.parametrize("way", ["foreach", "fused"])
@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_one_kernel_for_all_parameters_costs_what_one_for_each_does(name, way):
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    model = torch.nn.Linear(50, 20)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer = kind(model.parameters(), lr=1e-3, **{way: True})
    counter = OperatorCounter(LayerTracker(model))
    with counter:
        optimizer.step()
    assert not counter.operations.uncounted
    flops = OPTIMIZERS[name] * (50 * 20 + 20)
    assert counter.operations.sum().other_flops == pytest.approx(flops, abs=4)


def test_lists_of_tensors_cost_what_each_of_them_does():
    tensors = [torch.ones(3, 2), torch.ones(4)]
    for call, each in (
        (lambda: torch._foreach_add(tensors, tensors), 1),
        (lambda: torch._foreach_add(tensors, tensors, alpha=0.5), 2),
        (lambda: torch._foreach_zero_(tensors), 0),
    ):
        counter = OperatorCounter(LayerTracker(torch.nn.ModuleDict()))
        with counter:
            call()
        assert counter.operations.sum().other_flops == each * 10
        assert not counter.operations.uncounted
