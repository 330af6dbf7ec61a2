"""Layer norm followed by GELU, written in several ways: the same values, with different traffic to
memory."""

import math
from functools import cache
from typing import Final

import torch
from torch import nn
from torch.nn import functional

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said
from mfulab.device import is_gpu, require_cuda

# One stream per device, made once, so that making it is not timed in each step.
_side_stream = cache(torch.cuda.Stream)


class LibraryNormGelu(nn.Module):
    """torch's layer norm and GELU, one operator each: [..., width] → [..., width]. GELU uses tanh:
    0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))) (Hendrycks and Gimpel 2016, arXiv:1606.08415)."""

    epsilon: Final[float] = 1e-5
    slope: Final[float] = math.sqrt(2 / math.pi)
    cube: Final[float] = 0.044715

    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        normal = functional.layer_norm(inputs, self.weight.shape, self.weight, self.bias)
        return functional.gelu(normal, approximate="tanh")


class HandNormGelu(LibraryNormGelu):
    """Layer norm and GELU as one element-wise operator after another. Each reads and writes the
    whole tensor."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        centred = inputs - inputs.mean(-1, keepdim=True)
        variance = (centred * centred).mean(-1, keepdim=True)
        normal = centred * torch.rsqrt(variance + self.epsilon) * self.weight + self.bias
        return (
            0.5
            * normal
            * (1 + torch.tanh(self.slope * (normal + self.cube * (normal * normal * normal))))
        )


class InPlaceNormGelu(HandNormGelu):
    """Layer norm and GELU as element-wise operators in place, which write where they read. Only
    possible without a backward pass."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            if inputs.device.type == "meta":  # for counting FLOPs
                return super().forward(inputs)
            raise UnsupportedError(Said("in_place_overwrites"))
        centred = inputs - inputs.mean(-1, keepdim=True)
        variance = (centred * centred).mean(-1, keepdim=True)
        scale = variance.add_(self.epsilon).rsqrt_()
        normal = centred.mul_(scale).mul_(self.weight).add_(self.bias)
        inner = (normal * normal).mul_(normal)  # the cube
        inner.mul_(self.cube).add_(normal).mul_(self.slope)
        inner.tanh_().add_(1)
        return inner.mul_(normal).mul_(0.5)


class Halves(nn.Module):
    """Computes two independent halves of [batch, tokens, width] in one stream or in two. Two
    streams raise UnsupportedError on a CPU."""

    def __init__(self, width: int = 1024, streams: int = 1) -> None:
        super().__init__()
        self.part = LibraryNormGelu(width)
        self.streams = streams

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        first, second = inputs.chunk(2, dim=1)
        if self.streams == 1 or inputs.device.type == "meta":
            return torch.cat([self.part(first), self.part(second)], dim=1)
        if not is_gpu(inputs.device):
            raise UnsupportedError(Said("two_streams_need_nvidia"))
        require_cuda(inputs.device, "two streams")
        main = torch.cuda.current_stream()
        side = _side_stream(inputs.device)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            later = self.part(second)
        earlier = self.part(first)
        main.wait_stream(side)
        later.record_stream(main)
        return torch.cat([earlier, later], dim=1)
