"""Times square roots of numbers that are partly zero, and Adam's update of a network after batches
of several sizes.

    python benchmarks/zero_moments.py [--batch-sizes 1 4 8]

Prints the fastest of 100 square roots of a million numbers in fp32, on one thread and on two. Then
prints, on one thread, the share of second moments that are zero, their square root and the update.
If a library's square root is slow for 0, the update takes longer after a small batch.
"""

import argparse
import time

import torch
from torch.utils.benchmark import Timer

from mfulab.models.convolutional import SimpleCNN
from mfulab.models.second_moments import zeros_percent

COUNT = 10**6  # numbers
REPETITIONS = 100
ZEROS_PERCENT = (1, 5, 49)


def numbers() -> dict[str, torch.Tensor]:
    """Numbers in fp32 by their kind; zeros among others stand at random places."""
    normal = torch.rand(COUNT) + 0.1
    kinds = {"normal": normal}
    for percent in ZEROS_PERCENT:
        kinds[f"{percent} % zeros"] = normal * (torch.rand(COUNT) >= percent / 100)
    return kinds | {"all zeros": 0 * normal, "subnormal": 1e-39 * normal}


def fastest_roots_ms(kinds: dict[str, torch.Tensor]) -> dict[str, float]:
    """Fastest square root of each kind of numbers, in ms. The kinds take turns."""
    roots = torch.empty(COUNT)
    fastest = dict.fromkeys(kinds, float("inf"))
    for _ in range(REPETITIONS):
        for kind, values in kinds.items():
            began = time.perf_counter()
            torch.sqrt(values, out=roots)
            fastest[kind] = min(fastest[kind], 1e3 * (time.perf_counter() - began))
    return fastest


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
    zeros = zeros_percent(optimizer) or 0.0
    roots = Timer(
        "for each in moments: each.sqrt()", globals={"moments": moments}
    ).blocked_autorange(min_run_time=1)
    update = Timer("optimizer.step()", globals={"optimizer": optimizer}).blocked_autorange(
        min_run_time=1
    )
    return zeros, 1e3 * roots.median, 1e3 * update.median


def main() -> None:
    """Prints a line per kind of numbers, and a line per batch size."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 4, 8])
    batch_sizes = arguments.parse_args().batch_sizes
    kinds = numbers()
    times = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        times.append(fastest_roots_ms(kinds))
    print(f"{'numbers':<12} {'1 thread, ms':>13} {'2 threads, ms':>14}")
    for kind in kinds:
        print(f"{kind:<12} {times[0][kind]:13.2f} {times[1][kind]:14.2f}")
    torch.set_num_threads(1)
    print(f"{'batch':>6} {'zeros_percent':>14} {'sqrt_ms':>8} {'update_ms':>10}")
    for batch_size in batch_sizes:
        zeros, roots, update = measured(batch_size)
        print(f"{batch_size:6} {zeros:14.1f} {roots:8.1f} {update:10.1f}")


if __name__ == "__main__":
    main()
