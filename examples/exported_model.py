"""One model in the forms that torch offers: eager, traced, scripted, compiled, exported,
AOTInductor.

    python examples/exported_model.py

AOTInductor compiles an exported program into a library that does not need Python. AOTInductor and
`compile` need a C++ compiler. Times are minima over repetitions in one process; for a comparison
with intervals see experiment=execution.
"""

import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

REPETITIONS, CALLS = 7, 20


def forms(
    model: nn.Module, sample: torch.Tensor, folder: Path
) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """The model in each form, by name."""
    exported = torch.export.export(model, (sample,))
    package = torch._inductor.aoti_compile_and_package(
        exported, package_path=str(folder / "model.pt2")
    )
    with warnings.catch_warnings():
        # for trace and script, torch recommends torch.export
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(model, sample)
        scripted = torch.jit.script(model)
    return {
        "eager": model,
        "torch.jit.trace": traced,
        "torch.jit.script": scripted,
        "torch.compile": torch.compile(model),
        "torch.export": exported.module(),
        "AOTInductor": torch._inductor.aoti_load_package(package),
    }


def least_s(call: Callable[[], object]) -> float:
    """Minimum seconds per call over repetitions, after two warm-up calls."""
    call()
    call()
    times = []
    for _ in range(REPETITIONS):
        began = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - began) / CALLS)
    return min(times)


def main() -> dict[str, tuple[float, float]]:
    """Prints a line per form. Returns its seconds, and the largest difference of its result to the
    eager one."""
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 16, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(256, 10),
    ]
    model, sample = nn.Sequential(*layers).eval(), torch.randn(4, 3, 64, 64)
    found = {}
    with torch.inference_mode(), tempfile.TemporaryDirectory() as folder:
        expected = model(sample)
        for name, form in forms(model, sample, Path(folder)).items():
            seconds = least_s(partial(form, sample))
            difference = float((form(sample) - expected).abs().max())
            found[name] = seconds, difference
            time_us = f"{1e6 * seconds:8.0f} µs"
            print(f"{name:18} {time_us}   largest difference to eager {difference:.1e}")
    return found


if __name__ == "__main__":
    main()
