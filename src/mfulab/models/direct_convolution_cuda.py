"""Direct convolution on a GPU: a thread an output element, by Numba."""

import torch
from numba import cuda

from mfulab.kernels.numba_cuda import current_stream, device_array

THREADS = 256


def convolve(images: torch.Tensor, filters: torch.Tensor, out: torch.Tensor, padding: int) -> None:
    """Writes the convolution into out[batch, out, height', width'], which holds zeros."""
    _launch(_convolve, images, filters, out, padding)


def correlate(images: torch.Tensor, gradient: torch.Tensor, found: torch.Tensor, padding: int) -> None:
    """Writes the filters' gradient into found[out, in, side, side], which holds zeros."""
    _launch(_correlate, images, gradient, found, padding)


def _launch(kernel, left, right, result, padding) -> None:
    blocks = -(-result.numel() // THREADS)
    kernel[blocks, THREADS, current_stream()](device_array(left), device_array(right), device_array(result), padding)


@cuda.jit
def _convolve(images, filters, out, padding):
    place = cuda.grid(1)
    if place >= out.size:
        return
    height, width = images.shape[2], images.shape[3]
    count, rows, columns = out.shape[1], out.shape[2], out.shape[3]
    column, row = place % columns, place // columns % rows
    made, image = place // (columns * rows) % count, place // (columns * rows * count)
    total = out[image, made, row, column]  # 0 in the format: a literal's sum would be float64
    for channel in range(images.shape[1]):
        for down in range(filters.shape[2]):
            for right in range(filters.shape[3]):
                y, x = row + down - padding, column + right - padding
                if 0 <= y < height and 0 <= x < width:
                    total += images[image, channel, y, x] * filters[made, channel, down, right]
    out[image, made, row, column] = total


@cuda.jit
def _correlate(images, gradient, found, padding):
    place = cuda.grid(1)
    if place >= found.size:
        return
    height, width = images.shape[2], images.shape[3]
    channels, side = found.shape[1], found.shape[2]
    right, down = place % side, place // side % side
    channel, made = place // (side * side) % channels, place // (side * side * channels)
    total = found[made, channel, down, right]
    for image in range(images.shape[0]):
        for row in range(gradient.shape[2]):
            for column in range(gradient.shape[3]):
                y, x = row + down - padding, column + right - padding
                if 0 <= y < height and 0 <= x < width:
                    total += images[image, channel, y, x] * gradient[image, made, row, column]
    found[made, channel, down, right] = total
