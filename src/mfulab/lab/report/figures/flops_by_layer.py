"""FLOPs of a model's forward pass by layer."""

import json
import re

import numpy as np

from mfulab.lab.report.drawing import Figure, Texts, kinds, style
from mfulab.lab.report.frames import DataFrame, Tables, ok, own, preferred

TOPIC, ORDER = "flops", 1
PANELS, BARS = 3, 12  # models, and layers of each
LONGEST, INNER = 26, re.compile(r"(\w)\w*\.")  # letters of a layer's name; its modules, of which one letter stays


def rows(tables: Tables) -> DataFrame:
    """A row a layer of the models with the fewest FLOPs, in their order, and one of what is not among the largest."""
    counted = ok(tables["flops"], "forward_flops")
    counted = own(counted[(counted["layers"] != "") & (counted["forward_flops"] > 0)])
    counted = preferred(counted, counted["layers"].str.count(r"\[") > 2)  # one layer is no comparison
    counted = counted.assign(a_sample=counted["forward_flops"] / counted["batch_size"]).sort_values("a_sample")
    lines = [
        {**row, "layer": layer, "part": flops / row["forward_flops"], "place": place}
        for row in counted.drop_duplicates("model").head(PANELS).to_dict("records")
        for place, (layer, flops) in enumerate(_largest(row))
    ]
    return DataFrame(lines, columns=[*counted, "layer", "part", "place"])


def _largest(row: dict[str, object]) -> list[tuple[str, float]]:
    layers = json.loads(str(row["layers"]))
    least = sorted((flops for _, flops in layers), reverse=True)[:BARS][-1]
    largest = [(layer, flops) for layer, flops in layers if flops >= least][:BARS]
    remainder = float(row["forward_flops"]) - sum(flops for _, flops in largest)  # type: ignore[arg-type]
    return [*largest, ("", remainder)] if remainder > 0 else largest


def finding(rows: DataFrame, text: Texts) -> str:
    """Each model's largest layer, and how many of its largest do half of its FLOPs; the most uneven model first."""
    words = {}
    for _, here in rows.groupby("model", sort=False):
        named = here[here["layer"] != ""].sort_values("part", ascending=False, kind="stable")
        largest, parts = named.iloc[0], named["part"].to_numpy()
        half = int(np.searchsorted(parts.cumsum(), 0.5)) + 1
        alike = len(parts) > 1 and bool(np.isclose(parts, parts[0]).all())
        key = "one" if len(here) == 1 else "alike" if alike else "finding" if half == 1 else "half"
        key = key if parts.sum() >= 0.5 or alike else "many"
        words[text(key, row=largest, share=100 * largest["part"], half=half, count=len(parts))] = parts[0]
    return " ".join(sorted(words, key=lambda sentence: -words[sentence]))


def draw(rows: DataFrame, figure: Figure, text: Texts) -> None:
    """A panel a model, a bar a layer in the model's order, as long as its share."""
    models = {model: text.name("model", model) for model in rows["model"]}
    for axes, here in style.facets(figure, rows, text, "model", models, lines=rows["model"].value_counts().max() - 3):
        short = [layer if len(layer) <= LONGEST else INNER.sub(r"\1.", layer) for layer in here["layer"]]
        here = here.assign(share=100 * here["part"], named=[layer[-LONGEST:] or text("rest") for layer in short])
        here = here.assign(words=[text("of_whole", share=share) for share in here["share"]])
        kinds.bars(axes, here, "share", "named", "forward_flops", words="words", fontsize=8, labelsize=8)
        axes.set(xlim=(0, 1.35 * here["share"].max()), xlabel=text("share"))
