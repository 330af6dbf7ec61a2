"""`mfulab explain key=value …`: what a speed is as MFU by each convention of the field, and which gives a number."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from mfulab.core.errors import ConfigurationError, lacks, unknown
from mfulab.core.groups import ModelConfig
from mfulab.core.terminal import Terminal, table
from mfulab.mfu.conventions import ORDER
from mfulab.mfu.explain import BY_CHANCE, TOLERANCE, Explanation
from mfulab.mfu.models import model_config, read_yaml
from mfulab.models.work import expect, explain

COUNTS = ("sequence_length", "batch_size", "devices")
NUMBERS = (*COUNTS, "tokens_per_s", "samples_per_s", "time_s", "reported", "peak_tflop_s")
SPEEDS = {"tokens_per_s", "samples_per_s", "time_s"}
TEXTS = ("model", "device", "precision", "mode")
SHARDED = "weights, gradients and optimiser state fully sharded"
SHOWN = 5  # conventions that are listed where a reported number has more
SEEN = 0.005  # points from which a number is shown


def show(words: Sequence[str], as_json: bool) -> int:
    """Answers `key=value …`; the status is 1 where no convention gives the number that was reported."""
    given, changes = _read(words)
    console = Terminal(highlight=False, width=None if sys.stdout.isatty() else 200)
    config = model_config(given.pop("model", ""), changes, given.get("sequence_length"))
    if "device" not in given:
        raise ConfigurationError('device: missing; give its name, such as device="NVIDIA H100 80GB HBM3"')
    if not SPEEDS & given.keys():
        return _show_expected(console, config, given, as_json)
    explanation = explain(config, **given)
    if as_json:
        print(json.dumps(asdict(explanation), ensure_ascii=False))
    else:
        _print(console, explanation)
    return 0 if explanation.reported is None or explanation.matches else 1


def _show_expected(console: Terminal, config: ModelConfig, asked: dict[str, Any], as_json: bool) -> int:
    """Shows, where no speed is given, what the device's roofline allows, and the memory that each device needs."""
    if useless := sorted({"reported", "peak_tflop_s"} & asked.keys()):
        raise ConfigurationError(f"{', '.join(useless)}: needs a speed; give one of {', '.join(sorted(SPEEDS))}")
    modes = (asked.pop("mode"),) if "mode" in asked else None
    device, precision = asked.pop("device"), asked.pop("precision", "bf16")
    expectations = expect(config, device, precision, modes=modes, **asked)
    if as_json:
        print(json.dumps([asdict(expectation) for expectation in expectations], ensure_ascii=False))
        return 0
    unit, devices = "tokens" if config.vocabulary_size else "samples", asked.get("devices", 1)
    where = f"one {device}" if devices == 1 else f"each of {devices:,} {device}"
    samples = f"{asked.get('batch_size', 1)} samples a step on each device"
    title = f"{config.name} on {where} in {precision}, at best, {samples}"
    names = "time, ms", f"{unit}/s", "MFU, %", "nothing fused, %", "bound by compute, %", "kept, GB", "too large"
    shown = table(["a step of"], names, title=title)
    for expectation in expectations:
        is_prefill = config.vocabulary_size and expectation.mode == "inference"
        shown.add_row(
            *("prefill" if is_prefill else expectation.mode, f"{1e3 * expectation.products_s:.4g}"),
            *(f"{expectation.tokens_per_s:,.0f}", f"{expectation.mfu_percent:.1f}"),
            "" if expectation.unfused_mfu_percent is None else f"{expectation.unfused_mfu_percent:.1f}",
            f"{expectation.compute_bound_percent:.0f}",
            "" if expectation.memory_bytes is None else f"{expectation.memory_bytes / 1e9:.4g}",
            {True: "", False: "yes", None: "?"}[expectation.fits],
        )
    console.print(shown)
    console.print("Kept: weights, state, saved activations, cache. The peak is higher: `mfulab fits` predicts it.")
    if any(expectation.others_s is None for expectation in expectations):
        console.print(lacks("What is not fused, and the memory of training,", "torch"), markup=False)
    for assumption in dict.fromkeys(expectation.assumes for expectation in expectations if expectation.assumes):
        console.print(assumption)
    if devices > 1:
        console.print(f"Memory: {SHARDED}; activations and cache of each one's batch. No time for communication.")
    elif any(expectation.fits is False for expectation in expectations):
        console.print(f"Give devices=N for the memory of each of N: {SHARDED}.")
    return 0


def _read(words: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keys of the question and dotted keys of the model, their values read as YAML."""
    asked, changes = dict[str, Any](), dict[str, Any]()
    for word in words:
        key, separator, text = word.partition("=")
        if not separator:
            raise ConfigurationError(f"{word}: give key=value")
        value, whole = read_yaml(text), key in COUNTS
        if key.startswith("model."):
            changes[key.removeprefix("model.")] = value
        elif key in TEXTS:
            asked[key] = text
        elif key not in NUMBERS:
            raise unknown("key", key, (*TEXTS, *NUMBERS))
        elif not isinstance(value, int | float) or isinstance(value, bool) or (whole and value % 1 != 0):
            raise ConfigurationError(f"{key}={text}: give a{' whole' if whole else ''} number")
        else:
            asked[key] = int(value) if whole else value
    if "model" not in asked and not changes:
        raise ConfigurationError("model: missing; give model=NAME of config/model/, or model._target_=… of your own")
    return asked, changes


def _print(console: Terminal, explanation: Explanation) -> None:
    """Prints our MFU, which conventions give the reported one, and a line for each: the points that its choices add."""
    ours = explanation.ours
    mfu = (f"{ours.mfu_percent:.1f} % MFU", "bold")
    rate = f", {explanation.tflop_s:.1f} TFLOP/s a device of {ours.peak_tflop_s:.1f} ({ours.denominator})"
    console.print(Text.assemble(f"{explanation.model} on {explanation.device}: ", mfu, rate))
    if ours.mfu_percent > 100:
        console.print("Above 100 %: the speed, the batch, the number of devices or the device is wrong.", style="red")
    matches, reported = explanation.matches, explanation.reported
    if reported is not None and not matches:
        console.print(f"No convention and no peak here gives {reported:g} % to {TOLERANCE} points.")
    elif reported is not None:
        console.print(f"{reported:g} % is, to {TOLERANCE} points:")
        for row in matches[:SHOWN]:
            console.print(f"  {row.mfu_percent:.1f} %  {row.convention}, over {row.denominator}")
        if len(matches) > SHOWN:
            console.print(f"  and {len(matches) - SHOWN} more, further from ours")
        if (chance := explanation.chance_percent or 0) >= BY_CHANCE:
            tried = f"{explanation.tried} combinations are as simple, and taken to ±{TOLERANCE} points they give"
            console.print(f"This may be chance: {tried} {chance:.0f} % of all numbers within a quarter of this one.")
    rows = [*explanation.conventions, *explanation.denominators]
    points = {step: [row.steps[step] for row in rows] for step in (*ORDER, "peak")}
    used = {step: column for step, column in points.items() if any(abs(point) >= SEEN for point in column)}
    shown = table(("convention", "peak"), (name.replace("_", " ") for name in ("MFU, %", *used)))
    for row, *added in zip(rows, *used.values(), strict=True):
        cells = (f"{point:+.2f}" if abs(point) >= SEEN else "" for point in added)
        shown.add_row(row.convention, row.denominator, f"{row.mfu_percent:.1f}", *cells)
    console.print(shown)
