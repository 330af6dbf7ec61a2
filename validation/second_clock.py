"""Times the Triton rungs by two clocks: CUDA events, as every measurement here, and Triton's profiler Proton (CUPTI).

    python validation/second_clock.py [--size 4096] [--out clocks.json]

A kernel's time by Proton is that between its own start and end; events add what lies between two launches.
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
    ("triton_autotuned", "bf16"),  # last: it looks for its tile for half a minute
)
PACE = Pace(windows=3, window_s=0.3, warm_up_s=0.5, tolerance=0.05)
# 50 ended before the power limit held the clock: Proton then read 9 to 13 % less than events
CALLS = 3000


def kernel_seconds(database: Sequence[Mapping[str, Any]]) -> float | None:
    """Seconds of all kernels in a profile of Proton's (its first tree, of metrics in ns); None if
    it saw none."""

    def nanoseconds(node: Mapping[str, Any]) -> Iterator[float]:
        if "time (ns)" in node.get("metrics", {}):
            yield node["metrics"]["time (ns)"]
        for child in node.get("children", ()):
            yield from nanoseconds(child)

    found = list(nanoseconds(database[0])) if database else []
    return sum(found) / 1e9 if found else None


def by_proton(step: Callable[[], object], calls: int) -> float | None:
    """Seconds a call by Proton; None if it saw no kernel."""
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
    """Seconds of one product by both clocks, or the reason for there being none."""
    case: dict[str, Any] = {
        "case": f"{name} {precision} {size}³",
        "events_s": None,
        "proton_s": None,
        "reason": "",
    }
    try:
        module, _, kind = keys.content(CONFIG, "kernel", name)["_target_"].rpartition(".")
        kernel, shape = (
            getattr(importlib.import_module(module), kind)(precision),
            Shape(1, size, size, size),
        )
        kernel.require("cuda", shape)
        operands = random_operands(shape, FORMATS[precision], "cuda", seed=1)
        prepared, launch = kernel.prepare(operands.a, operands.b, operands.c), kernel.launch(shape)

        def step() -> object:
            return kernel.run(*prepared, launch=launch)

        case["events_s"] = observe(step, clock_for(torch.device("cuda")), PACE).time_s
        case["proton_s"] = by_proton(step, CALLS)
        case["reason"] = "" if case["proton_s"] else "Proton saw no kernel"
    except (
        Exception
    ) as error:  # whatever it is belongs into the record, and the next rung may still work
        case["reason"] = f"{type(error).__name__}: {error}"
    return case


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints both times of each rung and writes them as JSON."""
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
        if options.out:  # after each: what is cut off leaves what it has
            options.out.write_text(json.dumps(cases, indent=2))


if __name__ == "__main__":
    main()
