"""MFU of each rank and of the job under FSDP2: `torchrun --nproc-per-node 2 examples/fsdp2.py`."""

import torch
from torch.distributed.fsdp import fully_shard

import mfulab

on_gpu = torch.cuda.is_available()
torch.distributed.init_process_group("nccl" if on_gpu else "gloo")
rank = torch.distributed.get_rank()
device = torch.device("cuda", rank % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)

model = torch.nn.Sequential(*(torch.nn.Linear(128, 128, device=device) for _ in range(3)))
for layer in model:
    fully_shard(layer, reshard_after_forward=True)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())


def train_step() -> None:
    optimizer.zero_grad()
    model(torch.randn(32, 128, device=device)).square().mean().backward()
    optimizer.step()


for _ in range(3):  # warm up
    train_step()
with mfulab.measure(model, device=device, ceiling_s=0.5) as window:  # rank 0 prints its ladder
    for _ in range(10):
        train_step()
        window.step()
job = window.job()  # a collective: every rank must call it
print(f"rank {rank}: {window.row['flops']:.0f} FLOPs a step, MFU {window.row['mfu_percent']:.2f} %")
if rank == 0:
    print(
        f"job: {job['ranks']} ranks, {job['tflop_s']:.3g} TFLOP/s, MFU {job['mfu_percent']:.2f} %"
    )
torch.distributed.destroy_process_group()
