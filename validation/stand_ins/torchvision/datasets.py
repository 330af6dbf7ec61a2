"""Data sets of noise with the shapes of the real ones."""

from collections.abc import Callable

import torch
from torch.utils.data import Dataset

TRAINING, TEST = 6400, 640


class Noise(Dataset):
    """Images of noise, the same ones each time."""

    shape = (1, 28, 28)
    classes = 10

    def __init__(
        self,
        root: object = None,
        train: bool = True,
        transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
        download: bool = False,
        **options: object,
    ) -> None:
        size = options.get("image_size", self.shape)
        count = TRAINING if train else TEST
        drawn = torch.Generator().manual_seed(int(train))
        self.data = torch.rand(count, *size, generator=drawn)  # type: ignore[misc]
        self.targets = torch.randint(self.classes, (count,), generator=drawn)
        self._transform = transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.data[index]
        if self._transform is not None:
            image = self._transform(image)
        return image, int(self.targets[index])


class MNIST(Noise):
    """Digits."""


class CIFAR10(Noise):
    """Images in colour."""

    shape = (3, 32, 32)


class FakeData(Noise):
    """Noise, which torchvision offers for trying a script."""
