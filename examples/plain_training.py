"""Training script without mfulab, for `mfulab measure examples/plain_training.py`."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8))
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(2048, 64), torch.randint(8, (2048,)))
for inputs, targets in torch.utils.data.DataLoader(data, batch_size=32):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
