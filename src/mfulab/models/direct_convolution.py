"""Direct convolution with Numba on a CPU, without an unfolded copy. It is an operator with a
gradient and a FLOP formula."""

from typing import Any

import numba
import torch
from numba import njit, prange

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said
from mfulab.flops import register
from mfulab.flops.operators import convolution_flops

DTYPES = (torch.float32, torch.float64)


@torch.library.custom_op("mfulab::direct_convolution", mutates_args=())
def direct_convolution(images: torch.Tensor, filters: torch.Tensor, padding: int) -> torch.Tensor:
    """Convolves images[batch, in, height, width] with filters[out, in, side, side] → [batch, out,
    height', width'], with stride 1. Raises UnsupportedError on a GPU and for other dtypes than
    float32 and float64."""
    out = images.new_zeros(_shape(images, filters, padding))
    _convolve(*_arrays(images, filters), out.numpy(), padding)
    return out


@torch.library.custom_op("mfulab::direct_convolution_filters", mutates_args=())
def direct_convolution_filters(
    images: torch.Tensor, gradient: torch.Tensor, side: int, padding: int
) -> torch.Tensor:
    """Gradient of the filters, from images[batch, in, height, width] and gradient[batch, out, …] →
    [out, in, side, side]."""
    weight_gradient = images.new_zeros(gradient.shape[1], images.shape[1], side, side)
    _correlate(*_arrays(images, gradient), weight_gradient.numpy(), padding)
    return weight_gradient


def _shape(images: torch.Tensor, filters: torch.Tensor, padding: int) -> tuple[int, int, int, int]:
    """Shape of the output. Raises UnsupportedError on a GPU and for other dtypes."""
    if images.is_cuda:
        raise UnsupportedError(Said("direct_on_cpu"))
    if images.dtype not in DTYPES:
        raise UnsupportedError(Said("direct_formats", dtype=str(images.dtype)))
    height, width = (extent + 2 * padding - filters.shape[2] + 1 for extent in images.shape[2:])
    return images.shape[0], filters.shape[0], height, width


def _arrays(*tensors: torch.Tensor) -> tuple[Any, ...]:
    numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    return tuple(tensor.detach().contiguous().numpy() for tensor in tensors)


@direct_convolution.register_fake
def _(images: torch.Tensor, filters: torch.Tensor, padding: int) -> torch.Tensor:
    return images.new_empty(_shape(images, filters, padding))


@direct_convolution_filters.register_fake
def _(images: torch.Tensor, gradient: torch.Tensor, side: int, padding: int) -> torch.Tensor:
    return images.new_empty(gradient.shape[1], images.shape[1], side, side)


def _save(ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor, int], output: torch.Tensor) -> None:
    images, filters, ctx.padding = inputs
    ctx.save_for_backward(images, filters)


def _differentiate(
    context: Any, gradient: torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
    images, filters = context.saved_tensors
    needs_images, needs_filters, _ = context.needs_input_grad
    side = filters.shape[2]
    padding = context.padding
    rotated = filters.flip(2, 3).transpose(0, 1)
    images_gradient = filters_gradient = None
    if needs_images:
        images_gradient = direct_convolution(gradient, rotated, side - 1 - padding)
    if needs_filters:
        filters_gradient = direct_convolution_filters(images, gradient, side, padding)
    return images_gradient, filters_gradient, None


direct_convolution.register_autograd(_differentiate, setup_context=_save)


def _flops(images: Any, filters: Any, padding: int) -> int:
    height, width = (extent + 2 * padding - filters.shape[2] + 1 for extent in images.shape[2:])
    output_shape = (images.shape[0], filters.shape[0], height, width)
    return convolution_flops(images.shape, filters.shape, output_shape, transposed=False)


register(direct_convolution, _flops)
register(
    direct_convolution_filters,
    lambda images, gradient, side, padding: 2 * gradient.numel() * images.shape[1] * side**2,
)


@njit(parallel=True, fastmath={"contract"})
def _convolve(images, filters, out, padding):
    # the inner loop runs along rows from 0, so that the compiler vectorises it
    batch, channels, height, width = images.shape
    count, _, side, _ = filters.shape
    rows, columns = out.shape[2:]
    for plane in prange(batch * count):
        image = plane // count
        filter_index = plane % count
        for channel in range(channels):
            for down in range(side):
                for right in range(side):
                    weight = filters[filter_index, channel, down, right]
                    shift = right - padding
                    first = max(0, -shift)
                    last = min(columns, width - shift)
                    for row in range(max(0, padding - down), min(rows, height + padding - down)):
                        target = out[image, filter_index, row, first:last]
                        source = images[
                            image, channel, row + down - padding, first + shift : last + shift
                        ]
                        for column in range(len(target)):
                            target[column] += weight * source[column]


@njit(parallel=True, fastmath={"contract", "reassoc"})
def _correlate(images, gradient, result, padding):
    batch, channels, height, width = images.shape
    count, rows, columns = gradient.shape[1:]
    side = result.shape[2]
    for plane in prange(count * channels):
        filter_index = plane // channels
        channel = plane % channels
        for down in range(side):
            for right in range(side):
                shift = right - padding
                first = max(0, -shift)
                last = min(columns, width - shift)
                # 0 in the result's dtype, so that the sum is not in float64
                total = result[filter_index, channel, down, right]
                for image in range(batch):
                    for row in range(max(0, padding - down), min(rows, height + padding - down)):
                        gradient_row = gradient[image, filter_index, row, first:last]
                        source = images[
                            image, channel, row + down - padding, first + shift : last + shift
                        ]
                        for column in range(len(gradient_row)):
                            total += gradient_row[column] * source[column]
                result[filter_index, channel, down, right] = total
