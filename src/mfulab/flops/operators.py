"""FLOPs of operators that count towards MFU: matmuls, convolutions, attention and recurrent layers.
A multiply-add is 2 FLOPs. Entries here correct torch's own formulas or add to them. Operators are
given by name, so one that this version of torch lacks does no harm. Formulas read only shapes, so
they also count operators recorded in a trace, without torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Protocol

from mfulab.flops.attention import SIGNATURES, VARIABLE_SIGNATURES, bind, sdpa_cost, variable_cost
from mfulab.flops.cost import Cost
from mfulab.flops.registry import registered_formula

Formula = Callable[..., int | Cost | None]
Shape = Sequence[int]


class Sides(Protocol):
    """Operand of a formula: a tensor, or a shape from a trace."""

    @property
    def shape(self) -> Shape:
        """Size of each dimension."""

    @property
    def ndim(self) -> int:
        """Number of dimensions."""

    def numel(self) -> int:
        """Number of elements."""


# Beginnings of names that are in no file of formulas, so that files need not be read for them:
# torch's own operators and ranges, and fused kernels of torch.compile.
_OF_TORCH = (
    "aten::",
    "autograd::",
    "torch::",
    "c10d::",
    "profiler::",
    "prims::",
    "prim::",
    "nccl:",
    "ProfilerStep#",
    "Optimizer.",
    "enumerate(",
    "## Call ",
    "triton_poi_",
    "triton_red_",
    "triton_per_",
    "triton_tem_",
    "xla::",
    "nn.Module: ",
    "mfulab::",
    "mfulab ",
)


def register(operator: object, formula: Formula) -> None:
    """Registers a formula for an operator, in place of any other: `register(torch.ops.mine.matmul,
    lambda x, w: 2 * x.numel())`. `operator` is a member of `torch.ops`, a
    `torch.library.custom_op`, a Triton kernel, or a name such as `"mine::matmul"`. A Triton kernel
    must be a custom operator, as torch does not see one that is launched directly. The formula gets
    the call's arguments, and its result as `out` if it has such a parameter. It returns FLOPs or a
    Cost."""
    name = operator_name(operator)
    if "out" in inspect.signature(formula).parameters:
        FORMULAS[name] = formula
    else:
        FORMULAS[name] = lambda *args, out, **kwargs: formula(*args, **kwargs)


def formula_of(name: str) -> Formula | None:
    """Returns an operator's formula by name: registered, of this module, or else from a file. None
    if there is none."""
    formula = FORMULAS.get(name)
    if formula is None and not name.startswith(_OF_TORCH):
        return registered_formula(name)
    return formula


def operator_name(operator: object) -> str:
    """Name of an operator in counts: `aten::mm`, or a Triton kernel's function name. Raises
    TypeError if it is no operator."""
    if isinstance(operator, str):
        return operator
    operator = getattr(operator, "_opoverload", operator)
    if schema := getattr(operator, "_schema", None):
        return str(schema.name)
    name = getattr(operator, "_qualified_op_name", None) or getattr(operator, "__name__", None)
    if not isinstance(name, str):
        raise TypeError(
            f"{operator!r} is no operator: give torch.ops.<namespace>.<name> or its name as text"
        )
    return name


def matmul(a: Sides, b: Sides, *_: object, **__: object) -> int:
    """FLOPs of […, m, k]·[…, k, n], [m, k]·[k] or [k]·[k]. Only stored elements of a sparse operand
    count; a complex multiply-add is four."""
    is_complex = getattr(a, "is_complex", None)
    flops_per_product = 2
    if is_complex and is_complex():
        flops_per_product = 8
    if _is_sparse(b) and not _is_sparse(a):
        return flops_per_product * a.shape[-2] * _stored(b)
    columns = 1
    if b.ndim > 1:
        columns = b.shape[-1]
    return flops_per_product * _stored(a) * columns


def _is_sparse(tensor: object) -> bool:
    return "sparse" in str(getattr(tensor, "layout", ""))


def _stored(tensor: Any) -> int:
    """Number of elements that a tensor stores."""
    if not _is_sparse(tensor):
        return int(tensor.numel())
    values = tensor._values() if tensor.is_sparse else tensor.values()
    return int(values.numel())


def batched_matmul(a: Sides, b: Sides, *_: object, **__: object) -> int | Cost:
    """FLOPs of a batched matmul. One with two equal sides may be eager attention, whose squares of
    tokens by tokens grow with pairs of tokens. `Cost.side` distinguishes these from squares of a
    chunk or of a head's width."""
    if getattr(b, "is_nested", False) or getattr(a, "is_nested", False):
        return nested_matmul(a, b)
    flops = matmul(a, b)
    smallest, middle, largest = sorted((a.shape[-2], a.shape[-1], b.shape[-1]))
    if middle > 1 and middle in (smallest, largest):
        return Cost(flops, flops, flops, attention_flops=flops, rectangle_flops=flops, side=middle)
    return flops


