"""Real images, and the training of a small model on them in about a second.

`digits.csv.gz` holds the 1,797 test images of "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak
1998, UCI Machine Learning Repository, doi:10.24432/C50P49, CC BY 4.0): 64 pixels of 0 to 16 and the digit a line. It
is sklearn/datasets/data/digits.csv.gz of scikit-learn 1.9.1 (BSD-3-Clause), unchanged.
"""

import gzip
from pathlib import Path

import numpy as np
import torch
from torch import nn

from mfulab.models.build import Batch
from mfulab.models.step import distillation_loss

TRAINED = 1200  # the first images; those behind are held out
EPOCHS, BATCH_SIZE, LEARNING_RATE = 12, 64, 2e-3
ALPHA, TEMPERATURE = 0.7, 4.0  # the teacher's share of the loss, and what softens its classes


def digits(device: torch.device) -> tuple[Batch, Batch]:
    """The images to train on and those held out: [images, 1, 8, 8] from 0 to 1, and their digits."""
    with gzip.open(Path(__file__).with_name("digits.csv.gz"), "rt") as file:
        values = torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.float32)).to(device)
    images, targets = values[:, :64].reshape(-1, 1, 8, 8) / 16, values[:, 64].long()
    return Batch(images[:TRAINED], targets[:TRAINED]), Batch(images[TRAINED:], targets[TRAINED:])


def train(model: nn.Module, batch: Batch, seed: int, teacher: nn.Module | None = None) -> None:
    """Trains in place by Adam; with a teacher the loss is α · T² · KL + (1 − α) · cross-entropy, α = 0.7, T = 4."""
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    order = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(batch.inputs), generator=order).to(batch.inputs.device).split(BATCH_SIZE):
            output = model(batch.inputs[chosen])
            loss = nn.functional.cross_entropy(output, batch.targets[chosen])
            if teacher is not None:
                with torch.no_grad():
                    taught = teacher(batch.inputs[chosen])
                loss = ALPHA * distillation_loss(output, taught, TEMPERATURE) + (1 - ALPHA) * loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval().requires_grad_(requires_grad=False)


def accuracy_percent(model: nn.Module, batch: Batch) -> float:
    """Percentage of images whose largest logit is their digit's."""
    return 100 * float((model(batch.inputs).argmax(1) == batch.targets).double().mean())
