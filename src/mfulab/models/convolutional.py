"""Small convolutional networks, for photographs and for handwritten digits."""

from typing import Literal

import torch
from torch import nn


class SimpleCNN(nn.Module):
    """A strided convolution and a linear layer: [batch, 3, 224, 224] → [batch, 10]. Forward takes
    2·32·27·112² + 2·401408·10 FLOPs per image."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 32, kernel_size=3, stride=2, padding=1)
        self.activation = nn.ReLU()
        self.classifier = nn.Linear(32 * 112 * 112, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.activation(self.convolution(images)).flatten(1))


class DigitCNN(nn.Module):
    """Two 3×3 convolutions to five channels and two linear layers: [batch, 1, 28, 28] → [batch,
    10]. FLOPs per image, forward: 60,840 (2·26²·9·5), 259,200 (2·24²·45·5), 737,280 (2·2880·128)
    and 2,560 (2·128·10)."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 5, kernel_size=3), nn.ReLU(), nn.Conv2d(5, 5, kernel_size=3)
        )
        self.hidden = nn.Linear(5 * 24 * 24, 128)
        self.classifier = nn.Linear(128, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.convolutions(images)).flatten(1)
        return self.classifier(torch.relu(self.hidden(features)))


def small_digits(
    channels: int = 16, hidden: int = 128, pooled: int = 0, separable: bool = False
) -> nn.Sequential:
    """Builds two 3×3 convolutions and two linear layers: [batch, 1, 8, 8] → [batch, 10]. With the
    default arguments, forward takes 1,135,104 FLOPs per image. `pooled`, from 0 to 2, is the number
    of convolutions after which height and width are halved."""
    side = 8 // 2**pooled
    pooled_again = []
    if pooled > 1:
        pooled_again = [nn.MaxPool2d(2)]
    return nn.Sequential(
        _convolution(1, channels),
        _pooling(pooled > 0),
        _convolution(channels, 2 * channels, separable),
        *pooled_again,
        nn.Flatten(),
        nn.Linear(2 * channels * side**2, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 10),
    )


class ThreeConvolutions(nn.Module):
    """Three 3×3 convolutions, the mean over the image and a linear layer: [batch, 3, height, width]
    → [batch, 10]. To save FLOPs, `pooled` halves height and width after that many convolutions.
    `separable` makes all but the first depthwise and pointwise (Howard et al. 2017,
    arXiv:1704.04861). `kept` is the share of channels left by pruning filters (Li et al. 2017,
    arXiv:1608.08710)."""

    def __init__(self, pooled: int = 0, separable: bool = False, kept: float = 1.0) -> None:
        super().__init__()
        first, second, third = (round(kept * channels) for channels in (64, 128, 128))
        self.features = nn.Sequential(
            _convolution(3, first),
            _pooling(pooled > 0),
            _convolution(first, second, separable),
            _pooling(pooled > 1),
            _convolution(second, third, separable),
            _pooling(pooled > 2),
        )
        self.classifier = nn.Linear(third, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images).mean((2, 3)))


class OneConvolution(nn.Module):
    """A 3×3 convolution with padding 1 and no bias: [batch, channels, height, width] → [batch, out,
    height, width]. Takes 2·9·channels·out·height·width FLOPs per image. `way` is `library`,
    `direct` (loops compiled by Numba), or `im2col`. The last is a matmul of filters and unfolded
    images (Chellapilla et al. 2006), which copies each pixel nine times."""

    def __init__(
        self,
        channels: int = 64,
        out: int = 64,
        way: Literal["library", "im2col", "direct"] = "library",
    ) -> None:
        super().__init__()
        self.way = way
        initial = nn.Conv2d(channels, out, kernel_size=3, bias=False)
        self.filters = nn.Parameter(initial.weight.detach())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.way == "direct":
            from mfulab.models.direct_convolution import direct_convolution

            return direct_convolution(images, self.filters, 1)
        if self.way == "im2col":
            columns = nn.functional.unfold(images, kernel_size=3, padding=1)
            product = self.filters.flatten(1) @ columns
            return product.unflatten(2, images.shape[2:])
        return nn.functional.conv2d(images, self.filters, padding=1)

    def exact(self, images: torch.Tensor) -> torch.Tensor:
        """Computes the convolution by the library in float64."""
        return nn.functional.conv2d(images.double(), self.filters.double(), padding=1)


def _pooling(halves: bool) -> nn.Module:
    if halves:
        return nn.MaxPool2d(2)
    return nn.Identity()


def _convolution(channels: int, out: int, separable: bool = False) -> nn.Module:
    if not separable:
        full = nn.Conv2d(channels, out, kernel_size=3, padding=1)
        return nn.Sequential(full, nn.ReLU())
    depthwise = nn.Conv2d(channels, channels, kernel_size=3, padding=1, groups=channels)
    pointwise = nn.Conv2d(channels, out, kernel_size=1)
    return nn.Sequential(depthwise, pointwise, nn.ReLU())
