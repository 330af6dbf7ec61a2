"""RetinaNet: a residual network, a feature pyramid over it, and two heads that every level of the pyramid shares."""

import torch
from torch import nn
from torch.nn import functional

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Planes and blocks of each stage of ResNet-50."""
EXPANSION = 4


class FrozenBatchNorm(nn.Module):
    """Batch normalisation with statistics and weights that do not change: a scale and a shift for each channel."""

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(channels))
        self.register_buffer("shift", torch.zeros(channels))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features * self.scale[:, None, None] + self.shift[:, None, None]


def _normed(into: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(into, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, FrozenBatchNorm(out))


class Bottleneck(nn.Module):
    """1×1, 3×3 in groups, 1×1; the stride is the 3×3's."""

    def __init__(self, into: int, width: int, out: int, stride: int, groups: int) -> None:
        super().__init__()
        self.narrow, self.middle = _normed(into, width, 1), _normed(width, width, 3, stride, groups)
        self.widen = _normed(width, out, 1)
        self.shortcut = _normed(into, out, 1, stride) if stride > 1 or into != out else nn.Identity()

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.middle(torch.relu(self.narrow(features))))
        return torch.relu(self.widen(hidden) + self.shortcut(features))


def _stage(into: int, planes: int, blocks: int, stride: int, groups: int, group_width: int) -> nn.Sequential:
    width, out = planes * group_width // 64 * groups, planes * EXPANSION
    first = Bottleneck(into, width, out, stride, groups)
    return nn.Sequential(first, *(Bottleneck(out, width, out, 1, groups) for _ in range(1, blocks)))


def _head(channels: int, out: int) -> nn.Sequential:
    hidden = [layer for _ in range(4) for layer in (nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Conv2d(channels, out, 3, padding=1))


class RetinaNet(nn.Module):
    """[batch, 3, height, width] → [batch, anchors, classes + 4]: scores and a box for each anchor.

    Lin et al. 2017, arXiv:1708.02002, as torchvision and MLPerf Training build it: features of the last three stages
    and two coarser ones, nine anchors a place. Matching anchors to boxes and suppressing duplicates multiply nothing.

    Args:
        classes: number of classes.
        groups: of each 3×3 convolution; 32 with `group_width` 4 is ResNeXt-50 32×4d.
        group_width: channels of a group in the first stage; 64 in one group is ResNet-50.
        trainable_stages: stages with gradients, from the last; below them nothing has one.
        anchors: a place.
        channels: of the pyramid.
    """

    def __init__(
        self,
        classes: int,
        groups: int = 1,
        group_width: int = 64,
        trainable_stages: int = 3,
        anchors: int = 9,
        channels: int = 256,
    ) -> None:
        super().__init__()
        self.classes = classes
        self.stem = nn.Sequential(_normed(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        stages, into = [], 64
        for number, (planes, blocks) in enumerate(STAGES):
            stages.append(_stage(into, planes, blocks, 1 if number == 0 else 2, groups, group_width))
            into = planes * EXPANSION
        self.stages = nn.ModuleList(stages)
        frozen = stages[: len(stages) - trainable_stages]
        for part in (self.stem, *frozen) if trainable_stages < 5 else ():
            part.requires_grad_(False)
        outs = [planes * EXPANSION for planes, _ in STAGES[1:]]
        self.lateral = nn.ModuleList(nn.Conv2d(out, channels, 1) for out in outs)
        self.smooth = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in outs)
        self.coarser = nn.ModuleList(nn.Conv2d(channels, channels, 3, 2, 1) for _ in range(2))
        self.scores, self.boxes = _head(channels, anchors * classes), _head(channels, anchors * 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found, features = [], self.stem(images)
        for stage in self.stages:
            features = stage(features)
            found.append(features)
        inner = [lateral(level) for lateral, level in zip(self.lateral, found[1:], strict=True)]
        for fine in (1, 0):
            inner[fine] = inner[fine] + functional.interpolate(inner[fine + 1], size=inner[fine].shape[-2:])
        levels = [smooth(level) for smooth, level in zip(self.smooth, inner, strict=True)]
        levels.append(self.coarser[0](levels[-1]))
        levels.append(self.coarser[1](torch.relu(levels[-1])))
        scores = torch.cat([self._by_anchor(self.scores(level), self.classes) for level in levels], dim=1)
        boxes = torch.cat([self._by_anchor(self.boxes(level), 4) for level in levels], dim=1)
        return torch.cat([scores, boxes], dim=-1)

    @staticmethod
    def _by_anchor(output: torch.Tensor, values: int) -> torch.Tensor:
        """[batch, anchors·values, height, width] → [batch, height·width·anchors, values]."""
        return output.unflatten(1, (-1, values)).permute(0, 3, 4, 1, 2).flatten(1, 3)
