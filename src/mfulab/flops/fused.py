"""Attention and grouped products as one operator each, as they run on a device, where shapes alone are computed.

Without data torch takes scaled_dot_product_attention apart into products and a softmax: the causal flag is lost, and
the scores that no fused kernel writes are taken for activations. These operators keep it whole, forward and backward.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_NO_DATA = "made for counting: it knows shapes, not values"


@torch.library.custom_op("mfulab::attention", mutates_args=())
def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor]:
    """[batch, heads, tokens, width] each, fewer heads of keys and values where grouped → output, log of the sums."""
    raise NotImplementedError(_NO_DATA)


@attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool) -> tuple[Tensor, Tensor]:
    return query.new_empty(*query.shape[:-1], value.shape[-1]), query.new_empty(query.shape[:-1])


@torch.library.custom_op("mfulab::attention_backward", mutates_args=())
def attention_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    output: Tensor,
    log_sum: Tensor,
    is_causal: bool,
    needs_gradient: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value."""
    raise NotImplementedError(_NO_DATA)


@attention_backward.register_fake
def _(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    output: Tensor,
    log_sum: Tensor,
    is_causal: bool,
    needs_gradient: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, mask, ctx.is_causal = inputs
    ctx.save_for_backward(query, key, value, mask, *output)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    needs = list(ctx.needs_input_grad[:4])
    mask = ctx.saved_tensors[3]
    gradients = attention_backward(gradient, *ctx.saved_tensors, ctx.is_causal, needs[:3])
    kept = [gradient if needed else None for gradient, needed in zip(gradients, needs, strict=False)]
    return *kept, torch.empty_like(mask) if needs[3] else None, None


attention.register_autograd(_differentiate, setup_context=_save)


@torch.library.custom_op("mfulab::grouped_product", mutates_args=())
def grouped_product(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """[rows, k]·[groups, k, n] → [rows, n]; or [m, rows]·[rows, n] → [groups, m, n]."""
    raise NotImplementedError(_NO_DATA)


@grouped_product.register_fake
def _(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    return a.new_empty(*(() if b.ndim == 3 else ends.shape), a.shape[0], b.shape[-1])


def _save_grouped(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate_grouped(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    a, b, ends = ctx.saved_tensors
    needs_a, needs_b, _ = ctx.needs_input_grad
    return (
        grouped_product(gradient, b.mT, ends) if needs_a else None,
        grouped_product(a.mT, gradient, ends) if needs_b else None,
        None,
    )


grouped_product.register_autograd(_differentiate_grouped, setup_context=_save_grouped)


class FusedOperators(TorchFunctionMode):
    """Inside it, torch's fused functions call the operators above."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        replacement = _REPLACED.get(func)
        return func(*args, **(kwargs or {})) if replacement is None else replacement(*args, **(kwargs or {}))


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    # Three dimensions are batch, tokens and width.
    shaped = [tensor.unsqueeze(-3) if tensor.ndim == 3 else tensor for tensor in (query, key, value)]
    output = attention(*shaped, attn_mask, is_causal)[0]
    return output.squeeze(-3) if query.ndim == 3 else output


def _grouped(a: Tensor, b: Tensor, offs: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
    if offs is None or (a.ndim, b.ndim) != (2, 3):
        return torch._grouped_mm(a, b, offs, *args, **kwargs)
    return grouped_product(a, b, offs)


_REPLACED: dict[Any, Callable[..., Any]] = {
    torch.nn.functional.scaled_dot_product_attention: _attention,
    torch._grouped_mm: _grouped,
}
