"""Models of several named inputs, which a batch holds as one row of floats a sample."""

import math
from collections.abc import Mapping

import torch
from torch import nn

from mfulab.core.groups import InputConfig


class ByName(nn.Module):
    """Splits rows [batch, sum of all inputs' elements] into a model's named inputs, and calls it
    with them. Float inputs are views. Token ids are made from the floats, at a cost of a few
    element-wise operators."""

    def __init__(self, model: nn.Module, inputs: Mapping[str, InputConfig]) -> None:
        super().__init__()
        self.model = model
        self.inputs = dict(inputs)
        self.sizes = [math.prod(each.shape) for each in inputs.values()]

    def forward(self, rows: torch.Tensor) -> object:
        """Calls the model; returns its output."""
        parts = rows.split(self.sizes, dim=1)
        named = {}
        for (name, form), part in zip(self.inputs.items(), parts, strict=True):
            shaped = part.unflatten(1, form.shape)
            if form.vocabulary_size is not None:
                shaped = _ids(shaped, form.vocabulary_size)
            named[name] = shaped
        return self.model(**named)


def _ids(floats: torch.Tensor, vocabulary_size: int) -> torch.Tensor:
    """Token ids below `vocabulary_size` from random normal floats."""
    scaled = floats.float().abs() * vocabulary_size
    return scaled.long() % vocabulary_size
