"""Predicted peaks of `mfulab.fits` beside what torch's CPU allocator had alive, by its profiler.

    python validation/fits_on_cpu.py [--models simple_cnn resnet18] [--batch-sizes 8]

The resident set holds the libraries too, and what the C library keeps: only the allocator's own events say what a step
needs. Building, casting and one step come first, inside the profile; the peak is that of the second step. oneDNN's
scratch memory does not go through this allocator, and is in neither number.
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
DEVICE = "NVIDIA A100-SXM4-40GB"  # of which no workspace is added


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
    """Prints a row a step."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--models", nargs="+", default=MODELS)
    options.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8])
    options.add_argument("--length", type=int, default=256, help="tokens a sample")
    asked = options.parse_args()
    print(
        "| model | step | precision | batch | allocated, MB | predicted, MB | off |\n|---|---|---|---|---|---|---|"
    )
    cases = itertools.product(asked.models, ("training", "inference"), DTYPES, asked.batch_sizes)
    for name, mode, precision, batch_size in cases:
        length = asked.length if model_config(name).vocabulary_size else None
        got = measured(name, batch_size, precision, length, mode == "training")
        about: dict[str, Any] = {"precision": precision, "sequence_length": length, "mode": mode}
        told = mfulab.fits(name, batch_size, device=DEVICE, optimizer="adam", **about).peak_bytes
        off = 100 * (told / got - 1)
        print(
            f"| `{name}` | {mode} | {precision} | {batch_size} | {got / 1e6:.1f} | {told / 1e6:.1f} | {off:+.1f} % |"
        )


if __name__ == "__main__":
    main()
