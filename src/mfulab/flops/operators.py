"""FLOPs of the operators that count towards MFU: matmuls, convolutions, attention, recurrent layers.

One multiply-add is 2 FLOPs. torch's own formulas are the base; an entry here corrects or adds one. Names are those of
torch's operators, so that an operator that this version of torch does not have does no harm. Formulas read shapes
alone, so that an operator recorded in a trace is counted by them too, without torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

from mfulab.flops.attention import SIGNATURES, VARIABLE_SIGNATURES, bind, sdpa_cost, variable_cost
from mfulab.flops.cost import Cost

if TYPE_CHECKING:
    import torch


Formula = Callable[..., int | Cost]
Shape = Sequence[int]
_F = TypeVar("_F", bound=Formula)

FORMULAS: dict[str, Formula] = {}


def register(operator: Any, formula: Formula) -> None:
    """Gives an operator a formula, in one line: `register(torch.ops.mine.matmul, lambda x, w: 2 * x.numel())`.

    Args:
        operator: a `torch.ops` operator, the object that `torch.library.custom_op` returns, a Triton kernel, or a name
            such as `"mine::matmul"`. A kernel launched by hand is invisible to torch: make it a custom operator first.
        formula: takes the operator's arguments, and its result as `out` where it has a parameter of that name; returns
            FLOPs, or a Cost where causal or executed FLOPs differ.

    A later registration replaces an earlier one, torch's own included.
    """
    FORMULAS[operator_name(operator)] = formula if "out" in inspect.signature(formula).parameters else _no_out(formula)


def operator_name(operator: Any) -> str:
    """The name that an operator goes by in counts: `aten::mm`, or a Triton kernel's function name."""
    if isinstance(operator, str):
        return operator
    operator = getattr(operator, "_opoverload", operator)
    if schema := getattr(operator, "_schema", None):
        return str(schema.name)
    name = getattr(operator, "_qualified_op_name", None) or getattr(operator, "__name__", None)
    if not isinstance(name, str):
        raise TypeError(f"{operator!r} is no operator: give torch.ops.<namespace>.<name> or its name as text")
    return name


def _no_out(formula: Formula) -> Formula:
    return lambda *args, out, **kwargs: formula(*args, **kwargs)


def _formula(*names: str) -> Callable[[_F], _F]:
    def add(formula: _F) -> _F:
        for name in names:
            FORMULAS[name] = formula
        return formula

    return add


# ------------------------------------------------------------------------------------------------------------- matmuls


@_formula("aten::mm", "aten::_int_mm", "aten::_scaled_mm", "aten::_scaled_mm_v2", "aten::mv", "aten::dot", "aten::vdot")
def product(a: torch.Tensor, b: torch.Tensor, *args: Any, out: Any, **kwargs: Any) -> int:
    """[…, m, k]·[…, k, n], [m, k]·[k] or [k]·[k]: each element of the first meets n of the second.

    A sparse operand has as many elements as it stores. A complex multiply-add is four real ones.
    """
    real = 4 if _is_complex(a) else 1
    if _is_sparse(b) and not _is_sparse(a):
        return 2 * real * a.shape[-2] * _stored(b)
    return 2 * real * _stored(a) * (b.shape[-1] if b.ndim > 1 else 1)


def _is_complex(tensor: Any) -> bool:
    asked = getattr(tensor, "is_complex", None)
    return bool(asked and asked())


def _is_sparse(tensor: Any) -> bool:
    return "sparse" in str(getattr(tensor, "layout", ""))


def _stored(tensor: Any) -> int:
    if not _is_sparse(tensor):
        return int(tensor.numel())
    return int((tensor._values() if tensor.is_sparse else tensor.values()).numel())


@_formula("aten::bmm")
def batched_product(a: torch.Tensor, b: torch.Tensor, *args: Any, out: Any, **kwargs: Any) -> int | Cost:
    """As `product`. Squares of tokens by tokens, which eager attention makes and takes, grow with pairs of tokens.

    Those of a chunk, or of a head's width in linear attention, look the same: `Cost.side` tells them apart.
    """
    flops = product(a, b, out=out)
    sizes = sorted((a.shape[-2], a.shape[-1], b.shape[-1]))
    if sizes[1] > 1 and sizes[1] in (sizes[0], sizes[2]):
        return Cost(flops, flops, flops, attention_flops=flops, rectangle_flops=flops, side=sizes[1])
    return flops


