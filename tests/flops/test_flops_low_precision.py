"""Small formats, quantised and sparse weights, adapters: what is multiplied, and at what cost."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import ScalingType as scaling  # noqa: N813

from mfulab.device.compute import allowed_precision
from mfulab.flops.count import count
from mfulab.flops.counter import Operations, OperatorCounter
from mfulab.flops.formulas import weighted_peak_flop_s
from mfulab.flops.layers import LayerTracker
from mfulab.flops.operators import FORMULAS

ROWS, WIDTH, OUT = 32, 64, 48
ONE = 2 * ROWS * WIDTH * OUT


def counted(model: nn.Module, step) -> Operations:
    with OperatorCounter(LayerTracker(model), memory=False) as counter:
        step()
    return counter.operations


class ScaledProduct(torch.autograd.Function):
    """FP8 training with a scale a tensor: both operands and the gradient are cast, three products
    in 8 bits."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return scaled(x, weight.t(), torch.float8_e4m3fn)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return scaled(gradient, weight, torch.float8_e5m2), scaled(
            gradient.t(), x, torch.float8_e5m2
        )


def scaled(a, b, dtype):
    one = torch.ones((), device=a.device)
    second = b.to(torch.float8_e4m3fn).t().contiguous().t()
    return torch._scaled_mm(a.contiguous().to(dtype), second, one, one, out_dtype=torch.bfloat16)


def test_fp8_training_multiplies_in_8_bits_and_the_rest_in_16():
    with torch.device("meta"):
        x = torch.randn(ROWS, WIDTH, dtype=torch.bfloat16, requires_grad=True)
        weight = nn.Parameter(torch.randn(OUT, WIDTH, dtype=torch.bfloat16))
        head = nn.Linear(OUT, 16, dtype=torch.bfloat16)
        operations = counted(head, lambda: head(ScaledProduct.apply(x, weight)).sum().backward())
    small = 2 * ROWS * OUT * 16
    assert operations.by_format() == {
        (torch.bfloat16, False): 3 * small,
        (torch.float8_e4m3fn, False): ONE,
        (torch.float8_e5m2, False): 2 * ONE,
    }
    assert not operations.uncounted


positive = st.floats(1, 1e6)


@given(
    st.dictionaries(st.sampled_from(["fp8", "bf16", "fp32"]), positive, min_size=1),
    positive,
    positive,
    positive,
)
def test_the_weighted_peak_lies_between_the_peaks_in_use(flops, fp8, bf16, fp32):
    peaks = {"fp8": fp8, "bf16": bf16, "fp32": fp32}
    peak = weighted_peak_flop_s(flops, peaks)
    used = [peaks[name] for name in flops]
    assert min(used) * (1 - 1e-9) <= peak <= max(used) * (1 + 1e-9)


def test_the_weighted_peak_by_hand():
    # Half a second for each half.
    assert weighted_peak_flop_s({"fp8": 2, "bf16": 1}, {"fp8": 4, "bf16": 2}) == 3
    assert weighted_peak_flop_s({"fp8": 2, "bf16": 0}, {"fp8": 4}) == 4
    assert weighted_peak_flop_s({"fp8": 2}, {"bf16": 2}) is None
    assert weighted_peak_flop_s({}, {}) is None


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_frozen_model_with_adapters_has_no_weight_gradients_of_its_own(checkpointed):
    """LoRA: 4 of the 6 FLOPs a weight and token, and the adapters' own 6."""

    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen = nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(False)
            self.down, self.up = nn.Linear(WIDTH, 4, bias=False), nn.Linear(4, WIDTH, bias=False)

        def forward(self, x):
            return self.frozen(x) + self.up(self.down(x))

    with torch.device("meta"):
        model = nn.Sequential(*[Adapted() for _ in range(3)])
        x = torch.randn(ROWS, WIDTH, requires_grad=checkpointed)
    frozen, adapter = 2 * ROWS * WIDTH**2, 2 * 2 * ROWS * WIDTH * 4

    def step():
        if not checkpointed:
            return model(x).sum()
        return torch.utils.checkpoint.checkpoint(model, x, use_reentrant=True).sum()

    operations = count(model, step).operations
    forward, backward = operations.sum("forward").flops, operations.sum("backward").flops
    assert forward == 3 * (frozen + adapter)
    # The first layer's input needs no gradient, unless it is a checkpoint's.
    into_first = frozen + adapter // 2
    assert backward == 3 * (frozen + 2 * adapter) - (0 if checkpointed else into_first)
    assert operations.sum("recomputed").flops == (forward if checkpointed else 0)


