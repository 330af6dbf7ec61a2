"""`mfulab fits MODEL --device NAME`: the peak memory of a step by part, and the largest batch."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mfulab.cli.flops import changed, config_of
from mfulab.core.language.quantities import quantity
from mfulab.core.terminal import Terminal
from mfulab.models.fits import fits


def show(model: str, words: Sequence[str], as_json: bool, **asked: Any) -> int:
    """Prints the parts, the peak and the largest batch; the status is 1 where the step does not fit."""
    sys.path.insert(0, str(Path.cwd()))  # a user's own model stands in this folder
    told = fits(config_of(model, changed(words), asked["sequence_length"]), **asked)
    if as_json:
        print(json.dumps(asdict(told), ensure_ascii=False))
        return int(not told.fits)
    console = Terminal(highlight=False, soft_wrap=True)
    verb = "fits" if told.fits else "does not fit"
    peak, room = quantity(told.peak_bytes, "B"), quantity(told.capacity_bytes, "B")
    console.print(f"{told.model}, batch {told.batch_size}: peak {peak} of {room}, {verb} {told.device}")
    for part in ("parameters", "gradients", "optimizer", "activations", "inputs", "workspace"):
        held = getattr(told, f"{part}_bytes")
        console.print(f"  {part:12} {'not known' if held is None else quantity(held, 'B'):>9}")
    console.print("Activations go as gradients come: the peak is what is alive at once, less than the sum.")
    console.print(f"largest batch: {told.largest_batch:,}", style="bold")
    console.print(told.says, style="dim")
    return int(not told.fits)
