"""Times forward and backward of a model split over ranks. Each rank is a process with its own core
or GPU."""

import copy
import time
from pathlib import Path
from typing import TypedDict, cast

import torch
import torch.distributed as dist

from mfulab.core.errors import UnsupportedError
from mfulab.core.files import read_json, scratch, write_json
from mfulab.core.groups import ParallelConfig
from mfulab.core.measurement import Measured
from mfulab.core.said import Said
from mfulab.device import identity, is_gpu, require_cuda
from mfulab.device.compute import prepare
from mfulab.flops.count import count
from mfulab.measurements.split_model import SplitModelConfig, SplitRow
from mfulab.models import layers_on_ranks, parallel
from mfulab.models.build import build
from mfulab.models.layers_on_ranks import Part, Step
from mfulab.timing.others import Others
from mfulab.timing.statistics import Stats

WARM_UP = 3  # steps; in its first one a pipeline exchanges the shapes
TIMED_S = 8.0  # total time of all rounds
FEWEST_ROUNDS, MOST_ROUNDS = 7, 25
COUNTED_STEPS = 5  # steps over which sent bytes are counted
CONFIG = "config.json"


class Report(TypedDict):
    """Measurements of one rank."""

    times_s: list[float]
    busy_s: float
    alone_s: float
    measured_s: float
    sent_bytes: float | None
    difference: float


def measure(config: SplitModelConfig, folder: Path) -> Measured:
    """Returns one row, and one sample per rank and step. Raises UnsupportedError if there are too
    few devices or the model cannot be split this way. Raises RuntimeError with the message of a
    rank that failed."""
    device = torch.device(identity.resolve(config.device.type))
    ranks = 1 if config.split == "none" else config.split_ranks
    job = ParallelConfig(processes=ranks)
    if is_gpu(device):
        require_cuda(device, f"split={config.split}")
        parallel.require_devices(job, torch.cuda.device_count(), Said("a_gpu"))
    else:
        parallel.threads_per_rank(job, config.device.model_copy(update={"threads": 1}))
    with torch.device("meta"):
        model = build(config.model)
        batch = _batch(config, torch.device("meta"))
    flops = _flops(model, batch)
    predicted = layers_on_ranks.sent_bytes(model, config.split, config.batch_size, ranks)
    if config.split == "pipeline":
        layers_on_ranks.stage(model, 0, ranks)
    others = Others()
    reports = _reports(config, ranks, folder)
    slowest = max(Stats(report["times_s"]).median for report in reports)
    busy_s = max(report["busy_s"] for report in reports)
    alone_s = reports[0]["alone_s"]
    row = SplitRow.of(
        config,
        ranks=ranks,
        time_s=slowest,
        alone_s=alone_s,
        speedup=alone_s / slowest,
        busy_s=busy_s,
        idle_percent=idle_percent(slowest, busy_s, ranks),
        predicted_idle_percent=bubble_percent(config, ranks),
        flops=flops,
        rank_flops=flops if ranks == 1 else _rank_flops(config, model, ranks),
        sent_bytes=reports[0]["sent_bytes"],
        predicted_sent_bytes=predicted,
        difference=max(report["difference"] for report in reports),
        other_processes_percent=None if is_gpu(device) else others.percent(),
        measured_s=reports[0]["measured_s"],
    )
    samples = []
    for rank, report in enumerate(reports):
        for index, seconds in enumerate(report["times_s"]):
            samples.append({"rank": rank, "step": index, "time_s": seconds})
    return Measured(row, samples)


def idle_percent(step_s: float, busy_s: float, ranks: int) -> float | None:
    """Share of a step beyond a rank's own matmuls. None for one rank, which waits for no other, and
    if `busy_s` exceeds `step_s`."""
    if ranks == 1 or busy_s > step_s:
        return None
    return 100 * (1 - busy_s / step_s)


def bubble_percent(config: SplitModelConfig, ranks: int) -> float | None:
    """Share of a pipeline's step in which a stage waits, from its schedule. None if the model is
    not split as a pipeline."""
    if config.split != "pipeline":
        return None
    return 100 * (ranks - 1) / (config.micro_batches + ranks - 1)


def _batch(config: SplitModelConfig, device: torch.device) -> torch.Tensor:
    """Random vectors [batch_size, features]. Raises UnsupportedError if the model takes other
    inputs."""
    shape = config.model.input_shape
    if shape is None or len(shape) != 1:
        raise UnsupportedError(Said("split_takes_vectors", model=config.model.name))
    return torch.randn(config.batch_size, shape[0], device=device)


