"""Element-wise operations on numbers below the smallest normal one, and on zeros among others, which
are slow on some CPUs and in some libraries. torch's square root calls MKL with flushing off
(ATen/cpu/vml.h), so flushing subnormal numbers to zero does not change it."""

from typing import Literal

import torch
from torch import nn

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said


class Elementwise(nn.Module):
    """Repeats a product by 0.75, a quotient by 1.3 or a square root `depth` times: [batch, width] →
    [batch, width]. Numbers lie between 0 and 1, or below the smallest normal number if `subnormal`.
    If `flushed`, the CPU treats subnormal numbers as zero. If `zeros`, numbers whose input is not
    positive are exactly zero: half of them for normal inputs."""

    def __init__(
        self,
        operation: Literal["product", "quotient", "root"] = "product",
        subnormal: bool = False,
        flushed: bool = False,
        zeros: bool = False,
        depth: int = 64,
    ) -> None:
        super().__init__()
        self.operation = operation
        self.subnormal = subnormal
        self.flushed = flushed
        self.zeros = zeros
        self.depth = depth
        if not torch.set_flush_denormal(False) and flushed:
            raise UnsupportedError(Said("no_flush_denormal"))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        numbers = torch.sigmoid(inputs)
        if self.subnormal:
            numbers = numbers * torch.finfo(inputs.dtype).smallest_normal
        if self.zeros:
            numbers = numbers * (inputs > 0)
        result = torch.empty_like(numbers)
        if self.flushed:
            # only in this thread, which computes small operations itself
            torch.set_flush_denormal(True)
        try:
            for _ in range(self.depth):
                if self.operation == "product":
                    torch.mul(numbers, 0.75, out=result)
                elif self.operation == "quotient":
                    torch.div(numbers, 1.3, out=result)
                else:
                    torch.sqrt(numbers, out=result)
        finally:
            if self.flushed:
                torch.set_flush_denormal(False)
        return result