def trilinear(a: Sides, b: Sides, c: Sides, *dimensions: Sequence[int], **__: object) -> int:
    """FLOPs of Bilinear's product of three factors. `dimensions` are those that each factor lacks,
    then those that are summed."""
    missing_a, missing_b, missing_c, summed = map(set, dimensions[:4])
    sizes: dict[int, int] = {}
    for factor, missing in ((a, missing_a), (b, missing_b), (c, missing_c)):
        present = sorted(set(range(factor.ndim + len(missing))) - missing)
        sizes |= dict(zip(present, factor.shape, strict=True))
    # a and b are multiplied and summed over what c lacks, then the result is multiplied by c
    of_pair = set(sizes) - (missing_a & missing_b)
    of_result = of_pair - (summed & missing_c)
    of_c = set(sizes) - missing_c
    of_both = of_result | of_c
    pair_elements = prod(sizes[dimension] for dimension in of_pair)
    elements = prod(sizes[dimension] for dimension in of_both)
    return 2 * pair_elements + 2 * elements


def distances(a: Sides, b: Sides, *_: object, **__: object) -> Cost:
    """Cost of distances from […, n, k] to […, m, k] by -2·a·bᵀ. The kernel multiplies k + 2
    columns, which adds both squares."""
    rows = a.numel() // a.shape[-1]
    distance_count = rows * b.shape[-2]
    flops = 2 * a.numel() * b.shape[-2]
    return Cost(flops, flops, flops + 4 * distance_count)


def semi_structured_matmul(*args: Any, **__: object) -> int:
    """FLOPs of a 2:4 sparse matmul: two of every four values are stored and multiplied."""
    # The first matrix holds the values; their indices stand before the dense operand.
    position = next(index for index, argument in enumerate(args) if argument.ndim == 2)
    values = args[position]
    dense = args[position + 2]
    return 2 * values.numel() * dense.shape[-1]


def nested_matmul(a: Any, b: Any, *_: object, **__: object) -> int:
    """FLOPs of a matmul of nested tensors, whose sequences differ in length. Other calls of
    aten::matmul are decomposed before."""
    if not b.is_nested:
        return int(2 * a.numel() * b.shape[-1])
    flops = 0
    for a_shape, b_shape in zip(_shapes_in(a), _shapes_in(b), strict=True):
        flops += 2 * prod(a_shape) * b_shape[-1]
    return flops


def _shapes_in(batch: Any) -> list[Shape]:
    """Shape of each element of a batch, nested or not."""
    if getattr(batch, "is_nested", False):
        return batch._nested_tensor_size().tolist()  # type: ignore[no-any-return]
    return [batch.shape[1:]] * batch.shape[0]


def linear(inputs: Sides, weight: Sides, *_: object, **__: object) -> int:
    """FLOPs of […, k]·[n, k]ᵀ, or of a weight [k]. Called only where torch does not decompose
    it."""
    return 2 * inputs.numel() * prod(weight.shape[:-1])


