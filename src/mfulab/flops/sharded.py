"""Models spread over ranks: FLOPs of the job from those of its ranks, and plans counted on one process without any.

A counter sees what its rank computes: DTensor's and FSDP2's operators on local shards. The sum over ranks is the job.
If a wrapper cannot be counted, count the model before it is wrapped, or give the number yourself.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from mfulab.device import GPU
from mfulab.flops.cost import FLOPS
from mfulab.flops.counter import Operations


def job_flops(operations: Operations, group: dist.ProcessGroup | None = None) -> dict[str, dict[str, int]]:
    """FLOPs of all ranks together, by pass and kind; every rank of `group` must call it.

    Without a process group it is this process alone. Whole numbers below 2⁶³ are summed exactly.
    """
    passes = ("forward", "backward", "recomputed")
    mine = {one: operations.sum(one) for one in passes}  # type: ignore[arg-type]
    counts = torch.tensor([getattr(mine[one], name) for one in passes for name in FLOPS], dtype=torch.int64)
    if dist.is_available() and dist.is_initialized():
        on = torch.device(GPU, torch.cuda.current_device()) if "nccl" in dist.get_backend(group) else counts.device
        counts = counts.to(on)
        dist.all_reduce(counts, group=group)
    numbers = iter(counts.tolist())
    return {one: {name: next(numbers) for name in FLOPS} for one in passes}


@contextmanager
def pretended_ranks(world_size: int, rank: int = 0) -> Iterator[None]:
    """Inside it, this process is `rank` of a job of `world_size` whose others do not exist.

    Device meshes, DTensor and FSDP2 can be set up as for the real job, and the step counted: collectives return at
    once, without values. On the meta device no memory is needed.

    Raises RuntimeError if the process already belongs to a job.
    """
    pretend_ranks(world_size, rank)
    try:
        yield
    finally:
        dist.destroy_process_group()


def pretend_ranks(world_size: int, rank: int = 0) -> None:
    """Makes this process a rank of a pretended job for good; raises RuntimeError if it belongs to a job."""
    if dist.is_initialized():
        raise RuntimeError("this process already belongs to a job; count its own steps instead")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
