"""Logs the MFU and other numbers of each epoch to TensorBoard and to Weights & Biases, if
installed.

    pip install tensorboard wandb
    WANDB_MODE=offline python examples/trackers.py runs

View them with `tensorboard --logdir runs`, or in W&B after `wandb sync runs/wandb/offline-*`.
"""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import mfulab

EPOCHS, STEPS = 3, 8
Log = Callable[[dict[str, float], int], None]


def numbers(row: dict[str, object]) -> dict[str, float]:
    """Numbers of a row, without texts and empty cells."""
    return {
        f"mfulab/{name}": value
        for name, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def trackers(folder: Path) -> dict[str, tuple[Log, Callable[[], object]]]:
    """For each installed tracker, a function that logs numbers at a step, and one that closes the
    log."""
    found: dict[str, tuple[Log, Callable[[], object]]] = {}
    if importlib.util.find_spec("tensorboard"):
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(folder))

        def to_tensorboard(values: dict[str, float], step: int) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)

        found["TensorBoard"] = (to_tensorboard, writer.close)
    if importlib.util.find_spec("wandb"):
        import wandb

        run = wandb.init(project="mfulab", dir=str(folder))
        found["Weights & Biases"] = (lambda values, step: run.log(values, step=step), run.finish)
    return found


def main(folder: Path) -> dict[str, float]:
    """Trains a small network and logs each epoch. Returns the numbers of the last one."""
    folder.mkdir(parents=True, exist_ok=True)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    logs = trackers(folder)
    logged: dict[str, float] = {}
    for epoch in range(EPOCHS):
        with mfulab.measure(model, quiet=True, ceiling_s=0) as window:
            for _ in range(STEPS):
                optimizer.zero_grad()
                model(torch.randn(64, 256)).sum().backward()
                optimizer.step()
                window.step()
        logged = numbers(window.row)  # available after the block
        for log, _ in logs.values():
            log(logged, (epoch + 1) * STEPS)
    for _, close in logs.values():
        close()
    print(f"{len(logged)} numbers an epoch, written to: {', '.join(logs) or 'none is installed'}")
    return logged


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs"))
