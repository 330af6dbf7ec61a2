"""`mfulab fits MODEL --device NAME`: the peak memory of a step by part, and the largest batch."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mfulab.cli.flops import config_of
from mfulab.core.language.quantities import quantity
from mfulab.core.terminal import Terminal
from mfulab.models.fits import fits


def show(model: str, words: Sequence[str], as_json: bool, **asked: Any) -> int:
    """Prints the parts, the peak and the largest batch; the status is 1 where the step does not fit."""
    fit = fits(config_of(model, words, asked["sequence_length"]), **asked)
    if as_json:
        print(json.dumps(asdict(fit), ensure_ascii=False))
        return int(not fit.fits)
    console = Terminal(highlight=False, soft_wrap=True)
    verb = "fits" if fit.fits else "does not fit"
    peak, room = quantity(fit.peak_bytes, "B"), quantity(fit.capacity_bytes, "B")
    console.print(f"{fit.model}, batch {fit.batch_size}: peak {peak} of {room}, {verb} {fit.device}")
    names = ("parameters", "gradients", "optimizer", "activations", "inputs", "workspace")
    parts = {name: getattr(fit, f"{name}_bytes") for name in names}
    passing = fit.peak_bytes - sum(filter(None, parts.values()))
    parts |= {"in passing": passing} if passing > 0 else {}
    for part, size in parts.items():
        console.print(f"  {part:12} {'not known' if size is None else quantity(size, 'B'):>9}")
    if passing > 0:
        console.print("In passing: what the step makes and frees again, such as logits.")
    else:
        console.print("Activations go as gradients come: the peak is what is alive at once, less than the sum.")
    console.print(f"largest batch: {fit.largest_batch:,}", style="bold")
    console.print(fit.says, style="dim")
    return int(not fit.fits)
