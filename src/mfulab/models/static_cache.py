"""Decoding with a static cache: memory for all keys and values is allocated beforehand, and a
token's are written in place. Addresses then never change, as a CUDA graph needs."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers.cache_utils import StaticLayer

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said
from mfulab.models.decoding import cache_name, filled


def decoding(
    model: torch.nn.Module, tokens: torch.Tensor, call: Callable[..., Any]
) -> Callable[[], Any]:
    """Returns the step that decodes the last of `tokens`, [batch, sequence_length], with the others
    in a cache of that length. `call` is the model or its compiled form. The step then resets the
    position on the device, so that every step is the same. Raises UnsupportedError as `generating`
    does, and for caches that transformers does not keep whole and at fixed addresses."""
    name = cache_name(model)
    cache = _static_copy(model, filled(model, tokens), tokens.shape[-1])
    positions = [layer.cumulative_length for layer in cache.layers]
    last = tokens[:, -1:]

    def step() -> Any:
        output = call(last, **{name: cache}, use_cache=True)
        torch._foreach_sub_(positions, 1)
        return output

    return step


def _static_copy(model: Any, growing: Any, length: int) -> Any:
    """Makes a static cache for `length` tokens that begins with the keys and values of a growing
    cache."""
    cache = transformers.StaticCache(model.config, max_cache_len=length)
    growing_layers = getattr(growing, "layers", [])
    # Sliding windows and recurrent states are not supported. Older releases of transformers have no
    # `cumulative_length`, and find the position from values that are not zero.
    are_static = all(type(layer) is StaticLayer for layer in cache.layers)
    have_positions = all(hasattr(layer, "cumulative_length") for layer in cache.layers)
    are_paired = len(growing_layers) == len(cache.layers)
    if not (are_static and have_positions and are_paired):
        raise UnsupportedError(Said("no_static_cache", model=type(model).__name__))
    for layer, keys_and_values in zip(cache.layers, growing_layers, strict=True):
        layer.update(keys_and_values.keys, keys_and_values.values)
    return cache
