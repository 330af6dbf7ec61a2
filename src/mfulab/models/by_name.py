"""Models of several named inputs, which a batch holds as one row of floats a sample."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn


class ByName(nn.Module):
    """Splits rows [batch, sum of all inputs' elements] into a model's named inputs, and calls it
    with them. Float inputs are views. Inputs of `vocabularies` are token ids, made from the floats
    at a cost of a few element-wise operators."""

    def __init__(
        self,
        model: nn.Module,
        shapes: Mapping[str, Sequence[int]],
        vocabularies: Mapping[str, int],
    ) -> None:
        super().__init__()
        self.model = model
        self.shapes = dict(shapes)
        self.vocabularies = dict(vocabularies)
        self.sizes = [math.prod(shape) for shape in shapes.values()]

    def forward(self, rows: torch.Tensor) -> object:
        """Calls the model; returns its output."""
        parts = rows.split(self.sizes, dim=1)
        named = {}
        for (name, shape), part in zip(self.shapes.items(), parts, strict=True):
            shaped = part.unflatten(1, shape)
            if name in self.vocabularies:
                shaped = _ids(shaped, self.vocabularies[name])
            named[name] = shaped
        return self.model(**named)


def _ids(floats: torch.Tensor, vocabulary_size: int) -> torch.Tensor:
    """Token ids below `vocabulary_size` from random normal floats."""
    scaled = floats.float().abs() * vocabulary_size
    return scaled.long() % vocabulary_size
