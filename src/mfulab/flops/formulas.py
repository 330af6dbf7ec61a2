"""Published formulas for FLOPs, each with its source, to compare with the count. N parameters, L
layers, H heads of width Q, T tokens of context, V words; a multiply-add is 2 FLOPs."""

from collections.abc import Mapping
from dataclasses import dataclass


def matmul_flops(m: int, n: int, k: int) -> int:
    """FLOPs of [m, k]·[k, n]: 2·m·n·k."""
    return 2 * m * n * k


@dataclass(frozen=True)
class TransformerShape:
    """Shape of a decoder, as the formulas need it."""

    parameters: int  # N, as each formula's source defines it
    layers: int  # L
    heads: int  # H
    head_width: int  # Q
    width: int  # width of the residual stream
    vocabulary_size: int  # V
    key_value_heads: int  # heads of keys and values, fewer than H if grouped
    # whether each token attends only to earlier ones, so that keys and values can be cached
    causal: bool
    # elements per token in the cache of multi-head latent attention; 0 for other attention
    latent_width: int = 0

    def cache_elements(self, tokens: int) -> int:
        """Elements in the cache of keys and values: 2·L·heads·width per token, or L latents
        (arXiv:2405.04434, section 2.1). 0 if attention is not causal."""
        width = self.latent_width or 2 * self.key_value_heads * self.head_width
        if self.causal:
            return self.layers * width * tokens
        return 0


def kaplan_flops(shape: TransformerShape, tokens: int) -> int:
    """FLOPs as 6·N per token, forward and backward, without attention (Kaplan et al. 2020,
    arXiv:2001.08361, section 2.1)."""
    return 6 * shape.parameters * tokens


def palm_flops(shape: TransformerShape, tokens: int, context: int) -> int:
    """FLOPs as (6·N + 12·L·H·Q·T) per token, forward and backward (Chowdhery et al. 2022,
    arXiv:2204.02311, appendix B)."""
    attention = 12 * shape.layers * shape.heads * shape.head_width * context
    return (6 * shape.parameters + attention) * tokens


def megatron_flops(shape: TransformerShape, tokens: int, context: int) -> float:
    """FLOPs as 72·B·T·L·h²·(1 + T/(6h) + V/(12·h·L)), forward and backward, for GPT's shape: full
    attention, and an MLP four times as wide. Sources: Narayanan et al. 2021 (arXiv:2104.04473),
    appendix, without the second forward pass; Korthikanti et al. 2022 (arXiv:2205.05198), appendix
    A."""
    width = shape.width
    layers = shape.layers
    relative = 1 + context / (6 * width) + shape.vocabulary_size / (12 * width * layers)
    return 72 * tokens * layers * width**2 * relative


def seconds_at_peaks(flops: Mapping[str, float], peaks: Mapping[str, float]) -> float | None:
    """Seconds for FLOPs by number format, each at its own peak in FLOP/s. None if a format in use
    has no peak."""
    used = {name: count for name, count in flops.items() if count}
    if all(map(peaks.get, used)):
        return sum(count / peaks[name] for name, count in used.items())
    return None


def weighted_peak_flop_s(flops: Mapping[str, float], peaks: Mapping[str, float]) -> float | None:
    """Peak in FLOP/s of a step that multiplies in several formats: all its FLOPs ÷
    `seconds_at_peaks`. None without FLOPs or if a peak is missing."""
    seconds = seconds_at_peaks(flops, peaks)
    if seconds:
        return sum(flops.values()) / seconds
    return None


def expected_experts_read(experts: int, active: int, tokens: float) -> float:
    """Expected number of experts that n `tokens` read if each is routed to k `active` ones of E
    evenly at random: E·(1 − (1 − k/E)ⁿ)."""
    return experts * (1 - (1 - active / experts) ** tokens)