def stored_linear(inputs: Sides, weight: Sides, *_: object, **__: object) -> int:
    """FLOPs of a linear layer that multiplies each row of inputs by all stored elements of a
    weight."""
    return 2 * inputs.numel() // inputs.shape[-1] * weight.numel()


def packed_linear(inputs: Sides, *_: object, out: Sides, **__: object) -> int:
    """FLOPs of a linear layer with a packed weight: each input value is multiplied once per
    output."""
    return 2 * inputs.numel() * out.shape[-1]


def grouped_matmul(a: Sides, b: Sides, *_: object, **__: object) -> int:
    """FLOPs of a grouped matmul, [rows, k]·[groups, k, n] or [m, rows]·[rows, n]: each row is
    multiplied for one group."""
    return 2 * a.numel() * b.shape[-1]


def convolution_flops(
    input_shape: Shape, weight_shape: Shape, output_shape: Shape, transposed: bool
) -> int:
    """FLOPs of a convolution. Each output element costs its slice of the weight [out channels, in
    channels ÷ groups, *kernel]. If it is transposed, each input element does."""
    multiplied_shape = input_shape if transposed else output_shape
    return 2 * prod(multiplied_shape) * prod(weight_shape[1:])


def recurrent(inputs: Sides, weights: Sequence[Sides]) -> int:
    """FLOPs of weight matrices that each token is multiplied by once. Inputs are [steps, batch,
    width], or packed [tokens, width]."""
    tokens = inputs.numel() // inputs.shape[-1]
    return 2 * tokens * _matrix_elements(weights)


def rnn_layer_gradients(
    x: Sides, *args: Sides, needs_gradient: Sequence[bool] | None = None, **__: object
) -> Cost:
    """Cost of the gradients of one oneDNN layer, whose kernel computes all of them.
    `needs_gradient` says which are needed: of input, both weights, both biases, hidden and cell
    state; None means all."""
    input_weight, state_weight = args[:2]
    tokens = x.numel() // x.shape[-1]
    executed = 2 * recurrent(x, (input_weight, state_weight))
    if needs_gradient is None:
        return Cost.of(executed)
    of_input, of_input_weight, of_state_weight = map(bool, needs_gradient[:3])
    state_rows = tokens
    if not any(needs_gradient[5:7]):  # the first step needs no gradient of its state
        hidden = args[4]
        state_rows -= hidden.numel() // hidden.shape[-1]
    input_rows = tokens * (of_input + of_input_weight)
    state_rows += tokens * of_state_weight
    products = input_rows * input_weight.numel() + state_rows * state_weight.numel()
    return Cost(2 * products, 2 * products, executed)


# Position of `bidirectional`, counted from the end: the same for cuDNN and for MIOpen, which has
# no argument for the projection's size.
_BIDIRECTIONAL = -5


def rnn_gradients(x: Sides, weights: Sequence[Sides], stride: int, *rest: Any, **__: object) -> int:
    """FLOPs of the gradients of a GPU's recurrent layers. The last argument says which are needed:
    of input, hidden state, cell state and, all at once, weights. The first step's state and the
    first layer's input cost one only if needed."""
    forward = recurrent(x, weights)
    needed = rest[-1]
    if not isinstance(needed, Sequence) or len(needed) != 4:
        return 2 * forward
    of_input, of_hidden, of_cell, of_weights = needed
    hidden = rest[1]
    tokens = x.numel() // x.shape[-1]
    is_bidirectional = rest[_BIDIRECTIONAL]
    layers = [weights[start : start + stride] for start in range(0, len(weights), stride)]
    flops = forward * bool(of_weights) + forward
    if not of_input:
        first_layers = layers[:1]
        if is_bidirectional:
            first_layers = layers[:2]
        flops -= 2 * tokens * sum(layer[0].numel() for layer in first_layers)
    if not (of_hidden or of_cell):
        batch = hidden.shape[-2]
        flops -= 2 * batch * sum(layer[1].numel() for layer in layers)
    return flops


