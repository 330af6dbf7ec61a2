"""One step of generating text: the token after a prompt, or the next one with all tokens before it
in a cache."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said

# What transformers calls the cache of keys and values: from 5.24 on, and before.
CACHES = ("cache", "past_key_values")


def generating(
    mode: str, model: torch.nn.Module, tokens: torch.Tensor, call: Callable[..., Any]
) -> Callable[[], Any]:
    """The step that reads a prompt (`prefill`) or decodes its last token (`decoding`), logits of
    that token alone. `tokens`: [batch, sequence_length]; `call`: the model, a causal one of
    transformers, or what it was compiled to. Decoding appends to a cache of all but the last, as
    generation does by copying, and takes the token away again: every step is the same. Raises
    UnsupportedError for a model without cache, or one token."""
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
    """The argument that takes a model's cache. Raises UnsupportedError for a model without one."""
    accepted = signature(model.forward).parameters
    for name in CACHES:
        if name in accepted and "use_cache" in accepted:
            return name
    raise _keeps_no_cache(model)


def filled(model: torch.nn.Module, tokens: torch.Tensor) -> Any:
    """The cache of all tokens but the last. Raises UnsupportedError as `generating` does."""
    name = cache_name(model)
    if tokens.shape[-1] < 2:
        raise UnsupportedError(Said("no_token_for_cache"))
    cache = getattr(model(tokens[:, :-1], use_cache=True, **_only_last(model)), name)
    if cache is None:  # an encoder whose class can be a decoder too
        raise _keeps_no_cache(model)
    return cache


def _only_last(model: torch.nn.Module) -> dict[str, int]:
    """Options for logits of the last token alone: generation needs no others of the prompt, and
    [batch, sequence_length, vocabulary_size] may not fit."""
    if "logits_to_keep" in signature(model.forward).parameters:
        return {"logits_to_keep": 1}
    return {}


def _keeps_no_cache(model: torch.nn.Module) -> UnsupportedError:
    return UnsupportedError(Said("keeps_no_cache", {"model": type(model).__name__}))
