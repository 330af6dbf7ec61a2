"""Plain DDP script: `torchrun --nproc-per-node 2 benchmarks/plain_ddp.py [BATCH]` prints samples/s
of all ranks."""

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import ResNetConfig, ResNetForImageClassification

torch.set_num_threads(1)
dist.init_process_group("gloo")
batch, steps = int(sys.argv[1]) if len(sys.argv) > 1 else 4, 8
sizes = {
    "hidden_sizes": [64, 128, 256, 512],
    "depths": [2, 2, 2, 2],
    "layer_type": "basic",
    "num_labels": 1000,
}
net = ResNetForImageClassification(ResNetConfig(**sizes))
model = DistributedDataParallel(net) if dist.get_world_size() > 1 else net
optimizer = torch.optim.Adam(model.parameters())
images, labels = torch.randn(batch, 3, 224, 224), torch.randint(1000, (batch,))
times = []
for _ in range(3 + steps):
    dist.barrier()
    began = time.perf_counter()
    torch.nn.functional.cross_entropy(model(images).logits, labels).backward()
    optimizer.step()
    optimizer.zero_grad()
    times.append(time.perf_counter() - began)
slowest = torch.tensor(sorted(times[3:])[steps // 2])
dist.all_reduce(slowest, dist.ReduceOp.MAX)
if dist.get_rank() == 0:
    print(batch * dist.get_world_size() / float(slowest))
dist.destroy_process_group()
