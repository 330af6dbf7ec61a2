"""Your own model in mfulab: a function that returns a torch.nn.Module, and what its input looks like, are all it takes.

From the project's folder (files in it are found by their dotted path; others need PYTHONPATH):

    mfulab run count_flops model._target_=examples.my_model.build "model.input_shape=[3,64,64]" batch_size=8
    snakemake --cores 1 report --config model=my_model   # with the config file that docs/flops.md shows
"""

import torch
from torch import nn


class PatchMixer(nn.Module):
    """Cuts an image into patches, mixes them by a depthwise convolution and by a linear layer, and
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
    """What `model._target_=my_model.build` calls; `+model.arguments.width=128` and the like are its
    arguments."""
    return PatchMixer(width, depth, classes)