def _matrix_elements(arguments: Sequence[Any]) -> int:
    """Elements of all matrices among the arguments."""
    matrices = (tensor for tensor in arguments if getattr(tensor, "ndim", None) == 2)
    return sum(tensor.numel() for tensor in matrices)


def encoder_layer(src: object, embed_dim: int, num_heads: int, *args: object, **__: object) -> int:
    """FLOPs of TransformerEncoderLayer's fused inference: every weight matrix for each token, and
    full attention."""
    weights = args[:15]  # with biases and switches; the mask comes after them
    return _encoder_flops(src, embed_dim, weights)


def multi_head_attention(
    query: object,
    key: object,
    value: object,
    embed_dim: int,
    num_head: int,
    *args: object,
    **__: object,
) -> int:
    """FLOPs of MultiheadAttention's fused inference: projections of all inputs and the output, and
    full attention. There are as many keys as queries: torch's kernel takes no other shapes."""
    weights = args[:4]  # the mask comes after them
    return _encoder_flops(query, embed_dim, weights)


def _encoder_flops(inputs: object, embed_dim: int, weights: Sequence[object]) -> int:
    """FLOPs of self-attention over `inputs`, and of multiplying each token by every matrix of
    `weights`."""
    lengths = [int(shape[0]) for shape in _shapes_in(inputs)]
    by_weights = 2 * sum(lengths) * _matrix_elements(weights)
    pairs = sum(length**2 for length in lengths)
    return by_weights + 4 * pairs * embed_dim


def _attention(
    cost: Callable[[dict[str, Any], bool], Cost], signature: str, backward: bool
) -> Formula:
    """Turns a cost function of named arguments into a formula for an operator's arguments."""
    return lambda *args, out, **kwargs: cost(bind(signature, args, kwargs), backward)


