"""Times the Triton kernels by two clocks: CUDA events, like all measurements here, and Triton's
profiler Proton (CUPTI).

    python validation/second_clock.py [--size 4096] [--out clocks.json]

Proton reports the time between start and end of the kernel itself. Events also include the gap
between two launches.
"""

import argparse
import importlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mfulab.core.formats import FORMATS
from mfulab.kernels.base import Shape
from mfulab.kernels.verification import random_operands
from mfulab.lab.planning import keys
from mfulab.timing.clocks import clock_for
from mfulab.timing.pace import Pace
from mfulab.timing.windows import observe

CONFIG = Path(__file__).parents[1] / "config"
RUNGS = (
    ("triton_plain", "bf16"),
    ("triton_persistent", "bf16"),
    ("triton_plain", "tf32"),
    ("triton_autotuned", "bf16"),  # last, because tuning takes half a minute
)
PACE = Pace(windows=3, window_s=0.3, warm_up_s=0.5, tolerance=0.05)
# 50 calls ended before the power limit acted on the clock: Proton then read 9 to 13 % less
CALLS = 3000


def kernel_seconds(database: Sequence[Mapping[str, Any]]) -> float | None:
    """Seconds of all kernels in a Proton profile, whose first tree has metrics in ns. None if there
    are no kernels."""

    def nanoseconds(node: Mapping[str, Any]) -> Iterator[float]:
        if "time (ns)" in node.get("metrics", {}):
            yield node["metrics"]["time (ns)"]
        for child in node.get("children", ()):
            yield from nanoseconds(child)

    found = list(nanoseconds(database[0])) if database else []
    return sum(found) / 1e9 if found else None


def by_proton(step: Callable[[], object], calls: int) -> float | None:
    """Seconds per call by Proton; None if it saw no kernel."""
    from triton import profiler

    with tempfile.TemporaryDirectory() as folder:
        profiler.start(f"{folder}/clock")
        for _ in range(calls):
            step()
        torch.cuda.synchronize()
        profiler.finalize()
        seconds = kernel_seconds(json.loads(Path(folder, "clock.hatchet").read_text()))
    return None if seconds is None else seconds / calls


def compare(name: str, precision: str, size: int) -> dict[str, Any]:
    """Seconds of one matmul by both clocks, or the reason why they are missing."""
    case: dict[str, Any] = {
        "case": f"{name} {precision} {size}³",
        "events_s": None,
        "proton_s": None,
        "reason": "",
    }
    try:
        module, _, kind = keys.content(CONFIG, "kernel", name)["_target_"].rpartition(".")
        kernel = getattr(importlib.import_module(module), kind)(precision)
        shape = Shape(1, size, size, size)
        kernel.require("cuda", shape)
        operands = random_operands(shape, FORMATS[precision], "cuda", seed=1)
        prepared = kernel.prepare(operands.a, operands.b, operands.c)
        launch = kernel.launch(shape)

        def step() -> object:
            return kernel.run(*prepared, launch=launch)

        case["events_s"] = observe(step, clock_for(torch.device("cuda")), PACE).time_s
        case["proton_s"] = by_proton(step, CALLS)
        case["reason"] = "" if case["proton_s"] else "Proton saw no kernel"
    except Exception as error:  # any error is recorded, and the next kernel may still work
        case["reason"] = f"{type(error).__name__}: {error}"
    return case


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints both times of each kernel and writes them as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--out", type=Path, help="also write JSON")
    options = parser.parse_args(arguments)
    cases = []
    for name, precision in RUNGS:
        case = compare(name, precision, options.size)
        times = f"{case['events_s']} s by events, {case['proton_s']} s by Proton"
        print(f"{case['case']}: {case['reason'] or times}")
        cases.append(case)
        if options.out:  # after each kernel, so that an interruption keeps earlier results
            options.out.write_text(json.dumps(cases, indent=2))


if __name__ == "__main__":
    main()
