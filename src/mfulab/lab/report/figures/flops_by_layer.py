"""FLOPs of a model's forward pass by layer."""

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mfulab.core.json_text import parse_json
from mfulab.core.parts import Record
from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Texts, quantity, specs
from mfulab.lab.report.frames import DataFrame, Series, Tables, ok

TOPIC = "flops"
ORDER = 1
CLAIM = claims.COUNTED
PANELS = 3  # models
BARS = 8  # kinds of layers of a model
LONGEST = 26  # letters of a layer's name
HEAD = "lm_head"  # of a language model
# Number of a repeated block in a layer's path.
BLOCK = re.compile(r"(?<=\.)\d+(?=\.)")


def rows(tables: Tables) -> DataFrame:
    """Returns a row for each kind of layer of the most profiled models, largest first, and one for
    the remaining layers. Repeated layers of equal work are one kind. A model of whose kinds none is
    known as a whole has no rows."""
    counted = ok(tables["flops"], "forward_flops")
    counted = counted[(counted["layers"] != "") & (counted["forward_flops"] > 0)]
    counted = selection.pick(counted, "recorded", "few_layers", "synthetic")
    profiled = counted["model"].map(tables["profile"]["model"].value_counts()).fillna(0)
    counted = counted.assign(profiled=profiled).sort_values(
        ["profiled", "forward_flops"], ascending=[False, True], kind="stable"
    )
    lines = []
    for row in counted.drop_duplicates("model").head(PANELS).to_dict("records"):
        layers = _whole_kinds(row)
        if not layers:
            continue
        for index, (layer, times, flops) in enumerate(_largest(row, layers)):
            share = {"part": flops / row["forward_flops"], "place": index, "times": times}
            tied = {"tied": _is_tied(row, layers, layer, flops)}
            lines.append({**row, "layer": layer} | share | tied)
    return DataFrame(lines, columns=[*counted, "layer", "part", "place", "times", "tied"])


def _whole_kinds(row: Record) -> dict[str, float]:
    """FLOPs of the layers whose kinds are known as a whole. A row lists only its largest layers, so
    its smallest kinds may lack some: those are completed if their blocks' numbers explain all
    missing FLOPs, else left out."""
    listed: dict[str, float] = dict(parse_json(row["layers"]))
    missing_flops = row["forward_flops"] - sum(listed.values())
    if not missing_flops > 0:
        return listed
    least = min(listed.values())
    cut = dict.fromkeys(_unlisted(listed, least), least)
    if sum(cut.values()) == missing_flops:
        return listed | cut
    return {layer: flops for layer, flops in listed.items() if flops > least}


def _unlisted(listed: Mapping[str, float], least: float) -> Iterator[str]:
    """Yields the paths of layers like the smallest listed ones, in blocks where these are not
    listed."""
    numbers: dict[str, list[str]] = {}
    for layer in listed:
        for number in BLOCK.finditer(layer):
            numbers.setdefault(layer[: number.start()], []).append(number.group())
    for layer, flops in listed.items():
        if flops > least:
            continue
        for number in BLOCK.finditer(layer):
            before = layer[: number.start()]
            in_blocks = {f"{before}{other}{layer[number.end() :]}" for other in numbers[before]}
            yield from in_blocks.difference(listed)


def _largest(row: Record, layers: Mapping[str, float]) -> list[tuple[str, int, float]]:
    """Largest kinds of layers as (name, number, FLOPs of all). The last entry, without a name, is
    for the remaining ones."""
    kinds_of_layers: dict[tuple[str, float], list[str]] = {}
    for layer, flops in layers.items():
        kinds_of_layers.setdefault((BLOCK.sub("*", layer), flops), []).append(layer)
    summed = []
    for (_, flops), alike in kinds_of_layers.items():
        summed.append((_pattern(alike), len(alike), flops * len(alike)))
    summed.sort(key=lambda kind: -kind[2])
    largest = summed[:BARS]
    remainder = row["forward_flops"] - sum(flops for _, _, flops in largest)
    if remainder > 0:
        return [*largest, ("", 0, remainder)]
    return largest