_TABLE: dict[str, Formula] = {
    "aten::mm aten::_int_mm aten::_scaled_mm aten::_scaled_mm_v2 aten::_sparse_mm": matmul,
    "aten::mv aten::dot aten::vdot": matmul,
    "aten::bmm": batched_matmul,
    # As everywhere, adding the first operand is not counted.
    "aten::addmm aten::addmm_ aten::addmv aten::addmv_ aten::addbmm aten::addbmm_ aten::_addmm_activation "
    "aten::_sparse_addmm": lambda c, a, b, *_, **__: matmul(a, b),
    # Computes the product only where the sparse operand has elements.
    "aten::sparse_sampled_addmm": lambda c, a, b, *_, **__: 2 * _stored(c) * a.shape[-1],
    "aten::baddbmm aten::baddbmm_": lambda c, a, b, *_, **__: batched_matmul(a, b),
    "aten::_trilinear": trilinear,
    "aten::_euclidean_dist": distances,
    "aten::_sparse_semi_structured_mm aten::_sparse_semi_structured_addmm": semi_structured_matmul,
    # Half of the weight is stored.
    "aten::_sparse_semi_structured_linear": stored_linear,
    # 2:4 sparse by cuSPARSELt, whose compressed operand also holds indices: half of
    # [m, k]·[k, n].
    "aten::_cslt_sparse_mm": lambda values, dense, *_, out, **__: dense.shape[0] * out.numel(),
    "aten::_weight_int8pack_mm aten::_weight_int4pack_mm aten::_weight_int4pack_mm_for_cpu "
    "aten::_dyn_quant_matmul_4bit aten::_wrapped_quantized_linear_prepacked quantized::linear "
    "quantized::linear_relu quantized::linear_dynamic onednn::qlinear_pointwise "
    "bitsandbytes::gemv_4bit bitsandbytes::gemm_4bit bitsandbytes::int8_linear_matmul "
    "bitsandbytes::int8_mixed_scaled_mm": packed_linear,
    "aten::matmul": nested_matmul,
    # Backward passes count the gradients that are needed, each as much as the forward matmul.
    "aten::matmul_backward": lambda g, a, b, mask, *_, **__: sum(mask) * nested_matmul(a, b),
    "aten::linear_backward": lambda x, g, w, mask, *_, **__: sum(mask[:2]) * linear(x, w),
    "aten::linear": linear,
    "aten::_grouped_mm aten::_scaled_grouped_mm aten::_scaled_grouped_mm_v2 transformers::grouped_mm_fallback "
    "mfulab::grouped_product": grouped_matmul,
    "transformers::grouped_mm_fallback_backward": lambda g, a, b, *_, **__: (
        2 * grouped_matmul(a, b)
    ),
    # Golub and Van Loan, Matrix Computations, 4th edition, for n rows: n² for each column of a
    # triangular system's right side; n³/3 by Cholesky, 2n³/3 by LU, then 2n² for each column; 2n³
    # for an inverse.
    "aten::linalg_solve_triangular aten::triangular_solve": lambda a, b, *_, **__: (
        max(a.shape[-1], b.shape[-2]) * b.numel()
    ),
    "aten::linalg_cholesky_ex": lambda a, *_, **__: a.numel() * a.shape[-1] // 3,
    "aten::linalg_lu_factor_ex": lambda a, *_, **__: 2 * a.numel() * a.shape[-1] // 3,
    "aten::_linalg_solve_ex": lambda a, b, *_, **__: (
        2 * a.numel() * a.shape[-1] // 3 + 2 * a.shape[-1] * b.numel()
    ),
    "aten::linalg_lu_solve": lambda a, pivots, b, *_, **__: 2 * a.shape[-1] * b.numel(),
    "aten::cholesky_solve": lambda b, a, *_, **__: 2 * a.shape[-1] * b.numel(),
    "aten::linalg_inv_ex": lambda a, *_, **__: 2 * a.numel() * a.shape[-1],
    # After the weight, rest[4] says whether it is transposed, and rest[7] which gradients of input
    # and weight are needed.
    "aten::convolution aten::_convolution aten::convolution_overrideable": lambda x, w, *rest, out, **__: (
        convolution_flops(x.shape, w.shape, out.shape, transposed=rest[4])
    ),
    "aten::cudnn_convolution aten::mkldnn_convolution aten::_conv_depthwise2d": lambda x, w, *_, out, **__: (
        convolution_flops(x.shape, w.shape, out.shape, False)
    ),
    "aten::convolution_backward": lambda g, x, w, *rest, **__: (
        sum(rest[7][:2]) * convolution_flops(x.shape, w.shape, g.shape, rest[4])
    ),
    # On a CPU one layer of an LSTM or GRU, with weights of input and state; on a GPU all layers.
    # Backward passes count the gradients that are needed.
    "aten::mkldnn_rnn_layer": lambda x, *args, **__: recurrent(x, args[:2]),
    "aten::mkldnn_rnn_layer_backward": rnn_layer_gradients,
    "aten::_cudnn_rnn aten::miopen_rnn": lambda x, weights, *_, **__: recurrent(x, weights),
    "aten::_cudnn_rnn_backward aten::miopen_rnn_backward": rnn_gradients,
    "aten::_transformer_encoder_layer_fwd": encoder_layer,
    "aten::_native_multi_head_attention": multi_head_attention,
}
FORMULAS: dict[str, Formula] = {}
for names, formula in _TABLE.items():
    FORMULAS |= dict.fromkeys(names.split(), formula)
for name, signature in SIGNATURES.items():
    FORMULAS[name] = _attention(sdpa_cost, signature, name.endswith("_backward"))
for name, signature in VARIABLE_SIGNATURES.items():
    FORMULAS[name] = _attention(variable_cost, signature, name.endswith("_backward"))
