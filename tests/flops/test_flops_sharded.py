"""Models spread over ranks: what one rank computes, with real gloo ranks and pretended ones."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.processes import HANGS_S
from support.sharded_models import PRODUCT, ROWS, WAYS, WIDTH
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from mfulab.flops.count import count
from mfulab.flops.counter import OperatorCounter
from mfulab.flops.layers import LayerTracker
from mfulab.flops.sharded import pretend_ranks, pretended_ranks
from mfulab.models.huggingface import build

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
    # The rows that were given are this rank's half of the sequence, and each rank has half of the
    # width.
    "sequence": WHOLE,
}


# The first stage gives nobody the gradient of its input, the second one does.
STAGES = [HALF | {"backward": PRODUCT}, HALF | {"backward": 2 * PRODUCT}]


@pytest.mark.xdist_group("ranks")
@pytest.mark.slow
def test_every_wrapper_and_a_pipeline_on_two_real_ranks(tmp_path):
    command = [sys.executable, "-m", "support.two_ranks"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            text=True,
            cwd=TESTS,
        )
        for rank in (0, 1)
    ]
    for process, stage in zip(ranks, STAGES, strict=True):
        output, _ = process.communicate(timeout=HANGS_S)
        found, measured = json.loads(output.splitlines()[-1]).values()
        assert found.pop("pipeline") == stage | {"job": WHOLE["forward"]}
        assert measured == stage["forward"] + stage["backward"]
        jobs = {name: one.pop("job") for name, one in found.items()}
        assert found == EXPECTED
        assert jobs == {name: 2 * one["forward"] for name, one in EXPECTED.items()}


# DDP checks its gradients' sums, which nobody makes here.
@pytest.mark.parametrize("name", [name for name in WAYS if name != "ddp"])
def test_every_wrapper_on_one_of_two_pretended_ranks(name):
    with pretended_ranks(2):
        model = WAYS[name]()
        with OperatorCounter(LayerTracker(model), memory=False) as counter:
            model(torch.randn(ROWS, WIDTH)).sum().backward()
    operations = counter.operations
    found = {kind: operations.sum(kind).flops for kind in ("forward", "backward", "recomputed")}
    assert {**found, "uncounted": dict(operations.uncounted)} == EXPECTED[name]


def test_a_plan_of_512_ranks_needs_one_process_and_no_memory():
    """A layer of Llama 3.1 405B, 64 ways data-parallel and 8 ways tensor-parallel: a rank has an
    eighth of it."""
    width, mlp, heads, tokens = 16384, 53248, 128, 512

    with pretended_ranks(512), torch.device("meta"):
        mesh = init_device_mesh("cpu", (64, 8), mesh_dim_names=("data", "tensor"))["tensor"]
        layer = build(
            "LlamaForCausalLM", vocab_size=1024, hidden_size=width, intermediate_size=mlp, num_hidden_layers=1,
            num_attention_heads=heads, num_key_value_heads=8,
        )  # fmt: skip
        plan: dict[str, ParallelStyle] = {
            f"model.layers.0.self_attn.{name}_proj": ColwiseParallel() for name in "qkv"
        }
        plan |= {f"model.layers.0.mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")}
        plan |= {
            f"model.layers.0.{name}": RowwiseParallel()
            for name in ("self_attn.o_proj", "mlp.down_proj")
        }
        parallelize_module(layer, mesh, plan)
        ids = torch.zeros(1, tokens, dtype=torch.long)
        operations = count(layer, lambda: layer(ids).logits.sum()).operations
    products = 2 * tokens * (2 * width**2 + 2 * width * width // 16 + 3 * width * mlp) // 8
    attention = 4 * tokens**2 * width // 8
    found = operations.sum("forward", layer="model.layers.0").flops
    assert found == products + attention
    seen = operations.sum("backward", layer="model.layers.0").flops
    assert seen == pytest.approx(2 * found, rel=0.01)


def test_a_rank_of_a_job_is_not_pretended_again():
    with (
        pretended_ranks(2),
        pytest.raises(RuntimeError, match="already belongs to a job"),
        pretended_ranks(2),
    ):
        pass


@pytest.mark.parametrize(("given", "rank"), [((4,), 0), ((4, 3), 3)])
def test_a_pretended_process_is_the_first_rank_or_the_one_that_is_named(given, rank):
    with pretended_ranks(*given):
        assert (distributed.get_rank(), distributed.get_world_size()) == (rank, 4)
    assert not distributed.is_initialized()
    pretend_ranks(*given)
    assert distributed.get_rank() == rank
