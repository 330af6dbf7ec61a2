"""Transforms of images that are tensors already; they can be pickled for processes that a script
spawns."""

from collections.abc import Callable, Sequence
from functools import partial

import torch

Transform = Callable[[torch.Tensor], torch.Tensor]


def Compose(parts: Sequence[Transform]) -> Transform:  # noqa: N802 (torchvision's name)
    """One after the other."""
    return partial(_composed, parts)


def _composed(parts: Sequence[Transform], image: torch.Tensor) -> torch.Tensor:
    for part in parts:
        image = part(image)
    return image


def Lambda(function: Transform) -> Transform:  # noqa: N802
    """The function itself."""
    return function


def Resize(size: int) -> Transform:  # noqa: N802
    """To a square."""
    return partial(_resized, size)


def _resized(size: int, image: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.interpolate(image[None], size=(size, size))[0]


def Normalize(mean: Sequence[float], std: Sequence[float]) -> Transform:  # noqa: N802
    """Each channel by its mean and deviation."""
    return partial(_normalised, torch.tensor(mean), torch.tensor(std))


def _normalised(mean: torch.Tensor, std: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
    return (image - mean[:, None, None]) / std[:, None, None]


def _same(image: torch.Tensor) -> torch.Tensor:
    return image


def ToTensor() -> Transform:  # noqa: N802
    """Nothing: images are tensors already."""
    return _same


def Pad(padding: int) -> Transform:  # noqa: N802
    """Zeros around, cut off again."""
    return _same


RandomCrop = CenterCrop = Pad


def RandomHorizontalFlip() -> Transform:  # noqa: N802
    """No flip: images are noise."""
    return _same
