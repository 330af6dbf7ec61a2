"""One step of generating text: the first token after a prompt, or the next token with all earlier
ones in a cache."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said

# Names of transformers' cache of keys and values: from version 5.24 on, and before.
CACHES = ("cache", "past_key_values")


def generating(
    mode: str, model: torch.nn.Module, tokens: torch.Tensor, call: Callable[..., Any]
) -> Callable[[], Any]:
    """Returns the step that reads a prompt (`prefill`) or decodes its last token (`decoding`); it
    computes logits for that token only. `tokens`: [batch, sequence_length]. `call` is the model, a
    causal one of transformers, or its compiled form. Decoding appends to a cache of all tokens but
    the last, and then removes the token again, so that every step is the same. Raises
    UnsupportedError for a model without cache, or for a single token."""
    name = cache_name(model)
    if mode == "prefill":
        return lambda: call(tokens, use_cache=True, **_only_last(model))
    cache = filled(model, tokens)
    last = tokens[:, -1:]

    def step() -> Any:
        output = call(last, **{name: cache}, use_cache=True)
        cache.crop(-1)
        return output

    return step


def cache_name(model: torch.nn.Module) -> str:
    """Name of the argument that takes a model's cache. Raises UnsupportedError if the model has
    none."""
    accepted = signature(model.forward).parameters
    for name in CACHES:
        if name in accepted and "use_cache" in accepted:
            return name
    raise _keeps_no_cache(model)


def filled(model: torch.nn.Module, tokens: torch.Tensor) -> Any:
    """Returns a cache of all tokens but the last. Raises UnsupportedError as `generating` does."""
    name = cache_name(model)
    if tokens.shape[-1] < 2:
        raise UnsupportedError(Said("no_token_for_cache"))
    cache = getattr(model(tokens[:, :-1], use_cache=True, **_only_last(model)), name)
    if cache is None:  # an encoder whose class can also be a decoder
        raise _keeps_no_cache(model)
    return cache


def _only_last(model: torch.nn.Module) -> dict[str, int]:
    """Options to compute only the last token's logits. Generation needs no others, and [batch,
    sequence_length, vocabulary_size] may not fit in memory."""
    if "logits_to_keep" in signature(model.forward).parameters:
        return {"logits_to_keep": 1}
    return {}


def _keeps_no_cache(model: torch.nn.Module) -> UnsupportedError:
    return UnsupportedError(Said("keeps_no_cache", model=type(model).__name__))
