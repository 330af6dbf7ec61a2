"""One step of generating text: the token after a prompt, or the next one with all tokens before it in a cache."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch

from mfulab.core.errors import UnsupportedError


def generating(mode: str, model: torch.nn.Module, tokens: torch.Tensor, call: Callable[..., Any]) -> Callable[[], Any]:
    """The step that reads a prompt (`prefill`) or decodes its last token (`decoding`), logits of that token alone.
    `tokens`: [batch, sequence_length]; `call`: the model, a causal one of transformers, or what it was compiled to.
    Decoding appends to a cache of all but the last, as generation does by copying, and takes the token away again:
    every step is the same. Raises UnsupportedError for a model without cache, or one token."""
    accepted, reason = signature(model.forward).parameters, f"{type(model).__name__} keeps no cache of keys and values"
    if not {"past_key_values", "use_cache"} <= accepted.keys():
        raise UnsupportedError(f"decoding: {reason}")
    # Generation needs no logits of the prompt but the last: [batch, sequence_length, vocabulary_size] may not fit.
    only_last = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
    if mode == "prefill":
        return lambda: call(tokens, use_cache=True, **only_last)
    if tokens.shape[-1] < 2:
        raise UnsupportedError("decoding: sequence_length=1 leaves no token for the cache; give 2 or more")
    cache, last = model(tokens[:, :-1], use_cache=True, **only_last).past_key_values, tokens[:, -1:]
    if cache is None:  # an encoder whose class can be a decoder too
        raise UnsupportedError(f"decoding: {reason}")

    def step() -> Any:
        output = call(last, past_key_values=cache, use_cache=True)
        cache.crop(-1)
        return output

    return step
