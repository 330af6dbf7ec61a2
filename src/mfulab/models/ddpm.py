"""The UNet of denoising diffusion (Ho et al. 2020, arXiv:2006.11239, appendix B), from its published shapes."""

import torch
from torch import nn
from torch.nn.functional import interpolate, pad, scaled_dot_product_attention, silu


class ResidualBlock(nn.Module):
    """Two 3 × 3 convolutions, the time's embedding between them, and attention where an image is small enough."""

    def __init__(self, into: int, out: int, time_width: int, dropout: float, attends: bool) -> None:
        super().__init__()
        self.first_norm, self.first = nn.GroupNorm(32, into, eps=1e-6), nn.Conv2d(into, out, 3, padding=1)
        self.time = nn.Linear(time_width, out)
        self.second_norm, self.second = nn.GroupNorm(32, out, eps=1e-6), nn.Conv2d(out, out, 3, padding=1)
        self.dropout = nn.Dropout(dropout)
        self.shortcut = nn.Conv2d(into, out, 1) if into != out else nn.Identity()
        self.attention = Attention(out) if attends else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        hidden = self.first(silu(self.first_norm(x))) + self.time(silu(time))[:, :, None, None]
        return self.attention(self.shortcut(x) + self.second(self.dropout(silu(self.second_norm(hidden)))))


class Attention(nn.Module):
    """One head over all places of an image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width, eps=1e-6)
        self.query, self.key, self.value, self.out = (nn.Conv2d(width, width, 1) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(x)
        heads = [layer(hidden).flatten(2).mT[:, None] for layer in (self.query, self.key, self.value)]
        attended = scaled_dot_product_attention(*heads)[:, 0].mT.reshape(x.shape)
        return x + self.out(attended)


class UNet(nn.Module):
    """[batch, 3, side, side] noisy images → the noise in them; the time step is zero unless given, [batch].

    The defaults are those of CIFAR-10: 35.7 million parameters.
    """

    def __init__(
        self,
        width: int = 128,
        multiples: tuple[int, ...] = (1, 2, 2, 2),
        blocks: int = 2,
        side: int = 32,
        attention_sides: tuple[int, ...] = (16,),
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.width, self.blocks, time_width = width, blocks, 4 * width
        self.time = nn.Sequential(nn.Linear(width, time_width), nn.SiLU(), nn.Linear(time_width, time_width))
        self.first = nn.Conv2d(3, width, 3, padding=1)

        def stage(into: int, out: int, attends: bool) -> ResidualBlock:
            return ResidualBlock(into, out, time_width, dropout, attends)

        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        kept, now = [width], width
        for level, multiple in enumerate(multiples):
            for _ in range(blocks):
                self.down.append(stage(now, multiple * width, (side >> level) in attention_sides))
                kept.append(now := multiple * width)
            if level + 1 < len(multiples):
                self.shrink.append(nn.Conv2d(now, now, 3, stride=2))
                kept.append(now)
        self.middle = nn.ModuleList([stage(now, now, True), stage(now, now, False)])
        for level, multiple in reversed(list(enumerate(multiples))):
            for _ in range(blocks + 1):
                self.up.append(stage(now + kept.pop(), multiple * width, (side >> level) in attention_sides))
                now = multiple * width
            if level:
                self.grow.append(nn.Conv2d(now, now, 3, padding=1))
        self.last_norm, self.last = nn.GroupNorm(32, now, eps=1e-6), nn.Conv2d(now, 3, 3, padding=1)

    def forward(self, images: torch.Tensor, steps: torch.Tensor | None = None) -> torch.Tensor:
        steps = images.new_zeros(len(images)) if steps is None else steps
        rates = torch.exp(torch.arange(self.width // 2, device=images.device) * (-9.2103 / (self.width // 2 - 1)))
        angles = steps[:, None] * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=1).to(images.dtype))
        hidden = self.first(images)
        kept = [hidden]
        for number, stage in enumerate(self.down, start=1):
            hidden = stage(hidden, time)
            kept.append(hidden)
            level, rest = divmod(number, self.blocks)
            if not rest and level <= len(self.shrink):
                hidden = self.shrink[level - 1](pad(hidden, (0, 1, 0, 1)))
                kept.append(hidden)
        for stage in self.middle:
            hidden = stage(hidden, time)
        for number, stage in enumerate(self.up, start=1):
            hidden = stage(torch.cat([hidden, kept.pop()], dim=1), time)
            level, rest = divmod(number, self.blocks + 1)
            if not rest and level <= len(self.grow):
                hidden = self.grow[level - 1](interpolate(hidden, scale_factor=2.0, mode="nearest"))
        return self.last(silu(self.last_norm(hidden)))
