"""One step of generating text: the next token of each sequence, with all tokens before it in a cache."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch

from mfulab.core.errors import UnsupportedError


def prefiller(model: torch.nn.Module, tokens: torch.Tensor, call: Callable[..., Any]) -> Callable[[], Any]:
    """The step that reads a prompt: fills a new cache with all `tokens` and gives the logits that follow the last.

    Arguments, result and errors are `decoder`'s.
    """
    only_last = _cached(model)
    return lambda: call(tokens, use_cache=True, **only_last)


def _cached(model: torch.nn.Module) -> dict[str, int]:
    """Options with which a model gives the logits of its last token alone, if it knows any.

    Raises:
        UnsupportedError: the model keeps no cache.
    """
    accepted = signature(model.forward).parameters.keys()
    if not {"past_key_values", "use_cache"} <= accepted:
        raise UnsupportedError(f"decoding: {type(model).__name__} keeps no cache of keys and values")
    # Generation needs no logits of the prompt but the last: [batch, sequence_length, vocabulary_size] may not fit.
    return {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}


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
    only_last, length = _cached(model), tokens.shape[-1]
    if length < 2:
        raise UnsupportedError(f"decoding: sequence_length={length} leaves no token for the cache; give 2 or more")
    cache, last = model(tokens[:, :-1], use_cache=True, **only_last).past_key_values, tokens[:, -1:]
    if cache is None:  # an encoder whose class can be a decoder too
        raise UnsupportedError(f"decoding: {type(model).__name__} keeps no cache of keys and values")

    def step() -> Any:
        output = call(last, past_key_values=cache, use_cache=True)
        cache.crop(-1)
        return output

    return step
