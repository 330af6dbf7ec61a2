"""Compares the predicted peaks of `mfulab.fits` with the allocations of torch's CPU allocator, by
its profiler.

    python validation/fits_on_cpu.py [--models simple_cnn resnet18] [--batch-sizes 8]

The resident set also holds libraries and memory kept by the C library, so only the allocator's own
events show what a step needs. The profile also covers building, casting and a first step; the peak
is that of the second step. oneDNN's scratch memory does not use this allocator, and is in neither
number.
"""

import argparse
import itertools
from typing import Any

import torch

import mfulab
from mfulab.mfu.models import model_config
from mfulab.models.build import build, loss, make_batch

MODELS = "simple_cnn", "resnet18", "resnet50", "vit_b_16", "gpt2"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
DEVICE = "NVIDIA A100-SXM4-40GB"  # for which no workspace is added


def measured(name: str, batch_size: int, precision: str, length: int | None, training: bool) -> int:
    """Peak bytes of the second step."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        config = model_config(name, sequence_length=length)
        model = build(config).to(DTYPES[precision]).train(training)
        batch = make_batch(config, batch_size, length, dtype=DTYPES[precision])
        optimizer = torch.optim.Adam(model.parameters(), foreach=True) if training else None

        def once() -> None:
            output = model(batch.inputs)
            if optimizer:
                loss(output, batch.targets, config.task).backward()
                optimizer.step()
                optimizer.zero_grad()

        for number in range(2):
            with torch.profiler.record_function(f"step {number}"), torch.set_grad_enabled(training):
                once()
    events = profile.profiler.kineto_results.events()
    [began] = (event.start_ns() for event in events if event.name() == "step 1")
    changes = sorted(
        (event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"
    )
    alive = itertools.accumulate(nbytes for _, nbytes in changes)
    return max(bytes_ for (at, _), bytes_ in zip(changes, alive, strict=True) if at >= began)


def main() -> None:
    """Prints a row per step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--length", type=int, default=256, help="tokens a sample")
    options = parser.parse_args()
    print(
        "| model | step | precision | batch | allocated, MB | predicted, MB | off |\n|---|---|---|---|---|---|---|"
    )
    cases = itertools.product(
        options.models, ("training", "inference"), DTYPES, options.batch_sizes
    )
    for name, mode, precision, batch_size in cases:
        length = options.length if model_config(name).vocabulary_size else None
        allocated = measured(name, batch_size, precision, length, mode == "training")
        step: dict[str, Any] = {"precision": precision, "sequence_length": length, "mode": mode}
        predicted = mfulab.fits(
            name, batch_size, device=DEVICE, optimizer="adam", **step
        ).peak_bytes
        off = 100 * (predicted / allocated - 1)
        bytes_mb = f"{allocated / 1e6:.1f} | {predicted / 1e6:.1f}"
        print(f"| `{name}` | {mode} | {precision} | {batch_size} | {bytes_mb} | {off:+.1f} % |")


if __name__ == "__main__":
    main()
