"""Data parallelism: trains one model in several processes, and predicts the bytes that each should
send."""

import math
import os
import time
from collections.abc import Callable, Iterable
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
PASSES = 3  # the least traffic of these counts, as other programs only add to it
# Sleep of a deliberately slowed rank, longer than ranks differ by on their own: a share of its step
# without the sleep, and the least number of seconds.
SLOWED_SHARE = 0.3
SLOWED_S = 0.02


def threads_per_rank(parallel: ParallelConfig, device: DeviceConfig) -> int:
    """CPU threads of each process: as configured, or an equal share of its node's cores. Raises
    UnsupportedError if there are too few cores."""
    ranks_per_node = parallel.processes // parallel.nodes
    threads = device.threads or max(1, usable_cores() // ranks_per_node)
    require_devices(parallel, usable_cores() // threads, Said("cpu_cores", count=threads))
    return threads


def require_devices(parallel: ParallelConfig, devices: int, kind: Said) -> None:
    """Raises UnsupportedError if there are more processes than devices. `devices` are those of one
    node, of the given kind."""
    if parallel.processes > devices * parallel.nodes:
        numbers: Numbers = {"processes": parallel.processes, "devices": devices, "kind": kind}
        if parallel.nodes > 1:
            numbers = {**numbers, "nodes": parallel.nodes}
            raise UnsupportedError(Said("too_few_devices_a_node", numbers))
        raise UnsupportedError(Said("too_few_devices", numbers))


def see_one_gpu(index: int) -> None:
    """Hides all GPUs but the one at `index`, before CUDA is initialised. Counters and memory that a
    rank reads are then its own GPU's."""
    chosen = gpus()[index]
    os.environ.update(visible([chosen.uuid or str(index)]))


def run_ranks(work: Callable[..., None], arguments: tuple[object, ...], count: int) -> None:
    """Runs `work(rank, *arguments)` in `count` processes, which end with this one. Raises
    RuntimeError with the message of a rank that failed."""
    rank_arguments = (os.getpid(), work, arguments)
    try:
        processes.start_processes(_rank, rank_arguments, count, start_method="spawn", daemon=True)
    except processes.ProcessRaisedException as error:
        message = str(error).strip().splitlines()[-1]
        raise RuntimeError(f"rank {error.error_index}: {message}") from error


def _rank(rank: int, parent: int, work: Callable[..., None], arguments: tuple[object, ...]) -> None:
    """Runs one rank, and makes it end with its parent. torch only interrupts it, which does not end
    a rank that waits for another in C++."""
    end_with_parent(parent)
    work(rank, *arguments)


def join(rank: int, parallel: ParallelConfig, meeting: dist.Store, device: torch.device) -> None:
    """Makes this process a rank of its job: with NCCL on GPUs, and with gloo on CPUs. On a single
    node, gloo uses the loopback interface."""
    if parallel.nodes == 1:
        os.environ.setdefault(INTERFACE, LOOPBACK)
    on_gpu = is_gpu(device)
    only_gpu = torch.device(GPU, 0) if on_gpu else None
    backend = "nccl" if on_gpu else "gloo"
    dist.init_process_group(
        backend, rank=rank, world_size=parallel.processes, store=meeting, device_id=only_gpu
    )


def wrap(model: torch.nn.Module, parallel: ParallelConfig, device: torch.device) -> torch.nn.Module:
    """Wraps the model in DDP or FSDP2 for training in several processes. A single process gets the
    model itself."""
    if parallel.processes == 1:
        return model
    if parallel.wrapper == "ddp":
        return DistributedDataParallel(model, bucket_cap_mb=parallel.bucket_mb)
    from torch.distributed.device_mesh import init_device_mesh

    # takes a second to import
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (parallel.processes,))
    for block in outermost_blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def sends(model: torch.nn.Module, parallel: ParallelConfig) -> Callable[[bool], object]:
    """Returns a function that sets whether the model's next backward pass sends gradients, as DDP's
    no_sync does. Of several micro-batches, only the last one should send."""
    if parallel.processes == 1:
        return lambda _: None
    if parallel.wrapper == "ddp":
        return partial(setattr, model, "require_backward_grad_sync")
    return model.set_requires_gradient_sync  # type: ignore[return-value]


def predicted_bytes(
    model: torch.nn.Module, parallel: ParallelConfig, device: torch.device, micro_batches: int = 1
) -> int:
    """Predicts the bytes that each process sends in a step to train `model`, before it is wrapped,
    with ring collectives. For n bytes over d processes, an all-gather or reduce-scatter sends
    n·(d−1)/d, and an all-reduce twice as much (Patarasuk and Yuan 2009). DDP all-reduces gradients.
    FSDP2 gathers blocks' weights in forward and backward, and other weights once, for each
    micro-batch; then it reduce-scatters gradients, with gloo by an all-reduce."""
    parameters = list(model.parameters())
    share = (parallel.processes - 1) / parallel.processes  # sent by an all-gather
    if parallel.wrapper == "ddp":
        trainable = [parameter for parameter in parameters if parameter.requires_grad]
        return round(2 * share * _bytes(trainable))
    in_blocks = set[torch.nn.Parameter]()
    for block in outermost_blocks(model):
        in_blocks.update(block.parameters())
    total = _bytes(parameters)
    gathered = round(share * total) + round(share * _bytes(in_blocks))
    reductions = 1 if is_gpu(device) else 2
    return micro_batches * gathered + round(reductions * share * total)


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def slowed(fetch: Callable[[], None], parallel: ParallelConfig) -> Callable[[], None]:
    """Makes `fetch` sleep first, on the rank that is deliberately slowed. The sleep is a share of
    the rank's shortest step so far."""
    if parallel.processes == 1 or parallel.slowed_rank != dist.get_rank():
        return fetch
    began = slept = 0.0
    shortest = math.inf  # the shortest, as some steps include work between two windows

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
    """Mean bytes that each process sends in a step, measured as all traffic on the loopback
    interface ÷ processes. Without a value if the job does not use gloo over loopback."""
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
