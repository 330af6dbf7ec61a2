"""User's training loop for `plain_script.py` and `data_parallel.py`, which uses mfulab only to
create the model. Arguments: a config, and the state of the heap. States are fresh, settled (a large
tensor was freed before) and kept_top (the heap's top is never trimmed). Under torchrun the model is
wrapped in DDP, and a step takes as long as its slowest rank. Prints the 5th percentile and the
median of the steps in seconds, and page faults per step."""

import ctypes
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from mfulab.device.cpu import usable_cores
from mfulab.measurements.profile_step import ProfileStepConfig
from mfulab.models.step import Batch, make_model
from mfulab.timing.statistics import Stats

WARM_UP_S = 0.5
MEASURED_S = 0.8


def main() -> None:
    config = ProfileStepConfig.model_validate_json(Path(sys.argv[1]).read_text())
    heap = sys.argv[2]
    torch.set_num_threads(config.device.threads or usable_cores())
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    torch.manual_seed(config.seed)
    step = step_of(config)
    step()
    step()
    if heap != "fresh":
        torch.empty((32 << 20) - (1 << 16), dtype=torch.uint8)
    if heap == "kept_top":
        keep_top()
    run(step, WARM_UP_S)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    times = run(step, MEASURED_S)
    faults = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / len(times)
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(json.dumps([Stats(times).percentile(5), Stats(times).median, faults]))
    if dist.is_initialized():
        dist.destroy_process_group()


def step_of(config: ProfileStepConfig) -> Callable[[], object]:
    """A step of training or of inference, as a user writes it."""
    model, batch = make_model(config, torch.device("cpu"))
    trains = config.workload.mode == "training"
    model.train(trains)
    if not trains:
        return lambda: infer(model, batch)
    if dist.is_initialized() and dist.get_world_size() > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return lambda: train(model, batch, optimizer)


def train(model: torch.nn.Module, batch: Batch, optimizer: torch.optim.Optimizer) -> None:
    output = model(batch.inputs)
    output = getattr(output, "logits", output)
    loss = torch.nn.functional.cross_entropy(output.flatten(0, -2), batch.targets.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def infer(model: torch.nn.Module, batch: Batch) -> object:
    with torch.no_grad():
        return model(batch.inputs)


def keep_top() -> None:
    """Never trims the top of the heap. Sets M_MMAP_THRESHOLD to its current value too, as setting
    M_TRIM_THRESHOLD would reset it."""
    mallopt = ctypes.CDLL(None).mallopt
    assert mallopt(-3, 32 << 20)
    assert mallopt(-1, -1)


def run(step: Callable[[], object], least_s: float) -> list[float]:
    """Runs at least three steps, for at least so many seconds. Returns the seconds of each."""
    times: list[float] = []
    while len(times) < 3 or sum(times) < least_s:
        began = time.perf_counter()
        step()
        times.append(slowest(time.perf_counter() - began))
    return times


def slowest(seconds: float) -> float:
    """Seconds of the slowest rank; all ranks wait for it."""
    if not dist.is_initialized():
        return seconds
    longest = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return float(longest)


if __name__ == "__main__":
    main()
