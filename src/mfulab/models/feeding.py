"""Batches from a torch DataLoader on the host: random, decoded from JPEG, from a memory-mapped
file, or real digits.

`digits.csv.gz` holds the 1,797 test images of "Optical Recognition of Handwritten Digits" (E.
Alpaydin, C. Kaynak 1998, UCI Machine Learning Repository, doi:10.24432/C50P49, CC BY 4.0). Each
line has 64 pixels from 0 to 16, and the digit. It is sklearn/datasets/data/digits.csv.gz of
scikit-learn 1.9.1 (BSD-3-Clause), unchanged.
"""

import gzip
import io
import itertools
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import ModelConfig, WorkloadConfig
from mfulab.core.said import Said, cell_of
from mfulab.device.cpu import usable_cores
from mfulab.models.build import Batch, make_batch

Sample = tuple[torch.Tensor, torch.Tensor]
IMAGES = 16  # number of different images, which are decoded repeatedly
MARGIN = 8 / 7  # side of a stored image ÷ side of the crop: 256 ÷ 224, as common for ImageNet
QUALITY = 90  # JPEG quality
RANDOM_FILE_BYTES = 64 << 20  # size of the file that is made if the config names none
MEAN = 127.5  # mean and standard deviation of uniform bytes
DEVIATION = 73.9


def feeder(
    batch: Batch, config: ModelConfig, workload: WorkloadConfig, sequence_length: int | None
) -> Callable[[], None]:
    """Returns a function that copies a new batch from a DataLoader into `batch`. Raises
    UnsupportedError if the model does not take such samples, or for pinned memory without a GPU."""
    on_gpu = batch.inputs.is_cuda
    if workload.loader_pinned and not on_gpu:
        raise UnsupportedError(Said("pinned_for_gpus"))
    sources: dict[str, Callable[[], Dataset[Sample]]] = {
        "random": lambda: _RandomSamples(config, sequence_length),
        "decode": lambda: Photographs(config),
        "digits": lambda: Digits(config),
        "file": lambda: Mapped(config, sequence_length, workload.loader_file),
    }
    pinned = workload.loader_pinned
    if pinned is None:
        pinned = on_gpu
    loader = DataLoader(
        sources[workload.loader_source](),
        batch_sampler=_RandomIndices(len(batch.inputs), workload.loader_epoch),
        num_workers=workload.loader_workers,
        pin_memory=pinned,
        prefetch_factor=workload.loader_prefetch,
        persistent_workers=workload.loader_persistent,
    )
    # The first epoch's workers start now, those of later epochs when these begin.
    later_epochs = itertools.chain.from_iterable(itertools.repeat(loader))
    batches = itertools.chain(iter(loader), later_epochs)

    def fetch() -> None:
        drawn, targets = next(batches)
        batch.inputs.copy_(drawn, non_blocking=True)
        batch.targets.copy_(targets, non_blocking=True)

    return fetch


def beyond_cores(workload: WorkloadConfig) -> dict[str, Any]:
    """Returns the `message` that a DataLoader has more workers than there are cores; empty if it
    does not."""
    workers = workload.loader_workers
    cores = usable_cores()
    if workload.input != "host" or workers <= cores:
        return {}
    return {"message": cell_of(Said("too_many_workers", workers=workers, cores=cores))}


class _RandomIndices:
    """Batches of random indices, the same in each epoch; without `batches` an epoch never ends."""

    def __init__(self, batch_size: int, batches: int | None) -> None:
        self._batch_size = batch_size
        self._batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(0)
        batches = itertools.count() if self._batches is None else range(self._batches)
        for _ in batches:
            yield torch.randint(1 << 30, (self._batch_size,), generator=generator).tolist()


class _RandomSamples(Dataset[Sample]):
    """Random samples, drawn anew for each index."""

    def __init__(self, config: ModelConfig, sequence_length: int | None) -> None:
        self._config = config
        self._sequence_length = sequence_length

    def __getitem__(self, index: int) -> Sample:
        batch = make_batch(self._config, 1, self._sequence_length)
        return batch.inputs[0], batch.targets[0]


