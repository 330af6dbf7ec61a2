"""One step of generating text: the next token of each sequence, with all tokens before it in a cache."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch

from mfulab.schema.errors import UnsupportedError


def decoder(model: torch.nn.Module, tokens: torch.Tensor, call: Callable[..., Any]) -> Callable[[], Any]:
    """Fills `model`'s cache of keys and values with all `tokens` but the last; gives the step that decodes the last.

    Args:
        model: a causal language model of transformers, in evaluation mode.
        tokens: [batch, sequence_length] token ids; the step attends to sequence_length positions.
        call: what the step calls: the model, or what it was compiled to.

    The step appends to the cache as generation does, by copying it, and takes the token away again, so that every step
    is the same. It returns the model's output, whose logits are [batch, 1, vocabulary_size].

    Raises:
        UnsupportedError: the model keeps no cache, or there is no token before the last.
    """
    name, length = type(model).__name__, tokens.shape[-1]
    none_kept = UnsupportedError(f"decoding: {name} keeps no cache of keys and values")
    accepted = signature(model.forward).parameters.keys()
    if not {"past_key_values", "use_cache"} <= accepted:
        raise none_kept
    if length < 2:
        raise UnsupportedError(f"decoding: sequence_length={length} leaves no token for the cache; give 2 or more")
    # Generation needs no logits of the prompt but the last: [batch, sequence_length, vocabulary_size] may not fit.
    only_last = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
    cache, last = model(tokens[:, :-1], use_cache=True, **only_last).past_key_values, tokens[:, -1:]
    if cache is None:  # an encoder whose class can be a decoder too
        raise none_kept

    def step() -> Any:
        output = call(last, past_key_values=cache, use_cache=True)
        cache.crop(-1)
        return output

    return step
