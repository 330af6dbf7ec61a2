"""A verdict's cost in a step, by its headroom, and the experiment that shows what the remedy in `advice` does here."""

from collections.abc import Mapping
from typing import NamedTuple

from mfulab.mfu.headroom import PARTS
from mfulab.mfu.ladder import number
from mfulab.mfu.verdict import CAUSES


class Remedy(NamedTuple):
    """`config` measures the effect of a verdict's remedy, drawn by `figure`."""

    config: str
    figure: str


LOST = tuple(part for part in PARTS if part != "useful")
# Parts that these cost, instead of those that decide on them.
INSTEAD = {"padded": ("useful",), "under_used": ("idle",), "no_mfu": (), "doubtful_ceiling": (), "shared": ()}

REMEDIES = {
    "emulated_format": Remedy("model=simple_cnn precision=fp32,bf16", "precision_speed"),
    "doubtful_ceiling": Remedy("experiment=matmul_sizes", "matmul_throughput"),
    "compute_bound": Remedy("experiment=fewer_flops", "flops_versus_time"),
    "input_bound": Remedy("experiment=input", "input"),
    "communication_bound": Remedy("experiment=data_parallel", "data_parallel"),
    "stalled": Remedy("experiment=utilization overrides=profile.trace=true", "utilization_ladder"),
    "recomputed": Remedy("model=gpt2 workload=training,training_checkpointed", "training_phases"),
    "launch_bound": Remedy("model=tiny_kernels execution=eager,compile", "execution_speed"),
    "memory_bound": Remedy("experiment=decoding", "decoding"),
    "wrong_precision": Remedy("model=resnet18 precision=fp32,tf32,bf16", "precision_speed"),
    "throttled": Remedy("experiment=quickstart", "run_in_time"),
    "shape": Remedy("experiment=alignment", "matmul_shapes"),
    "low_occupancy": Remedy("experiment=block_sizes", "block_sizes"),
    "shared": Remedy("experiment=quickstart", "run_in_time"),
    "under_used": Remedy("model=resnet18 batch_size=1,2,4,8,16", "time_by_batch_size"),
    "page_faults": Remedy("model=norm_gelu_by_hand workload=inference batch_size=8,64", "time_by_batch_size"),
    "other_operators": Remedy("model=resnet18 execution=eager,compile", "execution_speed"),
    "overhead": Remedy("model=simple_cnn execution=eager,compile", "execution_speed"),
    "slow_matmuls": Remedy("experiment=matmul_sizes", "matmul_throughput"),
    "busy_not_useful": Remedy("experiment=busy_but_useless", "mfu_versus_utilization"),
    "padded": Remedy("model=gpt2 sequence_length=32,64,128", "flops_versus_time"),
    "no_mfu": Remedy("experiment=counters", "counter_deviation"),
    "not_explained": Remedy("experiment=quickstart overrides=profile.trace=true", "utilization_ladder"),
}


class Cost(NamedTuple):
    """Milliseconds of a step, and the points of MFU that they are."""

    ms: float
    points: float


def budget(row: Mapping[str, object]) -> dict[str, Cost]:
    """Parts of a step's headroom that take time, in its order; empty without a headroom."""
    time = number(row.get("time_s"))
    return {part: Cost(ms, ms / time / 10) for part in PARTS if time and (ms := number(row.get(f"{part}_ms")))}


def cost(row: Mapping[str, object], cause: str) -> Cost | None:
    """Time that a verdict's parts of the headroom take; None where the headroom is not known or has none of them."""
    parts, (about, _) = budget(row), CAUSES.get(cause, ((), None))
    wanted = [parts[part] for part in INSTEAD.get(cause, about or LOST) if part in parts]
    mfu, useful, lost = number(row.get("mfu_percent")), number(row.get("useful_mfu_percent")), 1.0
    if cause == "padded":  # the share of the useful part that serves padding
        lost = 1 - useful / mfu if mfu and useful is not None else 0.0
    ms, points = lost * sum(cost.ms for cost in wanted), lost * sum(cost.points for cost in wanted)
    return Cost(ms, points) if points > 0 else None
