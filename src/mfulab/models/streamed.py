"""Matrices on the host that are copied to the device, multiplied and copied back, in one stream or
in several."""

from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
from torch import nn

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said
from mfulab.device import is_gpu, require_cuda


# Made once per device, so that making streams is not timed in each step.
@cache
def _streams(device: torch.device, count: int) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(count)]


class Streamed(nn.Module):
    """A linear layer over [batch, rows, width], one sample after another, from page-locked host
    memory and back to it.

    With several streams, samples take turns, so that one is copied while another is multiplied. The
    samples are those of the first call with their shape. Several streams raise UnsupportedError on
    a CPU.
    """

    def __init__(self, width: int = 2048, streams: int = 1) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width, bias=False)
        self.streams = streams
        self._host: tuple[torch.Tensor, torch.Tensor] | None = None  # samples and results

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if inputs.device.type == "meta":
            return self.layer(inputs)
        sides = self._side_streams(inputs.device)
        sent, received = self._host_tensors(inputs)
        results = []
        for index, sample in enumerate(sent):
            stream: AbstractContextManager[object] = nullcontext()
            if sides:
                stream = torch.cuda.stream(sides[index % self.streams])
            with stream:
                result = self.layer(sample.to(inputs.device, non_blocking=True))
                received[index].copy_(result.detach(), non_blocking=True)
            results.append(result)
        if sides:
            main = torch.cuda.current_stream()
            for index, result in enumerate(results):
                main.wait_stream(sides[index % self.streams])
                result.record_stream(main)
        return torch.stack(results)

    def _side_streams(self, device: torch.device) -> list[torch.cuda.Stream]:
        """Side streams, which wait for work already queued on the current stream. Empty if only one
        stream was requested."""
        if self.streams == 1:
            return []
        if not is_gpu(device):
            raise UnsupportedError(Said("streams_need_nvidia"))
        require_cuda(device, "several streams")
        for side in _streams(device, self.streams):
            side.wait_stream(torch.cuda.current_stream())
        return _streams(device, self.streams)

    def _host_tensors(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Samples and their results on the host, made at the first call. They are page-locked if a
        GPU copies them."""
        if self._host is not None:
            sent, _ = self._host
            if (sent.shape, sent.dtype) == (inputs.shape, inputs.dtype):
                return self._host
        pinned = is_gpu(inputs.device)
        sent = torch.empty(inputs.shape, dtype=inputs.dtype, pin_memory=pinned).copy_(inputs)
        received = torch.empty(sent.shape, dtype=inputs.dtype, pin_memory=pinned)
        self._host = sent, received
        return self._host
