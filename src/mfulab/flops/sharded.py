"""Counts models that are sharded over ranks, in one process: operators of DTensor and FSDP2 on
local shards."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist


@contextmanager
def pretended_ranks(world_size: int, rank: int = 0) -> Iterator[None]:
    """Makes this process, while entered, `rank` of a simulated job of `world_size` ranks; the
    others do not exist. Device meshes, DTensor and FSDP2 can be set up as for the real job.
    Collectives return at once, without values. On the meta device no memory is needed. Raises
    RuntimeError if the process already belongs to a job."""
    pretend_ranks(world_size, rank)
    try:
        yield
    finally:
        dist.destroy_process_group()


def pretend_ranks(world_size: int, rank: int = 0) -> None:
    """Makes this process a rank of a simulated job permanently. Raises RuntimeError if it already
    belongs to a job."""
    if dist.is_initialized():
        raise RuntimeError("this process already belongs to a job; count its own steps instead")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
