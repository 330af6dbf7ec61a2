"""The FLUX.1 transformer over image latents and text, built from its published shapes without a
download."""

import torch
from torch import nn
from torch.nn import functional

TIME_WIDTH = 256  # of the sines and cosines that stand for the time


class _Modulation(nn.Module):
    def __init__(self, width: int, parts: int) -> None:
        super().__init__()
        self.parts = parts
        self.linear = nn.Linear(width, parts * width)

    def forward(self, vector: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.linear(functional.silu(vector))[:, None].chunk(self.parts, dim=-1)


def _attend(queries_keys_values: torch.Tensor, heads: int) -> torch.Tensor:
    batch, tokens, joint_width = queries_keys_values.shape
    width = joint_width // 3
    split = queries_keys_values.view(batch, tokens, 3, heads, width // heads)
    split = split.permute(2, 0, 3, 1, 4)
    attended = functional.scaled_dot_product_attention(split[0], split[1], split[2])
    return attended.transpose(1, 2).reshape(batch, tokens, width)


class _Stream(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.modulation = _Modulation(width, 6)
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )


class DoubleBlock(nn.Module):
    """Joint attention of text and image, each with its own weights."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.text = _Stream(width)
        self.image = _Stream(width)

    def forward(self, parts: list[torch.Tensor], vector: torch.Tensor) -> list[torch.Tensor]:
        streams = (self.text, self.image)
        modulations = [stream.modulation(vector) for stream in streams]
        projected = []
        for stream, part, modulation in zip(streams, parts, modulations, strict=True):
            shift, scale = modulation[:2]
            projected.append(stream.qkv(stream.norms[0](part) * (1 + scale) + shift))
        attended = _attend(torch.cat(projected, dim=1), self.heads)
        seen = attended.split([part.shape[1] for part in parts], dim=1)
        results = []
        for index, stream in enumerate(streams):
            gate, shift, scale, last_gate = modulations[index][2:]
            tokens = parts[index] + gate * stream.projection(seen[index])
            results.append(
                tokens + last_gate * stream.mlp(stream.norms[1](tokens) * (1 + scale) + shift)
            )
        return results


class SingleBlock(nn.Module):
    """Attention and MLP in parallel, over text and image tokens together."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.width = width
        self.modulation = _Modulation(width, 3)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.enter = nn.Linear(width, 7 * width)
        self.leave = nn.Linear(5 * width, width)

    def forward(self, tokens: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
        shift, scale, gate = self.modulation(vector)
        entered = self.enter(self.norm(tokens) * (1 + scale) + shift)
        qkv, hidden = entered.split([3 * self.width, 4 * self.width], dim=-1)
        hidden = functional.gelu(hidden, approximate="tanh")
        return tokens + gate * self.leave(torch.cat([_attend(qkv, self.heads), hidden], dim=-1))


class Flux(nn.Module):
    """FLUX.1: latents [batch, image_tokens, 64] → the same shape. Text, time and pooled text are
    zeros. After black-forest-labs/flux, src/flux/model.py."""

    def __init__(
        self,
        text_tokens: int,
        width: int = 3072,
        heads: int = 24,
        double_blocks: int = 19,
        single_blocks: int = 38,
        text_width: int = 4096,
        pooled_width: int = 768,
        channels: int = 64,
    ) -> None:
        super().__init__()
        self.text_shape = (text_tokens, text_width)
        self.pooled_width = pooled_width
        self.image_in = nn.Linear(channels, width)
        self.text_in = nn.Linear(text_width, width)
        self.time_in = _two_layers(TIME_WIDTH, width)
        self.pooled_in = _two_layers(pooled_width, width)
        self.double_blocks = nn.ModuleList(DoubleBlock(width, heads) for _ in range(double_blocks))
        self.single_blocks = nn.ModuleList(SingleBlock(width, heads) for _ in range(single_blocks))
        self.last_modulation = _Modulation(width, 2)
        self.last_norm = nn.LayerNorm(width, elementwise_affine=False)
        self.last = nn.Linear(width, channels)

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        batch = latents.shape[0]
        parts = [self.text_in(latents.new_zeros(batch, *self.text_shape)), self.image_in(latents)]
        vector = self.time_in(latents.new_zeros(batch, TIME_WIDTH))
        vector = vector + self.pooled_in(latents.new_zeros(batch, self.pooled_width))
        for double in self.double_blocks:
            parts = double(parts, vector)
        tokens = torch.cat(parts, dim=1)
        for single in self.single_blocks:
            tokens = single(tokens, vector)
        shift, scale = self.last_modulation(vector)
        return self.last(self.last_norm(tokens[:, self.text_shape[0] :]) * (1 + scale) + shift)


def _two_layers(inputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, width))
