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
    accepted = signature(model.forward).parameters
    no_cache = Said("keeps_no_cache", {"model": type(model).__name__})
    name = next((name for name in CACHES if name in accepted), None)
    if name is None or "use_cache" not in accepted:
        raise UnsupportedError(no_cache)
    # Generation needs no logits of the prompt but the last: [batch, sequence_length,
    # vocabulary_size] may not fit.
    only_last = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
    if mode == "prefill":
        return lambda: call(tokens, use_cache=True, **only_last)
    if tokens.shape[-1] < 2:
        raise UnsupportedError(Said("no_token_for_cache"))
    cache = getattr(model(tokens[:, :-1], use_cache=True, **only_last), name)
    last = tokens[:, -1:]
    if cache is None:  # an encoder whose class can be a decoder too
        raise UnsupportedError(no_cache)

    def step() -> Any:
        output = call(last, **{name: cache}, use_cache=True)
        cache.crop(-1)
        return output

    return step
