"""User's training loop for `plain_script.py`, which uses mfulab only to create the model.
Arguments: a config, and the state of the heap. States are fresh, settled (a large tensor was freed
before) and kept_top (the heap's top is never trimmed)."""

import ctypes
import json
import resource
import sys
import time
from pathlib import Path

import torch

from mfulab.device.cpu import usable_cores
from mfulab.measurements.profile_step import ProfileStepConfig
from mfulab.models.step import make_model
from mfulab.timing.statistics import Stats

config = ProfileStepConfig.model_validate_json(Path(sys.argv[1]).read_text())
torch.set_num_threads(usable_cores())
torch.manual_seed(config.seed)
model, batch = make_model(config, torch.device("cpu"))
trains = config.workload.mode == "training"
model.train(trains)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def train():
    output = model(batch.inputs)
    output = getattr(output, "logits", output)
    loss = torch.nn.functional.cross_entropy(output.flatten(0, -2), batch.targets.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def infer():
    with torch.no_grad():
        return model(batch.inputs)


step = train if trains else infer
step()
step()
if sys.argv[2] != "fresh":
    torch.empty((32 << 20) - (1 << 16), dtype=torch.uint8)
# sets M_MMAP_THRESHOLD to its current value too, as setting M_TRIM_THRESHOLD would reset it
if sys.argv[2] == "kept_top":
    mallopt = ctypes.CDLL(None).mallopt
    assert mallopt(-3, 32 << 20)
    assert mallopt(-1, -1)
deadline, warmed = time.perf_counter() + 0.5, 0
while warmed < 3 or time.perf_counter() < deadline:
    step()
    warmed += 1
times: list[float] = []
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
while len(times) < 3 or sum(times) < 0.8:
    began = time.perf_counter()
    step()
    times.append(time.perf_counter() - began)
faults = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / len(times)
print(json.dumps([Stats(times).percentile(5), Stats(times).median, faults]))
