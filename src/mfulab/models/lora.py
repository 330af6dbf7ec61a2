"""A transformer with low-rank adapters. Its weights are frozen; only the adapters are trained."""

from collections.abc import Sequence
from typing import Any

import torch

from mfulab.models import huggingface
from mfulab.models.build import ModelError


class LowRankLinear(torch.nn.Module):
    """A frozen linear layer plus B·A·x of rank `rank` (Hu et al. 2021, arXiv:2106.09685). Shapes
    are those of the frozen layer."""

    def __init__(self, frozen: torch.nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = torch.nn.Linear(frozen.in_features, rank, bias=False)
        self.up = torch.nn.Linear(rank, frozen.out_features, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.frozen(inputs) + self.up(self.down(inputs))


def build(rank: int, adapted: Sequence[str], **arguments: Any) -> torch.nn.Module:
    """Builds `huggingface.build(**arguments)` with adapters on all linear layers named in
    `adapted`. Raises ModelError if there are none."""
    model = huggingface.build(**arguments).requires_grad_(False)
    adapted_layers = []
    for parent in model.modules():
        for name, child in parent.named_children():
            if name in adapted and isinstance(child, torch.nn.Linear):
                adapted_layers.append((parent, name, child))
    if not adapted_layers:
        setting = f"model.arguments.adapted={list(adapted)}"
        raise ModelError(f"{setting}: {type(model).__name__} has no linear layer so named")
    for parent, name, child in adapted_layers:
        setattr(parent, name, LowRankLinear(child, rank))
    return model
