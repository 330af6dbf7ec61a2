"""FLOPs of the operators that count towards MFU: products of matrices, convolutions, attention, recurrent layers.

One multiply-add is 2 FLOPs. torch's own formulas are the base; an entry here corrects or adds one. Names are those of
torch's operators, so that an operator that this version of torch does not have does no harm. Formulas read shapes
alone, so that an operator recorded in a trace is counted by them too, without torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Cost:
    """FLOPs of one call.

    Attributes:
        flops: what the mathematics of the model needs, attention counted full. MFU.
        causal_flops: the same with causal attention counted by the pairs that it attends to.
        executed_flops: what the kernel does, flash attention's recomputation included. HFU.
    """

    flops: int
    causal_flops: int
    executed_flops: int


Formula = Callable[..., int | Cost]
Shape = Sequence[int]
_F = TypeVar("_F", bound=Formula)

FORMULAS: dict[str, Formula] = {}


def register(operator: Any, formula: Formula) -> None:
    """Gives an operator a formula, in one line: `register(torch.ops.mine.product, lambda x, w: 2 * x.numel())`.

    Args:
        operator: a `torch.ops` operator, the object that `torch.library.custom_op` returns, a Triton kernel, or a name
            such as `"mine::product"`. A kernel launched by hand is invisible to torch: make it a custom operator first.
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


# ------------------------------------------------------------------------------------------------------ matrix products


@_formula("aten::mm", "aten::bmm", "aten::_int_mm", "aten::_scaled_mm", "aten::mv", "aten::dot", "aten::vdot")
def product(a: torch.Tensor, b: torch.Tensor, *args: Any, out: Any, **kwargs: Any) -> int:
    """[…, m, k]·[…, k, n], [m, k]·[k] or [k]·[k]: each element of the first meets n of the second."""
    return 2 * a.numel() * (b.shape[-1] if b.ndim > 1 else 1)


@_formula("aten::addmm", "aten::baddbmm", "aten::addmv", "aten::addbmm", "aten::_addmm_activation")
def added_product(added: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *args: Any, out: Any, **kwargs: Any) -> int:
    """The product's FLOPs; adding the first operand is not counted, as everywhere."""
    return product(a, b, out=out)


@_formula("aten::linear")
def linear(inputs: torch.Tensor, weight: torch.Tensor, *args: Any, out: Any, **kwargs: Any) -> int:
    """[…, k]·[n, k]ᵀ. Seen only where torch does not take it apart."""
    return 2 * inputs.numel() * weight.shape[0]


@_formula(
    "aten::_grouped_mm", "aten::_scaled_grouped_mm", "transformers::grouped_mm_fallback", "mfulab::grouped_product"
)
def grouped_product(a: torch.Tensor, b: torch.Tensor, *args: Any, out: Any, **kwargs: Any) -> int:
    """Each row meets one group only: a mixture of experts costs what its active experts cost.

    [rows, k]·[groups, k, n], and [m, rows]·[rows, n] for the gradient of the weights.
    """
    return 2 * a.numel() * b.shape[-1]


@_formula("transformers::grouped_mm_fallback_backward")
def grouped_product_backward(gradient: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *args: Any, out: Any) -> int:
    """Two products as large as the forward one."""
    return 2 * grouped_product(a, b, out=out)


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
    """The same where there is no transposed kind."""
    return convolution_flops(x.shape, weight.shape, out.shape, transposed=False)


@_formula("aten::convolution_backward")
def convolution_backward(gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *rest: Any, out: Any) -> int:
    """Each of the two gradients that are asked for, input and weight, costs what the forward convolution costs.

    `rest` is bias sizes, stride, padding, dilation, transposed, output padding, groups, output mask.
    """
    return sum(rest[7][:2]) * convolution_flops(x.shape, weight.shape, gradient.shape, transposed=rest[4])


# ----------------------------------------------------------------------------------------------------------- attention


def attention_pairs(queries: int, keys: int, is_causal: bool) -> float:
    """Pairs of query and key that one head of one sequence attends to.

    Causal is counted as the half, without the diagonal's other half, as FlashAttention's authors do; where there are
    fewer keys than queries, the queries beyond them see all keys (torch aligns the mask at the upper left).
    """
    if not is_causal:
        return queries * keys
    return queries**2 / 2 if queries <= keys else keys**2 / 2 + (queries - keys) * keys


def attention_cost(query: Shape, key: Shape, value: Shape, is_causal: bool, products: float, executed: float) -> Cost:
    """Cost of `products` matrix products over all pairs, of which the kernel does `executed`.

    Shapes: [batch, heads, tokens, head width]. Forward: scores and their product with the values (2). Backward: the
    gradients of the values, probabilities, queries and keys (4), to which flash attention adds the scores anew (5).
    """
    batch, heads, queries, width = query[0], prod(query[1:-2]), query[-2], (query[-1] + value[-1]) / 2
    full = attention_pairs(queries, key[-2], False) * 2 * batch * heads * width
    causal = attention_pairs(queries, key[-2], is_causal) * 2 * batch * heads * width
    return Cost(int(full * products), int(causal * products), int(full * executed))


def _attention(name: str, causal_at: int, backward: bool) -> None:
    first = 1 if backward else 0  # the gradient of the output comes first

    def formula(*args: Any, out: Any, **kwargs: Any) -> Cost:
        given: dict[Any, Any] = dict(enumerate(args)) | kwargs
        query, key, value = (
            (given[word] if word in given else given[first + place]).shape
            for place, word in enumerate(("query", "key", "value"))
        )
        causal = bool(given.get("is_causal", given.get(causal_at, False)))
        if not backward:
            return attention_cost(query, key, value, causal, products=2, executed=2)
        asked = given.get("needs_gradient") or (own and given.get(8)) or (True,) * 3
        for_query, for_key, for_value = asked
        products = (for_query or for_key) + for_query + for_key + for_value
        return attention_cost(query, key, value, causal, products=products, executed=5)

    own = name.startswith("mfulab::")
    FORMULAS[name] = formula


# Where `is_causal` stands among the arguments of each operator and of its backward.
ATTENTION_CAUSAL = {
    "mfulab::attention": (4, 7),
    "aten::_scaled_dot_product_flash_attention": (4, 11),
    "aten::_scaled_dot_product_flash_attention_for_cpu": (4, 7),
    "aten::_scaled_dot_product_efficient_attention": (6, 11),
    "aten::_scaled_dot_product_cudnn_attention": (6, 14),
    "aten::_scaled_dot_product_fused_attention_overrideable": (5, 13),
}
for _name, (_forward, _backward) in ATTENTION_CAUSAL.items():
    _attention(_name, _forward, backward=False)
    _attention(f"{_name}_backward", _backward, backward=True)


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
