"""Small models with Python branches, which torch.compile follows, breaks the graph at, or
recompiles for."""

from typing import Literal

import torch
from torch import nn


class Branching(nn.Module):
    """Two linear layers, of which each call uses one: [batch, width] → [batch, width]. `branch`
    decides which: `nothing` always the first; `data` by a value of the inputs; `cond` likewise but
    by `torch.cond`, which keeps both branches in the graph; `number` by the number of calls, a
    Python integer."""

    def __init__(
        self, branch: Literal["nothing", "data", "cond", "number"] = "nothing", width: int = 256
    ) -> None:
        super().__init__()
        self.branch = branch
        self.calls = 0
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.branch == "cond" and not inputs.is_meta:
            return torch.cond(inputs[0, 0] > 0, self.first, self.second, (inputs,))
        if self.branch == "data" and not inputs.is_meta and inputs[0, 0] > 0:
            return self.second(inputs)
        if self.branch == "number":
            self.calls += 1
            if self.calls % 2:
                return self.second(inputs)
        return self.first(inputs)
