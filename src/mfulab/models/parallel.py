"""Data parallelism: one model in several processes, and what each of them should send."""

import math
import os
import time
from collections.abc import Callable
from functools import partial

import psutil
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch.nn.parallel import DistributedDataParallel

from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import DeviceConfig, ParallelConfig
from mfulab.core.said import Numbers, Said
from mfulab.device import GPU, is_gpu, visible
from mfulab.device.cpu import usable_cores
from mfulab.device.identity import gpus
from mfulab.device.samplers.reading import Reading
from mfulab.device.system import end_with_parent
from mfulab.models.build import outermost_blocks

LOOPBACK = "lo"
INTERFACE = "GLOO_SOCKET_IFNAME"  # gloo's own variable
PASSES = 3  # over which the least traffic is taken: other programs only add to it
# What the rank that is slowed on purpose sleeps in a step: more than ranks differ by on their own.
SLOWED_SHARE = 0.3
SLOWED_S = 0.02  # of its step without the sleep, at least so many seconds


def threads_per_rank(parallel: ParallelConfig, device: DeviceConfig) -> int:
    """CPU threads of each process, as asked for or a share of its node's cores; UnsupportedError
    for too few."""
    here = parallel.processes // parallel.nodes
    threads = device.threads or max(1, usable_cores() // here)
    require_devices(parallel, usable_cores() // threads, Said("cpu_cores", {"count": threads}))
    return threads


def require_devices(parallel: ParallelConfig, devices: int, kind: Said) -> None:
    """Raises UnsupportedError if a process would have no device of its own among the `devices` of
    its node."""
    if parallel.processes > devices * parallel.nodes:
        numbers: Numbers = {"processes": parallel.processes, "devices": devices, "kind": kind}
        if parallel.nodes > 1:
            raise UnsupportedError(
                Said("too_few_devices_a_node", {**numbers, "nodes": parallel.nodes})
            )
        raise UnsupportedError(Said("too_few_devices", numbers))


def see_one_gpu(place: int) -> None:
    """Hides all GPUs but the one at `place` before CUDA looks: so a rank's counters and memory are
    its own GPU's."""
    chosen = gpus()[place]
    os.environ.update(visible([chosen.uuid or str(place)]))


def run_ranks(work: Callable[..., None], arguments: tuple[object, ...], count: int) -> None:
    """Runs `work(rank, *arguments)` in as many processes, which end with this one. Raises
    RuntimeError with a failed rank's message."""
    given = (os.getpid(), work, arguments)
    try:
        processes.start_processes(_rank, given, count, start_method="spawn", daemon=True)
    except processes.ProcessRaisedException as error:
        message = str(error).strip().splitlines()[-1]
        raise RuntimeError(f"rank {error.error_index}: {message}") from error


def _rank(rank: int, parent: int, work: Callable[..., None], arguments: tuple[object, ...]) -> None:
    """Runs one rank. torch has the kernel interrupt it when its parent ends, which does not end one
    that waits for another in C++."""
    end_with_parent(parent)
    work(rank, *arguments)


def join(rank: int, parallel: ParallelConfig, meeting: dist.Store, device: torch.device) -> None:
    """Makes this process the given rank of its job: NCCL on GPUs; on a CPU gloo, over the loopback
    on one node."""
    if parallel.nodes == 1:
        os.environ.setdefault(INTERFACE, LOOPBACK)
    on_gpu = is_gpu(device)
    own = torch.device(GPU, 0) if on_gpu else None
    backend = "nccl" if on_gpu else "gloo"
    dist.init_process_group(
        backend, rank=rank, world_size=parallel.processes, store=meeting, device_id=own
    )


def wrap(model: torch.nn.Module, parallel: ParallelConfig, device: torch.device) -> torch.nn.Module:
    """The model that its processes train together; the same one for a single process."""
    if parallel.processes == 1:
        return model
    if parallel.wrapper == "ddp":
        return DistributedDataParallel(model, bucket_cap_mb=parallel.bucket_mb)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard  # a second of imports, which no other run needs

    mesh = init_device_mesh(device.type, (parallel.processes,))
    for block in outermost_blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def sends(model: torch.nn.Module, parallel: ParallelConfig) -> Callable[[bool], object]:
    """Gives what tells a wrapped model whether its next backward pass sends gradients or keeps
    them, as DDP's no_sync does: of several micro-batches only the last one sends."""
    if parallel.processes == 1:
        return lambda _: None
    if parallel.wrapper == "ddp":
        return partial(setattr, model, "require_backward_grad_sync")
    return model.set_requires_gradient_sync  # type: ignore[return-value]


def predicted_bytes(
    model: torch.nn.Module, parallel: ParallelConfig, device: torch.device, micro_batches: int = 1
) -> int:
    """Bytes that each process sends in a step to train `model`, not yet wrapped, by the formulas of
    ring collectives. Of n bytes over d processes an all-gather or reduce-scatter sends n·(d−1)/d,
    an all-reduce twice as much (Patarasuk and Yuan 2009). DDP reduces gradients to all. FSDP2
    gathers blocks' weights forward and backward, others once, of each micro-batch, and scatters
    gradients; gloo reduces to all in its place."""
    sizes = {
        id(parameter): parameter.numel() * parameter.element_size()
        for parameter in model.parameters()
    }
    others = (parallel.processes - 1) / parallel.processes
    if parallel.wrapper == "ddp":
        return round(
            2
            * others
            * sum(sizes[id(weight)] for weight in model.parameters() if weight.requires_grad)
        )
    blocks = outermost_blocks(model)
    inside = sum(
        sizes[key]
        for key in {id(parameter) for block in blocks for parameter in block.parameters()}
    )
    whole = sum(sizes.values())
    gathered = round(others * whole) + round(others * inside)
    return micro_batches * gathered + round((1 if is_gpu(device) else 2) * others * whole)


def slowed(fetch: Callable[[], None], parallel: ParallelConfig) -> Callable[[], None]:
    """`fetch` of the rank that is slowed on purpose sleeps first: a share of its shortest step
    until then."""
    if parallel.processes == 1 or parallel.slowed_rank != dist.get_rank():
        return fetch
    began = slept = 0.0
    shortest = math.inf  # a step may also hold what stands between two windows

    def late() -> None:
        nonlocal began, slept, shortest
        now = time.perf_counter()
        if began:
            shortest = min(shortest, now - began - slept)
        began = now
        slept = max(SLOWED_S, SLOWED_SHARE * shortest) if shortest < math.inf else SLOWED_S
        time.sleep(slept)
        fetch()

    return late


def sent_bytes(step: Callable[[], object], steps: int) -> Reading:
    """Bytes that each process sends in a step, by the loopback interface's count for all
    processes."""
    source = f"counter of the interface {LOOPBACK}, {steps} steps"
    if dist.get_backend() != "gloo" or os.environ.get(INTERFACE) != LOOPBACK:
        return Reading(None, "B", source, reason=Said("gloo_alone"))
    times = []
    for _ in range(PASSES):
        dist.barrier()
        before = psutil.net_io_counters(pernic=True)[LOOPBACK].bytes_sent
        for _ in range(steps):
            step()
        dist.barrier()
        times.append(psutil.net_io_counters(pernic=True)[LOOPBACK].bytes_sent - before)
    return Reading(min(times) / steps / dist.get_world_size(), "B", source)
