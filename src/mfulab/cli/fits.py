"""`mfulab fits MODEL --device NAME`: predicts the peak memory of a step by part, and the largest
batch that fits."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.padding import Padding
from rich.table import Column, Table

from mfulab.cli.flops import config_of
from mfulab.cli.options import AS_JSON, COUNT, DEVICE, LANGUAGE, MODEL, TOKENS, Choice, command
from mfulab.core.answer import Answer, Doubt, answered
from mfulab.core.language import Texts
from mfulab.core.language.quantities import quantity
from mfulab.core.printing import say_json
from mfulab.core.terminal import Terminal
from mfulab.models.fits import Fit, fits

MEMORY_PARTS = ("parameters", "gradients", "optimizer", "activations", "inputs", "workspace")


@command(
    "fits",
    'fits gpt2 --batch-size 64 --device "NVIDIA H100 80GB HBM3"',
    more=(
        "MODEL and KEY=VALUE are those of mfulab flops. The status is 1 where the step does not "
        "fit."
    ),
)
@click.argument("model", type=MODEL)
@click.argument("words", nargs=-1, metavar="[KEY=VALUE]…")
@click.option(
    "--device",
    type=DEVICE,
    metavar="NAME",
    required=True,
    help="Device to fit the step on: its driver's name or its PCI id.",
)
@click.option("--batch-size", type=COUNT, default=1, help="Samples per step.")
@TOKENS
@click.option(
    "--optimizer",
    type=Choice(["adam", "adamw", "adam_8bit", "sgd"]),
    default="adamw",
    help="Optimizer of a training step, whose states take memory.",
)
@click.option(
    "--precision",
    type=Choice(["fp32", "bf16", "fp16", "amp_bf16", "amp_fp16"]),
    default="bf16",
    help="Number format of weights, gradients and activations; amp_…: autocast with fp32 weights.",
)
@click.option(
    "--checkpointing", is_flag=True, help="Recompute each block's activations in the backward pass."
)
@click.option(
    "--mode",
    type=Choice(["training", "inference"]),
    default="training",
    help="Kind of step to predict.",
)
@AS_JSON
@LANGUAGE
def show(model: str, words: Sequence[str], as_json: bool, language: str, **options: Any) -> int:
    """Prints the parts of the memory, their peak and the largest batch. Returns 1 if the step does
    not fit, else 0."""
    config = config_of(model, words, options["sequence_length"])
    fit = fits(config, **options)
    if as_json:
        say_json(_answer(fit).line(asdict(fit)))
    else:
        options["sequence_length"] = options["sequence_length"] or config.sequence_length
        _print(fit, options, Texts(language, "fits"))
    return int(not fit.fits)


def _answer(fit: Fit) -> Answer:
    """The peak memory, relative to the device's; doubtful if it is more."""
    doubt: Doubt = {}
    if not fit.fits:
        doubt["does_not_fit"] = {"largest_batch": fit.largest_batch}
    return answered(
        fit.peak_bytes,
        "B",
        "predicted",
        denominator=fit.capacity_bytes,
        denominator_unit="B",
        doubt=doubt,
    )


def _setting(fit: Fit, options: Mapping[str, Any], text: Texts) -> str:
    """Words for what the peak is of: `training, bf16, AdamW, batch 4, 1024 tokens`."""
    why = text.within("why")
    mode = options["mode"]
    words = [text.name("mode", mode), options["precision"]]
    if mode == "training":
        words.append(text.name("optimizer", options["optimizer"]))
    words.append(why("batch", batch_size=fit.batch_size))
    if options["sequence_length"]:
        words.append(why("tokens", length=options["sequence_length"]))
    return ", ".join(words)


def _print(fit: Fit, options: Mapping[str, Any], text: Texts) -> None:
    console = Terminal(soft_wrap=True)
    setting = _setting(fit, options, text)
    console.print(
        text(
            "fits" if fit.fits else "fits_not",
            model=fit.model,
            setting=setting,
            device=fit.device,
            peak=fit.peak_bytes,
            room=fit.capacity_bytes,
        )
    )
    parts = {name: getattr(fit, f"{name}_bytes") for name in MEMORY_PARTS}
    temporary = fit.peak_bytes - sum(filter(None, parts.values()))
    if temporary > 0:
        parts |= {"in_passing": temporary}
    shown = Table(Column(), Column(justify="right"), box=None, show_header=False)
    for part, size in parts.items():
        shown.add_row(text(part), text("not_known") if size is None else quantity(size, "B"))
    console.print(Padding(shown, (0, 0, 0, 1), expand=False))
    console.print(text("passing" if temporary > 0 else "alive"))
    console.print(text("largest", largest=fit.largest_batch), style="bold")
    left_out = [text("left_out")]
    if fit.workspace_bytes is None:
        left_out.insert(0, text("no_workspace"))
    console.print(" ".join(left_out), style="dim")
