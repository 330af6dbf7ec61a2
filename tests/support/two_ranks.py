"""Run by two processes over gloo: prints, as JSON, what each wrapper's step costs this rank and the job."""

import json
import os
import sys

import torch
import torch.distributed as dist
from support.sharded_models import ROWS, WAYS, WIDTH

from mfulab.flops.counter import OperatorCounter
from mfulab.flops.layers import LayerTracker
from mfulab.flops.sharded import job_flops


def main(rank: int, store: str) -> None:
    """Takes part in the job as `rank` of 2."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(store, 2))
    found = {}
    for name, wrap in WAYS.items():
        torch.manual_seed(0)
        model = wrap()
        with OperatorCounter(LayerTracker(model), memory=False) as counter:
            model(torch.randn(ROWS, WIDTH)).sum().backward()
        operations = counter.operations
        found[name] = {
            "forward": operations.sum("forward").flops,
            "backward": operations.sum("backward").flops,
            "recomputed": operations.sum("recomputed").flops,
            "uncounted": dict(operations.uncounted),
            "job": job_flops(operations)["forward"]["flops"],
        }
    print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
