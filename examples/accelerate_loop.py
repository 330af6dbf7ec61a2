"""MFU of a loop prepared by accelerate: `accelerate launch examples/accelerate_loop.py`."""

import torch
from accelerate import Accelerator

import mfulab

accelerator = Accelerator(mixed_precision="bf16")
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(320, 64), torch.randint(8, (320,)))
loader = torch.utils.data.DataLoader(data, batch_size=32)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

with mfulab.measure(model) as window:
    for inputs, targets in loader:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.cross_entropy(model(inputs), targets))
        optimizer.step()
        window.step()
