"""A network whose layers are split over two ranks: a pipeline with its bubble, and tensor
parallelism with its share of FLOPs.

    torchrun --standalone --nproc-per-node 2 examples/layers_on_two_ranks.py

A pipeline with p stages and m micro-batches idles for (p - 1) / (m + p - 1) of a step (Huang et
al., arXiv:1811.06965). The measured bubble is the share of a step in which a stage does not
compute, from timing its micro-batches alone. In tensor parallelism each rank holds half of every
matrix (Shoeybi et al., Megatron-LM, arXiv:1909.08053) and does half of the computation.
"""

import json
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

import mfulab

WIDTH, LAYERS, ROWS, STEPS = 768, 4, 1024, 12
MICRO_BATCHES = (1, 2, 4, 8)


def layers() -> nn.Sequential:
    """Layers of one stage: `LAYERS` matmuls of WIDTH by WIDTH."""
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def measured(
    model: nn.Module, step: Callable[..., object], *arguments: object, **named: object
) -> dict[str, float]:
    """Seconds and FLOPs of a step on this rank, from `mfulab.measure`."""
    for _ in range(2):  # a pipeline's first step learns the shapes
        step(*arguments, **named)
    with mfulab.measure(model, quiet=True, ceiling_s=0) as window:
        for _ in range(STEPS):
            step(*arguments, **named)
            window.step()
    return {"time_s": window.row["time_s"], "flops": window.row["flops"]}


def alone(stage: nn.Module, batch: torch.Tensor, count: int) -> float:
    """Median seconds of a stage's micro-batches without the other stage, forward and backward."""
    times = []
    for _ in range(STEPS):
        began = time.perf_counter()
        for part in batch.chunk(count):
            stage(part.requires_grad_()).sum().backward()
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]


def pipeline(rank: int) -> list[dict[str, float]]:
    """Bubble by number of micro-batches, as measured on this rank and by the formula."""
    stage, batch, rows = layers(), torch.randn(ROWS, WIDTH), []
    for count in MICRO_BATCHES:
        part = PipelineStage(stage, rank, 2, torch.device("cpu"))
        schedule = ScheduleGPipe(part, count, loss_fn=lambda out, target: (out - target).sum())
        # the first stage gets the inputs, the last one the targets
        inputs = () if rank else (batch,)
        targets = {"target": batch} if rank else {}
        row = measured(stage, schedule.step, *inputs, **targets)
        dist.barrier()
        busy_s = alone(stage, batch.detach().clone(), count)
        row |= {
            "micro_batches": count,
            "bubble": 1 - busy_s / row["time_s"],
            "formula": 1 / (count + 1),
        }
        rows.append(row)
    return rows


def tensor_parallel() -> dict[str, float]:
    """Step of the same layers with each pair split by columns and rows. `share` is this rank's
    share of the FLOPs."""
    batch = torch.randn(ROWS, WIDTH)
    plan: dict[str, ParallelStyle] = {
        str(at): RowwiseParallel() if at % 2 else ColwiseParallel() for at in range(LAYERS)
    }
    model = parallelize_module(layers(), init_device_mesh("cpu", (2,)), plan)
    row = measured(model, lambda: model(batch).sum().backward())
    unsplit_flops = 2 * ROWS * WIDTH**2 * (3 * LAYERS - 1)  # the input needs no gradient
    return row | {"share": row["flops"] / unsplit_flops}


def main() -> None:
    """Prints both results on the first rank, with `--json` as JSON."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rows, split = pipeline(dist.get_rank()), tensor_parallel()
    if dist.get_rank() == 0 and "--json" in sys.argv:
        print(json.dumps({"pipeline": rows, "tensor_parallel": split}))
    elif dist.get_rank() == 0:
        for row in rows:
            idle = f"{100 * row['bubble']:.0f} % idle"
            line = f"{row['micro_batches']} micro-batches: {1e3 * row['time_s']:.1f} ms, {idle}"
            print(f"{line}; (p - 1) / (m + p - 1) is {100 * row['formula']:.0f} %")
        print(
            f"tensor parallel: {1e3 * split['time_s']:.1f} ms, {100 * split['share']:.1f} % of the FLOPs on each rank"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
