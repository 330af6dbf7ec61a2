"""Bytes that recorded operators move, against the sizes of real tensors in and out."""

import pytest
import torch
from torch.nn import functional

from mfulab.core.said import Said
from mfulab.flops.traced import is_traced_matmul, traced_cost, traced_format

A, B, C = torch.randn(6, 5), torch.randn(5, 7), torch.randn(7)
Q, K, V = torch.randn(2, 3, 11, 8), torch.randn(2, 3, 13, 8), torch.randn(2, 3, 13, 4)
X, W = torch.randn(2, 4, 9, 9), torch.randn(6, 4, 3, 3)
# operator: (inputs, values of its arguments, what it gives, what of its inputs is an operand)
CALLS = {
    "aten::mm": ((A, B), (), A @ B, (A, B)),
    "aten::addmm": ((C, A, B), (), torch.addmm(C, A, B), (A, B)),
    "aten::bmm": ((Q[0], K[0].mT), (), Q[0] @ K[0].mT, (Q[0], K[0])),
    "aten::_scaled_dot_product_flash_attention": (
        (Q, K, V), (), functional.scaled_dot_product_attention(Q, K, V), (Q, K, V)
    ),
    "aten::convolution": (
        (X, W, None), ("", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"),
        functional.conv2d(X, W, stride=2, padding=1), (X, W),
    ),
    "aten::mkldnn_convolution": (
        (X, W, None), ("", "", "", "[1, 1]", "[2, 2]", "[1, 1]", "1"),
        functional.conv2d(X, W, stride=2, padding=1), (X, W),
    ),
    "aten::cudnn_convolution": (
        (X, W), ("", "", "[1, 1]", "[2, 2]", "[1, 1]", "1", "False", "False", "True"),
        functional.conv2d(X, W, stride=2, padding=1), (X, W),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_operands_and_results_count_once_each(name):
    inputs, values, result, operands = CALLS[name]
    shapes = [list(one.shape) if one is not None else [] for one in inputs]
    shapes += [[]] * (len(values) - len(shapes))
    recorded = traced_cost(name, shapes, values)
    assert recorded.reason is None
    assert recorded.elements == sum(one.numel() for one in (*operands, result))


def test_gradients_of_attention_and_convolution_are_results():
    name = "aten::_scaled_dot_product_flash_attention_backward"
    gradient = [*Q.shape[:-1], V.shape[-1]]
    recorded = traced_cost(name, [gradient, *(list(one.shape) for one in (Q, K, V))], ())
    numbers = [one.numel() for one in (Q, K, V)]
    assert recorded.elements == 2 * sum(numbers) + torch.Size(gradient).numel()
    values = [
        "",
        "",
        "",
        "[0]",
        "[2, 2]",
        "[1, 1]",
        "[1, 1]",
        "False",
        "[0, 0]",
        "1",
        "[False, True, True]",
    ]
    out = functional.conv2d(X, W, stride=2, padding=1)
    shapes = [list(out.shape), list(X.shape), list(W.shape), *[[]] * 8]
    recorded = traced_cost("aten::convolution_backward", shapes, values)
    assert recorded.elements == out.numel() + X.numel() + 2 * W.numel(), (
        "no gradient of the first layer's input"
    )


def test_what_inductor_adds_to_a_product_is_not_its_weight():
    linear = traced_cost(
        "mkldnn::_linear_pointwise", [[32, 128], [32, 64], [64, 128], [64], []], ()
    )
    assert linear.matmul == (1, 32, 64, 128)
    shapes = [[2, 8, 16, 16], [2, 6, 16, 16], [6, 8, 3, 3], [6], *[[]] * 8]
    values = ["", "", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", "add", "", "", ""]
    convolution = traced_cost("mkldnn::_convolution_pointwise", shapes, values)
    assert convolution.cost is not None
    assert convolution.cost.flops == 2 * (2 * 6 * 16 * 16) * 8 * 9
    alone = traced_cost(
        "mkldnn::_convolution_pointwise", [shapes[0], *shapes[2:]], [values[0], *values[2:]]
    )
    assert alone == convolution


def test_what_a_record_does_not_tell_is_empty_with_its_reason():
    assert traced_cost("aten::mm", [], ()).reason == Said("no_shapes")
    found = traced_cost("aten::convolution", [list(X.shape), list(W.shape), *[[]] * 7], ()).reason
    assert found == Said("no_argument_values")
    assert traced_cost("aten::dot", [[4], [4]], ()).elements is None


def of_shapes(name, *shapes, values=(), types=()):
    return traced_cost(name, list(map(list, shapes)), values, types)


@pytest.mark.parametrize(
    ("name", "shapes", "matmul"),
    [
        ("aten::mm", [(6, 5), (5, 7)], (1, 6, 7, 5)),
        ("aten::addmm", [(7,), (6, 5), (5, 7)], (1, 6, 7, 5)),
        ("aten::bmm", [(3, 6, 5), (3, 5, 7)], (3, 6, 7, 5)),
        ("aten::baddbmm", [(3, 6, 7), (3, 6, 5), (3, 5, 7)], (3, 6, 7, 5)),
        ("aten::linear", [(2, 3, 5), (7, 5), (7,)], (1, 6, 7, 5)),
        ("aten::linear", [(2, 3, 5), (5,)], (1, 6, 1, 5)),
        ("triton_tem_fused_mm_0", [(6, 5), (5, 7), (7,), (6, 7)], (1, 6, 7, 5)),
        ("triton_tem_fused_mm_0", [(3, 6, 7), (3, 5, 7), (3, 6, 5)], (3, 6, 7, 5)),
        ("triton_tem_fused_mm_0", [(5, 5), (5, 5), (5, 5)], (1, 5, 5, 5)),
    ],
)
def test_sides_of_a_matmul_are_read_from_its_shapes(name, shapes, matmul):
    recorded = of_shapes(name, *shapes)
    batch, m, n, k = matmul
    assert recorded.matmul == matmul
    assert recorded.cost.flops == 2 * batch * m * n * k
    assert recorded.elements == batch * (m * k + k * n + m * n)


@pytest.mark.parametrize(
    ("name", "shapes", "reason"),
    [
        ("aten::mm", [(6, 5), (6, 7)], "no_formula_for"),
        ("aten::linear", [(2, 3, 5), (7, 6), (7,)], "no_formula_for"),
        ("aten::linear", [(2, 3, 5), (7, 5), (7,), (9, 9)], "no_formula_for"),
        ("triton_tem_fused_mm_0", [(2, 4), (4, 2), (2, 2), (4, 2)], "ambiguous_template"),
        ("triton_tem_fused_mm_0", [(3, 6, 5), (2, 5, 7), (3, 6, 7)], "ambiguous_template"),
        ("triton_tem_fused_mm_0", [(6,), (5, 7), (6, 7)], "ambiguous_template"),
    ],
)
def test_shapes_that_do_not_fit_tell_no_matmul(name, shapes, reason):
    recorded = of_shapes(name, *shapes)
    assert (recorded.cost, recorded.reason.key) == (None, reason)


@pytest.mark.parametrize("is_causal", [True, False])
def test_attention_tells_its_tokens_width_and_mask(is_causal):
    name = "aten::_scaled_dot_product_flash_attention"
    values = ["", "", "", "0.0", str(is_causal)]
    recorded = of_shapes(name, Q.shape, K.shape, V.shape, (), (), values=values)
    assert recorded.attention == (11, 13, 8, is_causal)
    name = "aten::_scaled_dot_product_efficient_attention"
    masked = of_shapes(name, Q.shape, K.shape, V.shape, (2, 3, 11, 13))
    assert masked.attention is None


@pytest.mark.parametrize(
    ("weight", "transposed", "convolution"),
    [((6, 4, 3, 3), False, (50, 4, 6, 9)), ((6, 2, 3, 3), False, None), ((4, 6, 3, 3), True, None)],
)
def test_a_convolution_of_all_channels_is_a_matmul(weight, transposed, convolution):
    values = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", str(transposed), "[0, 0]", "1"]
    recorded = of_shapes("aten::convolution", X.shape, weight, *[()] * 7, values=values)
    assert recorded.convolution == convolution
    assert (recorded.elements is None) == transposed


@pytest.mark.parametrize(
    ("types", "form"),
    [
        (["float", "float"], "fp32"),
        (["float", "c10::BFloat16"], "bf16"),
        (["c10::Float8_e5m2", "c10::Half"], "fp8"),
        (["long int", ""], None),
    ],
)
def test_the_narrower_type_is_the_format(types, form):
    assert traced_format(types) == form


def test_what_only_calls_another_product_is_none():
    names = ("aten::matmul", "aten::mm", "aten::relu", "triton_tem_fused_mm_0", "triton_poi_0")
    assert [is_traced_matmul(name) for name in names] == [False, True, False, True, False]
