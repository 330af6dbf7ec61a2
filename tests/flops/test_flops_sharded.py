"""Models spread over ranks: what one rank computes, with real gloo ranks and with a process group that is pretended."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.sharded_models import PRODUCT, ROWS, WAYS, WIDTH

from mfulab.flops.counter import OperatorCounter
from mfulab.flops.layers import LayerTracker

TESTS = Path(__file__).parents[1]

# Forward: both products. Backward: the weights' gradients, and that of what lies between.
WHOLE = {"forward": 2 * PRODUCT, "backward": 3 * PRODUCT, "recomputed": 0, "uncounted": {}}
HALF = {"forward": PRODUCT, "backward": 3 * PRODUCT // 2, "recomputed": 0, "uncounted": {}}
EXPECTED = {
    "plain": WHOLE,
    "ddp": WHOLE,
    "fsdp2": WHOLE,
    "fsdp2_checkpointed": WHOLE | {"recomputed": PRODUCT},
    "tensor": HALF,
    # The rows that were given are this rank's half of the sequence, and each rank has half of the width.
    "sequence": WHOLE,
}


def test_every_wrapper_on_two_real_ranks(tmp_path):
    command = [sys.executable, "-m", "support.two_ranks"]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True, cwd=TESTS)
        for rank in (0, 1)
    ]
    for process in ranks:
        output, _ = process.communicate(timeout=120)
        assert json.loads(output.splitlines()[-1]) == EXPECTED


@pytest.fixture
def pretended_ranks():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


# DDP checks its gradients' sums, which nobody makes here.
@pytest.mark.parametrize("name", [name for name in WAYS if name != "ddp"])
def test_every_wrapper_on_one_of_two_pretended_ranks(pretended_ranks, name):
    model = WAYS[name]()
    with OperatorCounter(LayerTracker(model), memory=False) as counter:
        model(torch.randn(ROWS, WIDTH)).sum().backward()
    operations = counter.operations
    found = {kind: operations.sum(kind).flops for kind in ("forward", "backward", "recomputed")}
    assert {**found, "uncounted": dict(operations.uncounted)} == EXPECTED[name]
