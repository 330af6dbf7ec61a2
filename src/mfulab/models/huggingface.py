"""Builds any architecture of transformers from its config class, with random weights and without a
download."""

from typing import Any

import torch
import transformers
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from mfulab.models.build import ModelError

# transformers makes no mask for an attention that it does not know. With its own "sdpa" it reads
# the position ids in each step to find packed sequences. That synchronises with the device, which
# neither the meta device nor a CUDA graph allows. All sequences here are whole and without padding,
# so they need only the flag `is_causal`.
_UNMASKED = "mfulab_unmasked_sdpa"


def _attend(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any
) -> Any:
    """Attention that is causal by the flag alone. Makes a mask only for a layer with a sliding
    window shorter than the sequence."""
    window = options.get("sliding_window")
    if attention_mask is None and window and 1 < query.shape[-2] == key.shape[-2] > window:
        position = torch.arange(key.shape[-2], device=query.device)
        distance = position[:, None] - position[None, :]
        attention_mask = ((distance >= 0) & (distance < window))[None, None]
    return sdpa_attention_forward(module, query, key, value, attention_mask, **options)


transformers.AttentionInterface.register(_UNMASKED, _attend)


def build(architecture: str, attention: str = "sdpa", **config: Any) -> torch.nn.Module:
    """Builds `transformers.<architecture>` from its config class's arguments, without a cache
    unless `use_cache` is given. `attention` is sdpa or another of transformers' implementations;
    sdpa is causal if the architecture is, and has no padding masks. Raises ModelError if
    transformers has no such model class."""
    model_class: Any = getattr(transformers, architecture, None)
    if getattr(model_class, "config_class", None) is None:
        raise ModelError(
            f"model.arguments.architecture={architecture}: transformers has no such model class"
        )
    model_config = model_class.config_class(**{"use_cache": False, **config})
    if attention == "sdpa":
        # Architectures without attention, such as convolutional ones, reject any fused one.
        attention = _UNMASKED if model_class._supports_sdpa else "eager"
    return model_class._from_config(model_config, attn_implementation=attention)
