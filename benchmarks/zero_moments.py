"""Adam's update of a network after batches of several sizes: share of zero moments, their square
root, the update.

    python benchmarks/zero_moments.py [--batch-sizes 1 4 8]

Runs on one thread. If a library's square root is slow for 0, the update takes longer after a small
batch.
"""

import argparse

import torch
from torch.utils.benchmark import Timer

from mfulab.models.convolutional import SimpleCNN


def measured(batch_size: int) -> tuple[float, float, float]:
    """Percent of second moments that are 0 after ten steps, ms of their square root, and ms of an
    update."""
    torch.manual_seed(0)
    model = SimpleCNN()
    optimizer = torch.optim.Adam(model.parameters())
    images, labels = torch.randn(batch_size, 3, 224, 224), torch.randint(10, (batch_size,))
    for _ in range(10):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    moments = [state["exp_avg_sq"] for state in optimizer.state.values()]
    zero = sum(int((moment == 0).sum()) for moment in moments) / sum(
        moment.numel() for moment in moments
    )
    roots = Timer(
        "for each in moments: each.sqrt()", globals={"moments": moments}
    ).blocked_autorange(min_run_time=1)
    update = Timer("optimizer.step()", globals={"optimizer": optimizer}).blocked_autorange(
        min_run_time=1
    )
    return 100 * zero, 1e3 * roots.median, 1e3 * update.median


def main() -> None:
    """Prints a line per batch size."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 4, 8])
    torch.set_num_threads(1)
    print(f"{'batch':>6} {'zeros_percent':>14} {'sqrt_ms':>8} {'update_ms':>10}")
    for batch_size in arguments.parse_args().batch_sizes:
        zeros, roots, update = measured(batch_size)
        print(f"{batch_size:6} {zeros:14.1f} {roots:8.1f} {update:10.1f}")


if __name__ == "__main__":
    main()