def _flops(model: torch.nn.Module, batch: torch.Tensor) -> int:
    """FLOPs of forward and backward, without the gradient of the batch."""
    return count(model, lambda: model(batch).sum()).operations.model_flops


def _rank_flops(config: SplitModelConfig, model: torch.nn.Module, ranks: int) -> int:
    """FLOPs of the rank that computes most. In a pipeline this is the last one, since its inputs
    need gradients."""
    step_flops = _flops(model, _batch(config, torch.device("meta")))
    if config.split == "tensor":
        return step_flops // ranks
    layers = layers_on_ranks.stage(model, ranks - 1, ranks)
    width = layers_on_ranks.input_width(layers)
    inputs = torch.empty(config.batch_size, width, device="meta", requires_grad=True)
    return _flops(layers, inputs)


def _reports(config: SplitModelConfig, ranks: int, folder: Path) -> list[Report]:
    """Runs all ranks and returns their reports, in order."""
    with scratch(str(folder)) as name:
        job_folder = Path(name)
        (job_folder / CONFIG).write_text(config.model_dump_json(by_alias=True), encoding="utf-8")
        parallel.run_ranks(_rank, (ranks, job_folder), ranks)
        return [cast(Report, read_json(job_folder / f"{rank}.json")) for rank in range(ranks)]


def _rank(rank: int, ranks: int, job_folder: Path) -> None:
    """Measures one rank's part, and writes its `Report` to `job_folder`."""
    config = SplitModelConfig.model_validate_json((job_folder / CONFIG).read_text(encoding="utf-8"))
    device = torch.device(identity.resolve(config.device.type))
    if is_gpu(device):
        parallel.see_one_gpu(rank)
    prepare(config.device.model_copy(update={"threads": None if is_gpu(device) else 1}))
    store = dist.FileStore(str(job_folder / "store"), ranks)
    parallel.join(rank, ParallelConfig(processes=ranks), store, device)
    torch.manual_seed(config.seed)
    model = build(config.model).to(device)
    batch = _batch(config, device)
    alone = layers_on_ranks.whole(model, batch)
    alone.step()
    expected = layers_on_ranks.rank_gradient(model)
    steps = {"alone": alone.step}
    part = alone
    difference = 0.0
    if ranks > 1:
        part = _part(config, copy.deepcopy(model), batch)  # split in place
        part.step()
        difference = _difference(layers_on_ranks.rank_gradient(part.layers), expected)
        steps |= {"part": part.step, "own": part.own_products}
    began = time.perf_counter()
    times = _times(steps, device)
    sent = parallel.sent_bytes(part.step, COUNTED_STEPS).value if ranks > 1 else 0.0
    report: Report = {
        "times_s": times.get("part", times["alone"]),
        "busy_s": Stats(times.get("own", times["alone"])).median,
        "alone_s": Stats(times["alone"]).median,
        "measured_s": time.perf_counter() - began,
        "sent_bytes": sent,
        "difference": difference,
    }
    write_json(job_folder / f"{rank}.json", report)
    dist.barrier()
    dist.destroy_process_group()


def _part(config: SplitModelConfig, model: torch.nn.Module, batch: torch.Tensor) -> Part:
    if config.split == "tensor":
        return layers_on_ranks.tensor_parallel(model, batch)
    return layers_on_ranks.pipeline(model, batch, config.micro_batches)


def _times(steps: dict[str, Step], device: torch.device) -> dict[str, list[float]]:
    """Times the steps in turn, one of each per round, so that a slowdown of the machine affects all
    of them. Returns seconds per name. All ranks start each step together."""
    for _ in range(WARM_UP):
        warm_up_s = [_seconds(step, device) for step in steps.values()]
    slowest_s = torch.tensor(sum(warm_up_s), device=device)
    dist.all_reduce(slowest_s, dist.ReduceOp.MAX)
    affordable = int(TIMED_S / slowest_s.item())
    rounds = min(max(affordable, FEWEST_ROUNDS), MOST_ROUNDS)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(_seconds(step, device))
    return times


def _seconds(step: Step, device: torch.device) -> float:
    """Returns the seconds that one step takes. All ranks start it together."""
    dist.barrier()
    began = time.perf_counter()
    step()
    if is_gpu(device):
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _difference(gradients: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Largest difference of any gradient from the expected one, relative to the largest element of
    the expected one."""
    shares = []
    for name, gradient in gradients.items():
        largest = expected[name].abs().max().clamp_min(1e-30)
        shares.append(float((gradient - expected[name]).abs().max() / largest))
    return max(shares)