@_formula("aten::baddbmm", "aten::baddbmm_")
def added_batched_product(
    added: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *args: Any, out: Any, **kwargs: Any
) -> int | Cost:
    """As `batched_product`."""
    return batched_product(a, b, out=out)


@_formula(
    "aten::addmm", "aten::addmm_", "aten::addmv", "aten::addmv_", "aten::addbmm", "aten::addbmm_",
    "aten::_addmm_activation", "aten::_sparse_addmm",
)  # fmt: skip
def added_product(added: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *args: Any, out: Any, **kwargs: Any) -> int:
    """The product's FLOPs; adding the first operand is not counted, as everywhere."""
    return product(a, b, out=out)


@_formula("aten::_trilinear")
def trilinear(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, *rest: Sequence[int], out: Any, **kwargs: Any) -> int:
    """Bilinear's product of three factors and each of its gradients: of the first two, then of that with the third.

    `rest` is the dimensions of size 1 that each factor is given, and those that are summed over.
    """
    *added, summed = (set(dimensions) for dimensions in rest[:4])
    sizes: dict[int, int] = {}
    for factor, missing in zip((a, b, c), added, strict=True):
        own = sorted(set(range(factor.ndim + len(missing))) - missing)
        sizes |= dict(zip(own, factor.shape, strict=True))
    pair = set(sizes) - (added[0] & added[1])
    left = pair - (summed & added[2])
    return 2 * prod(sizes[each] for each in pair) + 2 * prod(sizes[each] for each in left | set(sizes) - added[2])


