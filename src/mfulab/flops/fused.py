"""Attention and grouped matmuls as one operator each, as on a device, for counting without data.
Without data, torch decomposes scaled_dot_product_attention into matmuls and a softmax. This loses
the causal flag, and counts scores as activations, although no fused kernel writes them. The
operators here keep it whole, forward and backward."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.library import CustomOpDef


def _operator(name: str, schema: str, shapes: Callable[..., Any]) -> CustomOpDef:
    """Defines an operator for tensors without data, whose `shapes` function makes empty outputs."""

    def without_data(*_: object) -> Any:
        raise NotImplementedError("made for counting: it knows shapes, not values")

    operator = torch.library.custom_op(
        f"mfulab::{name}", without_data, mutates_args=(), schema=schema
    )
    operator.register_fake(shapes)
    return operator


def _attention_shapes(
    query: Tensor, key: Tensor, value: Tensor, *rest: object
) -> tuple[Tensor, Tensor]:
    log_sum = query.new_empty(query.shape[:-1])
    if query.ndim < 4:
        return query.new_empty(*query.shape[:-1], value.shape[-1]), log_sum
    *batch, heads, tokens, _ = query.shape
    # Laid out as kernels write it, tokens before heads, so that merging the heads copies nothing.
    output = query.new_empty(*batch, tokens, heads, value.shape[-1]).transpose(-3, -2)
    return output, log_sum


def _grouped_shape(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    rows = a.shape[0]
    columns = b.shape[-1]
    if b.ndim == 3:
        return a.new_empty(rows, columns)
    return a.new_empty(*ends.shape, rows, columns)


# Operands are [..., heads, tokens, width]; keys and values may have fewer heads (grouped). Returns
# the output and the log of softmax's sums. `pairs` are the fields of `mfulab.flops.cost.Pairs` if
# known, else empty.
attention = _operator(
    "attention",
    "(Tensor query, Tensor key, Tensor value, Tensor? mask, bool is_causal, float[] pairs) -> (Tensor, Tensor)",
    _attention_shapes,
)
attention_backward = _operator(
    "attention_backward",
    "(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor output, Tensor log_sum, "
    "bool is_causal, bool[] needs_gradient, float[] pairs) -> (Tensor, Tensor, Tensor)",
    lambda gradient, query, key, value, *_: tuple(map(torch.empty_like, (query, key, value))),
)
# [rows, k]·[groups, k, n] → [rows, n]; or [m, rows]·[rows, n] → [groups, m, n].
grouped_product = _operator(
    "grouped_product", "(Tensor a, Tensor b, Tensor ends) -> Tensor", _grouped_shape
)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, mask, ctx.is_causal, ctx.pairs = inputs
    ctx.save_for_backward(query, key, value, mask, *output)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    needs = list(ctx.needs_input_grad[:4])
    saved = ctx.saved_tensors  # read once, as a checkpoint that recomputes them allows no more
    computed = attention_backward(gradient, *saved, ctx.is_causal, needs[:3], ctx.pairs)
    mask = saved[3]
    gradients: list[Tensor | None] = [None] * 4
    for index, operand_gradient in enumerate(computed):
        if needs[index]:
            gradients[index] = operand_gradient
    if needs[3]:
        gradients[3] = torch.empty_like(mask)
    return *gradients, None, None


attention.register_autograd(_differentiate, setup_context=_save)


def _differentiate_grouped(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    a, b, ends = ctx.saved_tensors
    needs_a, needs_b = ctx.needs_input_grad[:2]
    a_gradient = b_gradient = None
    if needs_a:
        a_gradient = grouped_product(gradient, b.mT, ends)
    if needs_b:
        b_gradient = grouped_product(a.mT, gradient, ends)
    return a_gradient, b_gradient, None


grouped_product.register_autograd(
    _differentiate_grouped, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
)


@contextmanager
def fused_operators() -> Iterator[None]:
    """Makes torch's fused functions call the operators above on tensors without data while entered,
    no matter who calls them."""
    library = torch.library.Library("aten", "IMPL")
    try:
        for key in ("AutogradMeta", "AutogradCPU"):
            library.impl("scaled_dot_product_attention", _attention, key, allow_override=True)
            library.impl("_grouped_mm", _grouped, key, allow_override=True)
        yield
    finally:
        library._destroy()


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    tensors = [query, key, value]
    if min(tensor.ndim for tensor in tensors) > 3:
        batch = torch.broadcast_shapes(*(tensor.shape[:-3] for tensor in tensors))
        tensors = [tensor.expand(*batch, *tensor.shape[-3:]) for tensor in tensors]
    return attention(*tensors, attn_mask, is_causal, [])[0]


def _grouped(
    a: Tensor, b: Tensor, offs: Tensor | None = None, bias: object = None, out_dtype: object = None
) -> Tensor:
    if offs is None or (a.ndim, b.ndim) != (2, 3):
        raise NotImplementedError(
            f"grouped matmul of {list(a.shape)} and {list(b.shape)}: only rows by groups"
        )
    return grouped_product(a, b, offs)
