"""Small model, and ways to shard it over two ranks."""

from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

ROWS, WIDTH, HIDDEN = 4, 8, 16
PRODUCT = 2 * ROWS * WIDTH * HIDDEN
"""One of the block's two products, unsharded."""


class Block(nn.Module):
    """Two matmuls with an activation in between. With `again`, recomputes the first part."""

    def __init__(self, again: bool = False) -> None:
        super().__init__()
        self.up, self.down, self.again = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH), again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(self.wide, x, use_reentrant=False) if self.again else self.wide(x)
        return self.down(hidden)

    def wide(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x).relu().square()


def stage_of(rank: int) -> nn.Module:
    """Part of a block that is one of two pipeline stages."""
    block = Block()
    return block.down if rank else nn.Sequential(block.up, nn.ReLU())


def _mesh():
    return init_device_mesh("cpu", (2,))


def _fsdp2(again: bool = False) -> nn.Module:
    return fully_shard(Block(again), mesh=_mesh())


def _tensor() -> nn.Module:
    return parallelize_module(
        Block(), _mesh(), {"up": ColwiseParallel(), "down": RowwiseParallel()}
    )


def _sequence() -> nn.Module:
    plan = {
        "up": ColwiseParallel(input_layouts=Shard(0)),
        "down": RowwiseParallel(output_layouts=Shard(0)),
    }
    return parallelize_module(Block(), _mesh(), plan)


WAYS: dict[str, Callable[[], nn.Module]] = {
    "plain": Block,
    "ddp": lambda: nn.parallel.DistributedDataParallel(Block()),
    "fsdp2": _fsdp2,
    "fsdp2_checkpointed": lambda: _fsdp2(True),
    "tensor": _tensor,
    "sequence": _sequence,
}