class Photographs(Dataset[Sample]):
    """JPEGs in memory, of one or three channels. Each is decoded, cropped at varying places, every
    other one mirrored, and normalised to floats."""

    def __init__(self, config: ModelConfig) -> None:
        shape = config.sample_shape
        if len(shape) != 3 or shape[0] not in (1, 3):
            raise UnsupportedError(Said("jpegs_need_images"))
        from PIL import Image

        self._open = Image.open
        self._mode = {1: "L", 3: "RGB"}[shape[0]]
        self._height, self._width = shape[1:]
        sides = round(MARGIN * self._width), round(MARGIN * self._height)
        self._jpegs = [_jpeg(Image, self._mode, sides, seed) for seed in range(IMAGES)]

    def __getitem__(self, index: int) -> Sample:
        with self._open(io.BytesIO(self._jpegs[index % IMAGES])) as image:
            decoded = np.array(image.convert(self._mode)).reshape(image.height, image.width, -1)
        height, width = decoded.shape[:2]
        top = index % (height - self._height + 1)
        left = index // 7 % (width - self._width + 1)
        pixels = decoded[top : top + self._height, left : left + self._width]
        cropped = torch.from_numpy(pixels)
        if index % 2:
            cropped = cropped.flip(1)
        return _normalised(cropped.permute(2, 0, 1)), torch.tensor(index % 2)


def _jpeg(library: Any, mode: str, sides: tuple[int, int], seed: int) -> bytes:
    """A random smooth image with grain, as JPEG bytes."""
    generator = np.random.default_rng(seed)
    width, height = sides
    coarse_shape = (max(1, height // 16), max(1, width // 16), len(mode))
    coarse = generator.integers(0, 256, coarse_shape, np.uint8)
    if mode == "L":
        coarse = coarse.squeeze(2)
    enlarged = library.fromarray(coarse).resize(sides, library.Resampling.BICUBIC)
    smooth = np.array(enlarged)
    grain = generator.normal(0, 6, smooth.shape)
    pixels = np.clip(smooth + grain, 0, 255).astype(np.uint8)
    coded = io.BytesIO()
    library.fromarray(pixels).save(coded, "jpeg", quality=QUALITY)
    return coded.getvalue()


def handwritten() -> Sample:
    """Returns the images of handwritten digits, [1797, 8, 8] with values from 0 to 16, and their
    digits."""
    with gzip.open(Path(__file__).with_name("digits.csv.gz"), "rt") as file:
        values = torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.float32))
    return values[:, :64].reshape(-1, 8, 8), values[:, 64].long()


class Digits(Dataset[Sample]):
    """Handwritten digits, normalised and enlarged to a model's input size, the same in all
    channels."""

    def __init__(self, config: ModelConfig) -> None:
        shape = config.sample_shape
        if len(shape) != 3 or config.task != "classification":
            raise UnsupportedError(Said("digits_need_images"))
        self._shape = shape
        images, self._targets = handwritten()
        self._images = (images - images.mean()) / images.std()

    def __getitem__(self, index: int) -> Sample:
        index %= len(self._images)
        enlarged = nn.functional.interpolate(self._images[index, None, None], size=self._shape[1:])
        return enlarged[0].expand(*self._shape), self._targets[index]


class Mapped(Dataset[Sample]):
    """Samples one after another in a memory-mapped file: bytes of images, or token ids. Without a
    path, a random file is made."""

    def __init__(self, config: ModelConfig, sequence_length: int | None, path: str | None) -> None:
        self._tokens = config.vocabulary_size
        self._labelled = config.task == "language_modeling"
        shape = config.sample_shape
        if self._tokens:
            shape = [sequence_length or config.sequence_length or 1]
        values = math.prod(shape)
        dtype = np.dtype(f"u{config.sample_bytes(sequence_length) // values}")
        if path is None:
            count = max(1, RANDOM_FILE_BYTES // (values * dtype.itemsize))
            mapped = _random_file(self._tokens or 256, count * values, dtype)
        else:
            mapped = np.memmap(Path(path), dtype, "r")
        samples = len(mapped) // values
        self._samples = mapped[: samples * values].reshape(-1, *shape)

    def __getitem__(self, index: int) -> Sample:
        sample = torch.from_numpy(np.array(self._samples[index % len(self._samples)]))
        if not self._tokens:
            return _normalised(sample), torch.tensor(index % 2)
        tokens = sample.to(torch.int64)
        if self._labelled:
            return tokens, tokens.roll(-1)
        return tokens, torch.tensor(index % 2)


def _random_file(below: int, count: int, dtype: np.dtype[Any]) -> np.memmap[Any, Any]:
    """Maps a file of random integers from 0 up to `below`."""
    drawn = np.random.default_rng(0).integers(0, below, count, dtype)
    with tempfile.TemporaryFile() as file:
        file.write(drawn.tobytes())
        file.flush()
        return np.memmap(file, dtype, "r")


def _normalised(values: torch.Tensor) -> torch.Tensor:
    """Converts bytes to floats with mean 0 and standard deviation 1."""
    return values.to(torch.float32).sub_(MEAN).div_(DEVIATION)
