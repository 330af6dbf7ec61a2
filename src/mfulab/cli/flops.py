"""`mfulab flops MODEL`: a model's FLOPs layer by layer, without a device, and how certain the count
is."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text
from rich.tree import Tree

from mfulab.cli.options import (
    AS_JSON,
    COUNT,
    DEPTH,
    LANGUAGE,
    MODEL,
    TOKENS,
    command,
    listing,
)
from mfulab.core.answer import Answer, Doubt, answered, unanswered
from mfulab.core.errors import ConfigurationError, shortened
from mfulab.core.files import read_given
from mfulab.core.groups import ModelConfig
from mfulab.core.json_text import parse_json
from mfulab.core.language import Texts, verdicts
from mfulab.core.parts import leave_out
from mfulab.core.printing import say_json
from mfulab.core.said import Said, said_by
from mfulab.core.terminal import Terminal
from mfulab.mfu.models import model_config, names, read_yaml
from mfulab.models.decoders import computed, missing
from mfulab.models.work import check

if TYPE_CHECKING:
    from mfulab.flops.certainty import Certainty

DEFAULT_TOKENS = 1024  # sequence length for a published config.json, if none is given
SMALLEST_PERCENT = 0.1  # share of the FLOPs below which a layer is not drawn


@command(
    "flops",
    "flops my_model.build input_shape=[3,64,64] --batch-size 8",
    more=(
        "MODEL is a name of config/model/, a YAML file, or a config.json of transformers (or its "
        "folder). It may be a dotted path to a function that returns a torch.nn.Module, followed "
        "by its input."
    ),
)
@click.argument("model", type=MODEL)
@click.argument("words", nargs=-1, metavar="[KEY=VALUE]…")
@click.option("--batch-size", type=COUNT, default=1, help="Samples per step.")
@TOKENS
@click.option("--depth", type=DEPTH, default=3, help="Maximum depth of the layers shown.")
@listing(names, "models")
@AS_JSON
@LANGUAGE
def show(
    model: str,
    words: Sequence[str],
    batch_size: int,
    sequence_length: int | None,
    depth: int,
    as_json: bool,
    language: str,
) -> None:
    """Prints the tree of layers and the totals, or all layers as JSON. Raises ConfigurationError if
    the model cannot be counted."""
    config = config_of(model, words, sequence_length)
    check(config, sequence_length, 1, [])
    count = _computed if missing(config) else _counted
    text = Texts("en" if as_json else language, "flops")
    counted = count(config, batch_size, sequence_length, text)
    notes = list(filter(None, counted.lines))
    if as_json:
        say_json(counted.answer.line({"layers": counted.rows, "notes": notes}))
        return
    console = Terminal(soft_wrap=True)
    tokens = sequence_length or config.sequence_length
    key = "of_batch_tokens" if tokens else "of_batch"
    console.print(text(key, batch=batch_size, tokens=tokens), style="dim")
    console.print(render(counted.rows, text, depth=depth))
    for line in notes:
        console.print(line)


@dataclass(frozen=True)
class CountReport:
    """A count to print: FLOPs of forward and backward, rows of the tree, lines below it, and the
    calls of each operator without a formula."""

    flops: float
    rows: list[dict[str, object]]
    lines: Iterable[str]
    uncounted: Mapping[str, int] = field(default_factory=dict)

    @property
    def answer(self) -> Answer:
        """FLOPs of a step, with a doubt if operators have no formula. It has no value if there are
        no FLOPs."""
        doubt: Doubt = {}
        if self.uncounted:
            doubt["uncounted"] = self.uncounted
        if not self.flops:
            return unanswered("FLOP", Said("uncounted", self.uncounted))
        return answered(self.flops, "FLOP", "counted", doubt=doubt)


def _counted(
    config: ModelConfig, batch_size: int, sequence_length: int | None, text: Texts
) -> CountReport:
    """Builds the module and counts it. Raises ConfigurationError if that fails."""
    from mfulab.flops.count import CountError
    from mfulab.flops.counter import layer_rows
    from mfulab.flops.experts import active_parameters
    from mfulab.models.build import ModelError
    from mfulab.models.counted import count_model

    try:
        counted = count_model(config, batch_size, sequence_length)
    except (ModelError, CountError) as error:
        raise ConfigurationError(said_by(error)) from error
    operations = counted.count.operations
    forward = operations.sum("forward")
    backward = operations.sum("backward")
    all_parameters = sum(parameter.numel() for parameter in counted.model.parameters())
    parameters = all_parameters, active_parameters(counted.model)
    flops = forward.flops, backward.flops, forward.causal_flops + backward.causal_flops
    tokens = batch_size * (sequence_length or config.sequence_length or 0)
    message = ""
    if counted.message is not None:
        message = verdicts.say(counted.message, text.language)
    certainty = text("certainty", words=_basis(counted.count.certainty, text))
    lines = _totals(text, *parameters, *flops, tokens, certainty, message)
    rows = layer_rows(counted.model, operations)
    return CountReport(
        forward.flops + backward.flops, rows, lines, counted.count.certainty.uncounted
    )


def _basis(certainty: "Certainty", text: Texts) -> str:
    """Basis of a count in words: formulas, a second count, upper bounds, and operators without a
    formula."""
    kinds = []
    for kind, share in certainty.shares.items():
        if share:
            kinds.append(text("kind", kind=kind, share=100 * share))
    clauses = [text("no_kind")]
    if kinds:
        clauses = [text("by_formulas", kinds=", ".join(kinds))]
    if certainty.deviation is not None:
        where = ""
        if certainty.worst_layer:
            where = text("most_in", layer=certainty.worst_layer)
        share = 100 * certainty.second_share
        deviation = 100 * certainty.deviation
        clauses.append(text("second_count", where=where, share=share, deviation=deviation))
    if certainty.bound_share:
        clauses.append(text("bound", share=100 * certainty.bound_share))
    calls = []
    for name, count in certainty.uncounted.items():
        calls.append(text("calls", operator=name, count=count))
    if calls:
        clauses.append(text("without_formula", calls=", ".join(calls)))
    else:
        clauses.append(text("all_formulas"))
    if certainty.unused:
        clauses.append(text("did_not_run", modules=", ".join(certainty.unused)))
    return "; ".join(clauses)


def _computed(
    config: ModelConfig, batch_size: int, sequence_length: int | None, text: Texts
) -> CountReport:
    """Computes the count from a decoder's dimensions, without torch. Equal blocks are one row,
    named `*`."""
    step = computed(config, sequence_length, batch_size)
    layers = {"": {"forward": 0.0, "backward": 0.0}}
    for operation in step.operations:
        direction = "backward" if operation.direction == "backward" else "forward"
        parts = operation.layer.split(".")
        for depth in range(len(parts) + 1):
            layer = ".".join(parts[:depth])
            flops = layers.setdefault(layer, {"forward": 0.0, "backward": 0.0})
            flops[direction] += operation.flops
    forward, backward = layers[""].values()
    rows = list[dict[str, object]]()
    for name, flops in layers.items():
        rows.append(
            {
                "layer": name,
                "module": "" if name else config.name,
                "forward_flops": flops["forward"],
                "backward_flops": flops["backward"],
                "share_percent": 100 * sum(flops.values()) / (forward + backward),
            }
        )
    causal = sum(operation.causal_flops for operation in step.operations)
    parameters = step.parameters, step.parameters - step.inactive
    lines = _totals(text, *parameters, forward, backward, causal, step.tokens, step.message)
    return CountReport(forward + backward, rows, lines)


def config_of(model: str, words: Iterable[str], sequence_length: int | None) -> ModelConfig:
    """The config of a model given by name, YAML file, config.json or dotted path, changed by each
    `key=value`. Raises ConfigurationError if there is no such model."""
    sys.path.insert(0, str(Path.cwd()))  # a user's own model may be a module in this folder
    changes = dict[str, Any]()
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise ConfigurationError(Said("give_model_key", word=shortened(word)))
        changes[key] = read_yaml(text)
    path = Path(model, "config.json") if Path(model).is_dir() else Path(model)
    if path.suffix == ".json":
        return model_config(_published(path, sequence_length), changes)
    if "." in model and path.suffix not in (".yaml", ".yml") and model not in names():
        return model_config({"name": model.rpartition(".")[2], "_target_": model}, changes)
    return model_config(model, changes)


def _published(path: Path, sequence_length: int | None) -> dict[str, Any]:
    text = read_given(path)
    try:
        content = parse_json(text)
        architecture = content["architectures"][0]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ConfigurationError(Said("no_transformers_config", path=str(path))) from error
    unread = (
        "architectures",
        "torch_dtype",
        "dtype",
        "transformers_version",
        "quantization_config",
        "auto_map",
    )
    arguments = leave_out(content, unread) | {"architecture": architecture}
    config = {
        "name": architecture,
        "_target_": "mfulab.models.huggingface.build",
        "arguments": arguments,
    }
    text_config = content.get("text_config")
    if not isinstance(text_config, dict):
        text_config = {}
    vocabulary = content.get("vocab_size", text_config.get("vocab_size"))
    if vocabulary:
        length = sequence_length or DEFAULT_TOKENS
        tokens = {"sequence_length": length, "vocabulary_size": vocabulary}
        return config | {"task": "language_modeling", **tokens}
    side = content.get("image_size", 224)
    return config | {"input_shape": [content.get("num_channels", 3), side, side]}


def _totals(
    text: Texts,
    parameters: float,
    active: float,
    forward: float,
    backward: float,
    causal: float,
    tokens: float,
    *notes: str,
) -> Iterator[str]:
    key = "parameters" if active == parameters else "parameters_active"
    yield text(key, whole=parameters, active=active)
    key = "passes" if forward else "passes_none"
    yield text(key, forward=forward, backward=backward, ratio=backward / (forward or 1))
    if causal != forward + backward:
        yield text("causal", flops=causal)
    if tokens:
        yield text("per_token", flops=(forward + backward) / tokens)
    yield from notes


def render(rows: list[dict[str, object]], text: Texts, depth: int = 3) -> Tree:
    """Draws rows of layers as a tree, `depth` levels below the model. Layers below
    `SMALLEST_PERCENT` of the FLOPs are left out."""
    drawn = {"": Tree(_label(rows[0], str(rows[0]["module"]), text))}
    for row in rows[1:]:
        name = str(row["layer"])
        share = row["share_percent"]
        parent, _, last_name = name.rpartition(".")
        is_within = name.count(".") < depth and parent in drawn
        if is_within and isinstance(share, float) and share >= SMALLEST_PERCENT:
            title = f"{last_name}: {row['module']}".removesuffix(": ")
            drawn[name] = drawn[parent].add(_label(row, title, text))
    return drawn[""]


def _label(row: dict[str, object], title: str, text: Texts) -> Text:
    share = row["share_percent"]
    part = ""
    if isinstance(share, float):
        part = f"  {text('share', share=share)}"
    forward, backward = (float(str(row[f"{name}_flops"])) for name in ("forward", "backward"))
    passes = text("layer", forward=forward, backward=backward)
    return Text.assemble((title, "bold"), (part, "cyan"), (f"  {passes}", "dim"))
