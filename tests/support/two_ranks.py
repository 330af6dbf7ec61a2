"""Run by two processes over gloo. Prints as JSON the FLOPs of a step of each wrapper on each
rank."""

import json
import os
import sys

import torch
import torch.distributed as dist
from support.sharded_models import ROWS, WAYS, WIDTH, stage_of
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import mfulab
from mfulab.flops.counter import Operations, OperatorCounter
from mfulab.flops.layers import LayerTracker


def main(rank: int, store: str) -> None:
    """Runs the job as `rank` of 2."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(store, 2))
    found = {}
    for name, wrap in WAYS.items():
        torch.manual_seed(0)
        model = wrap()
        with OperatorCounter(LayerTracker(model), memory=False) as counter:
            model(torch.randn(ROWS, WIDTH)).sum().backward()
        found[name] = flops_by_pass(counter.operations)
    found["pipeline"], measured = pipeline(rank)
    print(json.dumps({"found": found, "measured": measured}))
    dist.destroy_process_group()


def flops_by_pass(operations: Operations) -> dict[str, object]:
    """FLOPs of a step by pass, and the forward FLOPs of both ranks."""
    job = torch.tensor(operations.sum("forward").flops)
    dist.all_reduce(job)
    return {
        "forward": operations.sum("forward").flops,
        "backward": operations.sum("backward").flops,
        "recomputed": operations.sum("recomputed").flops,
        "uncounted": dict(operations.uncounted),
        "job": int(job),
    }


def pipeline(rank: int) -> tuple[dict[str, object], float | None]:
    """A stage's step in two micro-batches, by the counter and by `mfulab.measure`.

    The first step runs each stage once more to learn its shapes, so it is a warm-up.
    """
    stage, batch = stage_of(rank), torch.randn(ROWS, WIDTH)
    schedule = Schedule1F1B(
        PipelineStage(stage, rank, 2, torch.device("cpu")),
        2,
        loss_fn=lambda output, target: (output - target).sum(),
    )

    def step() -> None:
        if rank == 0:
            schedule.step(batch)
        else:
            schedule.step(target=batch)

    step()
    with OperatorCounter(LayerTracker(stage), memory=False) as counter:
        step()
    with mfulab.measure(stage, quiet=True, ceiling_s=0) as window:
        for _ in range(3):
            step()
            window.step()
    return flops_by_pass(counter.operations), window.row["flops"]


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