def _pattern(layers: Sequence[str]) -> str:
    """Path that fits all of these layers, with * where their numbers differ."""
    parts = []
    for names in zip(*(layer.split(".") for layer in layers), strict=True):
        parts.append(names[0] if len(set(names)) == 1 else "*")
    return ".".join(parts)


def _is_tied(row: Record, layers: Mapping[str, float], layer: str, flops: float) -> bool:
    """True if a head can only share its weights with the embedding of words: the parameters outside
    all linear layers are too few for an embedding of its own. False if some layers are unknown."""
    tokens = row["batch_size"] * row["sequence_length"]
    is_complete = sum(layers.values()) == row["forward_flops"]
    if layer != HEAD or not tokens > 0 or not is_complete:
        return False
    linear = 0.0
    for name, of_layer in layers.items():
        # Attention itself has no weights; its layers are listed besides it.
        if not any(other.startswith(f"{name}.") for other in layers):
            linear += of_layer / (2 * tokens)
    return bool(row["parameters"] - linear < flops / (2 * tokens))


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on each model's largest layer, or kind of equal layers; the most uneven model comes
    first."""
    parts = {}
    for _, here in rows.groupby("model", sort=False):
        named = here[here["layer"] != ""].sort_values("part", ascending=False, kind="stable")
        largest = named.iloc[0]
        alike = int(np.isclose(named["part"], largest["part"]).sum())
        if len(here) == 1:
            key = "one"
        elif alike > 1:
            key = "alike"
        else:
            key = "several" if largest["times"] > 1 else "finding"
        named_largest = largest.replace({largest["layer"]: _named(largest, text)})
        sentence = text(key, row=named_largest, share=100 * largest["part"], count=alike)
        parts[sentence] = largest["part"]
    return " ".join(sorted(parts, key=lambda sentence: -parts[sentence]))


def _dressed(rows: DataFrame, text: Texts) -> DataFrame:
    """Adds the labels of models, layers and shares."""
    share = 100 * rows["part"]
    return rows.assign(
        panel=specs.names("model", rows["model"], text),
        share=share,
        named=_names(rows, text),
        words=[text("of_whole", share=value) for value in share],
    )


draw = specs.Bars(
    x="share",
    y="named",
    told=("forward_flops",),
    words="words",
    x_label="share",
    facet="panel",
    alike=False,
    room=1.35,
    dressed=_dressed,
    look={"fontsize": 8, "labelsize": 8},
)


def _names(rows: DataFrame, text: Texts) -> list[str]:
    """Names of kinds of layers, shortened to fit a panel, with their number. Kinds of one name are
    told apart by the FLOPs of a layer."""
    short = [_shortened(row, text) for _, row in rows.iterrows()]
    is_shared = rows.assign(short=short).duplicated(["model", "short"], keep=False)
    names = []
    for name, shared, (_, row) in zip(short, is_shared, rows.iterrows(), strict=True):
        if shared:
            each = row["part"] * row["forward_flops"] / max(1, row["times"])
            name = f"{name}, {quantity(each, 'FLOP')}"
        names.append(f"{row['times']} × {name}" if row["times"] > 1 else name)
    return names


def _shortened(row: Series, text: Texts) -> str:
    """Name of a kind of layers that fits a panel."""
    if row["tied"]:
        return _named(row, text)
    return _end(row["layer"]) or text("rest")


def _named(row: Series, text: Texts) -> str:
    """Path of a layer, and that a head's weights are those of the embedding."""
    if row["tied"]:
        return text("tied", layer=row["layer"])
    return str(row["layer"])


def _end(layer: str) -> str:
    """Last modules of a layer's path, as many as fit a panel."""
    modules = layer.split(".")
    shown = layer
    while len(shown) > LONGEST and len(modules) > 1:
        modules = modules[1:]
        shown = f"…{'.'.join(modules)}"
    return shown[-LONGEST:]
