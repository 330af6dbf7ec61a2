"""One step of generating text: the token after a prompt, or the next one with all tokens before it in a cache."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch

from mfulab.core.errors import UnsupportedError


def generating(mode: str, model: torch.nn.Module, tokens: torch.Tensor, call: Callable[..., Any]) -> Callable[[], Any]:
    """The step that reads a prompt (`prefill`) or that decodes its last token (`decoding`), logits of that token alone.

    Args:
        mode: prefill fills a new cache of keys and values with all `tokens`; for decoding it is filled here with all
            but the last. Decoding appends to the cache as generation does, by copying it, and takes the token away
            again, so that every step is the same.
        model: a causal language model of transformers, in evaluation mode.
        tokens: [batch, sequence_length] token ids; decoding attends to sequence_length positions.
        call: what the step calls: the model, or what it was compiled to.

    The step returns the model's output, whose logits are [batch, 1, vocabulary_size]. Raises UnsupportedError if the
    model keeps no cache, or decoding has no token before the last.
    """
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