@_formula("aten::_euclidean_dist")
def distances(a: torch.Tensor, b: torch.Tensor, *args: Any, out: Any, **kwargs: Any) -> Cost:
    """[…, n, k] to […, m, k] by -2·a·bᵀ; the kernel multiplies k + 2 columns, which adds both squares."""
    flops = 2 * a.numel() * b.shape[-2]
    return Cost(flops, flops, flops + 4 * a.numel() // a.shape[-1] * b.shape[-2])


@_formula("aten::_sparse_mm")
def sparse_product(a: torch.Tensor, b: torch.Tensor, *args: Any, out: Any, **kwargs: Any) -> int:
    """As `product`."""
    return product(a, b, out=out)


@_formula("aten::_sparse_semi_structured_mm", "aten::_sparse_semi_structured_addmm")
def semi_structured_product(*args: Any, out: Any, **kwargs: Any) -> int:
    """2:4 sparse: of each four values two are stored, and multiplied."""
    values, dense = next((a, args[at + 2]) for at, a in enumerate(args) if a.ndim == 2)
    return 2 * values.numel() * dense.shape[-1]


@_formula("aten::_sparse_semi_structured_linear")
def semi_structured_linear(inputs: torch.Tensor, weight: torch.Tensor, *args: Any, out: Any, **kwargs: Any) -> int:
    """As `linear`, of half the weight."""
    return 2 * inputs.numel() // inputs.shape[-1] * weight.numel()


@_formula("aten::_cslt_sparse_mm")
def compressed_product(values: torch.Tensor, dense: torch.Tensor, *args: Any, out: Any, **kwargs: Any) -> int:
    """2:4 sparse by cuSPARSELt, whose compressed operand holds its own indices: half of [m, k]·[k, n]."""
    return dense.shape[0] * out.numel()


@_formula(
    "aten::_weight_int8pack_mm", "aten::_weight_int4pack_mm", "aten::_weight_int4pack_mm_for_cpu",
    "aten::_dyn_quant_matmul_4bit", "aten::_wrapped_quantized_linear_prepacked", "quantized::linear",
    "quantized::linear_relu", "quantized::linear_dynamic", "onednn::qlinear_pointwise", "bitsandbytes::gemv_4bit",
    "bitsandbytes::gemm_4bit", "bitsandbytes::int8_linear_matmul", "bitsandbytes::int8_mixed_scaled_mm",
)  # fmt: skip
def packed_linear(inputs: torch.Tensor, *args: Any, out: Any, **kwargs: Any) -> int:
    """A linear layer whose weight is packed in a layout of its own: each input value meets every output."""
    return 2 * inputs.numel() * out.shape[-1]


@_formula("aten::matmul")
def nested_product(a: torch.Tensor, b: torch.Tensor, *args: Any, out: Any, **kwargs: Any) -> int:
    """Nested tensors, whose sequences differ in length; all others are taken apart before."""
    if not b.is_nested:
        return 2 * a.numel() * b.shape[-1]
    return sum(2 * prod(one) * other[-1] for one, other in zip(_sizes(a), _sizes(b), strict=True))


@_formula("aten::matmul_backward")
def nested_product_backward(
    gradient: torch.Tensor, a: torch.Tensor, b: torch.Tensor, mask: Sequence[bool], *args: Any, out: Any
) -> int:
    """Each gradient that is asked for costs what the forward matmul costs."""
    return sum(mask) * nested_product(a, b, out=out)


@_formula("aten::linear_backward")
def linear_backward(
    inputs: torch.Tensor, gradient: torch.Tensor, weight: torch.Tensor, mask: Sequence[bool], *args: Any, out: Any
) -> int:
    """Gradients of inputs and weight, as asked for."""
    return sum(mask[:2]) * linear(inputs, weight, out=out)


def _sizes(nested: Any) -> list[list[int]]:
    return nested._nested_tensor_size().tolist()


@_formula("aten::linear")
def linear(inputs: torch.Tensor, weight: torch.Tensor, *args: Any, out: Any, **kwargs: Any) -> int:
    """[…, k]·[n, k]ᵀ. Seen only where torch does not take it apart."""
    return 2 * inputs.numel() * weight.shape[0]


@_formula(
    "aten::_grouped_mm", "aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2", "transformers::grouped_mm_fallback",
    "mfulab::grouped_product",
)  # fmt: skip
def grouped_product(a: torch.Tensor, b: torch.Tensor, *args: Any, out: Any, **kwargs: Any) -> int:
    """Each row meets one group only: a mixture of experts costs what its active experts cost.

    [rows, k]·[groups, k, n], and [m, rows]·[rows, n] for the gradient of the weights.
    """
    return 2 * a.numel() * b.shape[-1]


@_formula("transformers::grouped_mm_fallback_backward")
def grouped_product_backward(gradient: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *args: Any, out: Any) -> int:
    """Two matmuls as large as the forward one."""
    return 2 * grouped_product(a, b, out=out)


# Golub and Van Loan, Matrix Computations, 4th edition: operations of each method for matrices of n rows.


@_formula("aten::linalg_solve_triangular", "aten::triangular_solve")
def triangular_solution(a: torch.Tensor, b: torch.Tensor, *args: Any, out: Any, **kwargs: Any) -> int:
    """n² for each column of the right side."""
    return max(a.shape[-1], b.shape[-2]) * b.numel()


@_formula("aten::linalg_cholesky_ex")
def cholesky(a: torch.Tensor, *args: Any, out: Any, **kwargs: Any) -> int:
    """n³/3."""
    return a.numel() * a.shape[-1] // 3


@_formula("aten::linalg_lu_factor_ex")
def lu_factors(a: torch.Tensor, *args: Any, out: Any, **kwargs: Any) -> int:
    """2n³/3."""
    return 2 * a.numel() * a.shape[-1] // 3


@_formula("aten::_linalg_solve_ex")
def solution(a: torch.Tensor, b: torch.Tensor, *args: Any, out: Any, **kwargs: Any) -> int:
    """2n³/3 for the factors and 2n² for each column."""
    return lu_factors(a, out=out) + 2 * a.shape[-1] * b.numel()


@_formula("aten::linalg_inv_ex")
def inverse(a: torch.Tensor, *args: Any, out: Any, **kwargs: Any) -> int:
    """2n³."""
    return 2 * a.numel() * a.shape[-1]


# --------------------------------------------------------------------------------------------------------- convolution


def convolution_flops(input_shape: Shape, weight_shape: Shape, output_shape: Shape, transposed: bool) -> int:
    """FLOPs of a convolution, grouped and depthwise ones included.

    A weight [out channels, in channels ÷ groups, *kernel] costs each output element its own slice; a transposed one's
    weight [in channels, out channels ÷ groups, *kernel] costs each input element its slice.
    """
    return 2 * prod(input_shape if transposed else output_shape) * prod(weight_shape[1:])


@_formula("aten::convolution", "aten::_convolution", "aten::convolution_overrideable")
def convolution(x: torch.Tensor, weight: torch.Tensor, *rest: Any, out: Any, **kwargs: Any) -> int:
    """As `convolution_flops`; `rest` is bias, stride, padding, dilation, transposed, …"""
    return convolution_flops(x.shape, weight.shape, out.shape, transposed=rest[4])


@_formula("aten::cudnn_convolution", "aten::mkldnn_convolution", "aten::_conv_depthwise2d")
def plain_convolution(x: torch.Tensor, weight: torch.Tensor, *rest: Any, out: Any, **kwargs: Any) -> int:
    """The same without a transposed kind."""
    return convolution_flops(x.shape, weight.shape, out.shape, transposed=False)


@_formula("aten::convolution_backward")
def convolution_backward(gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *rest: Any, out: Any) -> int:
    """Each of the two gradients that are asked for, input and weight, costs what the forward convolution costs.

    `rest` is bias sizes, stride, padding, dilation, transposed, output padding, groups, output mask.
    """
    return sum(rest[7][:2]) * convolution_flops(x.shape, weight.shape, gradient.shape, transposed=rest[4])


# ----------------------------------------------------------------------------------------------------------- attention


def _attention(name: str, signature: str, cost: Callable[[dict[str, Any], bool], Cost]) -> None:
    def formula(*args: Any, out: Any, **kwargs: Any) -> Cost:
        return cost(bind(signature, args, kwargs), name.endswith("_backward"))

    FORMULAS[name] = formula


for _name, _signature in SIGNATURES.items():
    _attention(_name, _signature, sdpa_cost)
for _name, _signature in VARIABLE_SIGNATURES.items():
    _attention(_name, _signature, variable_cost)


# ---------------------------------------------------------------------------------------------- recurrent, fused layers


def _recurrent(inputs: torch.Tensor, weights: Sequence[torch.Tensor]) -> int:
    """Each token meets each weight matrix once; [steps, batch, width], or [tokens, width] where packed."""
    return 2 * inputs.numel() // inputs.shape[-1] * sum(weight.numel() for weight in weights if weight.ndim == 2)


def _matrix_elements(arguments: Sequence[Any]) -> int:
    return sum(tensor.numel() for tensor in arguments if getattr(tensor, "ndim", None) == 2)


@_formula("aten::mkldnn_rnn_layer")
def mkldnn_recurrent(inputs: torch.Tensor, *args: Any, out: Any, **kwargs: Any) -> int:
    """One layer of an LSTM or GRU on a CPU; weights from the input and from the state."""
    return _recurrent(inputs, args[:2])


@_formula("aten::mkldnn_rnn_layer_backward")
def mkldnn_recurrent_backward(inputs: torch.Tensor, *args: Any, out: Any, **kwargs: Any) -> int:
    """Gradients of inputs and weights: twice the forward."""
    return 2 * _recurrent(inputs, args[:2])


@_formula("aten::_cudnn_rnn", "aten::miopen_rnn")
def cudnn_recurrent(inputs: torch.Tensor, weights: Sequence[torch.Tensor], *args: Any, out: Any, **kwargs: Any) -> int:
    """All layers and directions of an LSTM, GRU or plain recurrent network on a GPU."""
    return _recurrent(inputs, weights)


@_formula("aten::_cudnn_rnn_backward", "aten::miopen_rnn_backward")
def cudnn_recurrent_backward(
    inputs: torch.Tensor, weights: Sequence[torch.Tensor], *args: Any, out: Any, **kwargs: Any
) -> int:
    """Gradients of inputs and weights: twice the forward."""
    return 2 * _recurrent(inputs, weights)


@_formula("aten::_transformer_encoder_layer_fwd")
def encoder_layer(src: torch.Tensor, embed_dim: int, num_heads: int, *args: Any, out: Any, **kwargs: Any) -> int:
    """TransformerEncoderLayer's fused inference path: every weight matrix for every token, and full attention."""
    batch, tokens, width = src.shape
    weights = _matrix_elements(args)
    return 2 * batch * tokens * weights + 4 * batch * tokens**2 * width


@_formula("aten::_native_multi_head_attention")
def multi_head_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, embed_dim: int, *rest: Any, out: Any, **kwargs: Any
) -> int:
    """MultiheadAttention's fused inference path: the projections of all inputs and of the output, and attention."""
    tokens = query.shape[0] * query.shape[1]
    weights = _matrix_elements(rest[:5])
    return 2 * tokens * weights + 4 * tokens * key.shape[1] * embed_dim