def test_weights_in_8_bits_and_packed_ones_cost_what_they_multiply():
    x = torch.randn(ROWS, WIDTH)
    model = torch.ao.quantization.quantize_dynamic(
        nn.Sequential(nn.Linear(WIDTH, OUT)), {nn.Linear}
    )
    operations = counted(nn.Identity(), lambda: model(x))
    assert operations.sum().flops == ONE
    weight = torch.randint(-9, 9, (OUT, WIDTH), dtype=torch.int8)
    scales = torch.ones(OUT, dtype=torch.bfloat16)
    operations = counted(
        nn.Identity(), lambda: torch._weight_int8pack_mm(x.bfloat16(), weight, scales)
    )
    assert operations.by_format() == {(torch.bfloat16, False): ONE}
    assert not operations.uncounted


def test_fp8_with_a_scale_a_block_costs_what_one_with_a_scale_a_tensor_does():
    """DeepSeek-V3's recipe: a scale for 128 values of a row of the activations, and for 128 × 128
    of the weight."""
    rows, width, out = 256, 512, 384
    with torch.device("meta"):
        a = torch.empty(rows, width, dtype=torch.float8_e4m3fn)
        b = torch.empty(out, width, dtype=torch.float8_e4m3fn).t()
        scales = torch.empty(width // 128, rows).t(), torch.empty(out // 128, width // 128).t()
        recipes = scaling.BlockWise1x128, scaling.BlockWise128x128

        def by_function():
            torch.nn.functional.scaled_mm(
                a, b, scales[0], recipes[0], scales[1], recipes[1], output_dtype=torch.bfloat16
            )

        def by_operator():
            torch._scaled_mm(a, b, *scales, out_dtype=torch.bfloat16)

        for product in (by_function, by_operator):
            operations = counted(nn.Identity(), product)
            assert operations.by_format() == {(torch.float8_e4m3fn, False): 2 * rows * width * out}
            assert not operations.uncounted
    found = allowed_precision(torch.float8_e5m2, torch.device("cpu"), False)
    assert found == "fp8", "gradients have another range"


def test_packed_weights_of_other_libraries_by_their_operators():
    """bitsandbytes' own operator for 4-bit weights: rows, packed weight, → rows; the library need
    not be installed."""
    x, out = torch.empty(ROWS, WIDTH), torch.empty(ROWS, OUT)
    packed = torch.empty(OUT * WIDTH // 2, 1, dtype=torch.uint8)
    for name in (
        "bitsandbytes::gemm_4bit",
        "bitsandbytes::gemv_4bit",
        "bitsandbytes::int8_linear_matmul",
    ):
        assert FORMULAS[name](x, packed, [OUT, WIDTH], out=out) == ONE


def test_two_of_four_weights_are_half_of_them():
    values, indices = torch.empty(OUT, WIDTH // 2), torch.empty(OUT, WIDTH // 16)
    dense = torch.empty(WIDTH, ROWS)
    half, out = ONE // 2, torch.empty(OUT, ROWS)
    assert FORMULAS["aten::_sparse_semi_structured_mm"](values, indices, dense, out=out) == half
    bias = torch.empty(OUT)
    found = FORMULAS["aten::_sparse_semi_structured_addmm"](bias, values, indices, dense, out=out)
    assert found == half
    x = torch.empty(2, ROWS // 2, WIDTH)
    assert FORMULAS["aten::_sparse_semi_structured_linear"](x, values, indices, out=out) == half
    assert FORMULAS["aten::_cslt_sparse_mm"](torch.empty(OUT, 36), dense, out=out) == half


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_complex_products_are_four_real_ones(device):
    z = torch.randn(3, 4, dtype=torch.complex64, device=device)
    assert counted(nn.Identity(), lambda: z @ z.mT).sum().flops == 4 * 2 * 3 * 4 * 3


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo])
def test_sparse_products_cost_what_is_stored(layout):
    sparse = torch.eye(8).to_sparse(layout=layout)
    assert counted(nn.Identity(), lambda: sparse @ torch.randn(8, 5)).sum().flops == 2 * 8 * 5


def test_fourier_transforms_are_told_from_products():
    operations = counted(
        nn.Identity(), lambda: torch.fft.fft(torch.randn(4, 64, dtype=torch.complex64))
    )
    assert (operations.sum().flops, operations.sum().other_flops) == (0, 5 * 4 * 64 * 6)
    assert not operations.uncounted
