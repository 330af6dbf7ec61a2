"""Your own model in mfulab: a function that returns a torch.nn.Module, and the shape of its input.

From the project's folder (files in it are found by their dotted path; others need PYTHONPATH):

    mfulab run count_flops model._target_=examples.my_model.build "model.input_shape=[3,64,64]" batch_size=8
    snakemake --cores 1 report --config model=my_model   # with the config file that docs/flops.md shows
"""

import torch
from torch import nn


class PatchMixer(nn.Module):
    """Splits an image into patches, mixes them by depthwise convolutions and linear layers, and
    classifies."""

    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, kernel_size=8, stride=8)
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(width, width, kernel_size=5, padding=2, groups=width),
                    nn.GELU(),
                    nn.Conv2d(width, width, kernel_size=1),
                )
                for _ in range(depth)
            )
        )
        self.classifier = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.blocks(self.patches(images)).mean((2, 3)))


def build(width: int = 64, depth: int = 4, classes: int = 10) -> nn.Module:
    """Function for `model._target_=my_model.build`. Set its arguments by
    `+model.arguments.width=128`."""
    return PatchMixer(width, depth, classes)
