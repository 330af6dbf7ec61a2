"""Records examples/small_cnn.pt.trace.json.gz, the default trace of experiment=traces.

    python examples/record_trace.py

It has three training steps of a small convolutional network on one core, with shapes, from
torch.profiler.
"""

import gzip
import json
from pathlib import Path

import torch
from torch import nn

OUT = Path(__file__).with_name("small_cnn.pt.trace.json.gz")


def save(profiler: torch.profiler.profile) -> None:
    """Writes the trace without the machine's name."""
    plain = OUT.with_suffix("")
    profiler.export_chrome_trace(str(plain))
    content = json.loads(plain.read_text()) | {"host_name": "example", "traceName": OUT.name}
    plain.unlink()
    OUT.write_bytes(gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0))


torch.set_num_threads(1)
layers = [
    nn.Conv2d(3, 16, 3),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(4),
    nn.Flatten(),
]
model = nn.Sequential(*layers, nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
images, classes = torch.randn(16, 3, 64, 64), torch.randint(0, 10, (16,))
schedule = torch.profiler.schedule(wait=0, warmup=2, active=3, repeat=1)
with torch.profiler.profile(record_shapes=True, schedule=schedule, on_trace_ready=save) as profiler:
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), classes).backward()
        optimizer.step()
        profiler.step()
