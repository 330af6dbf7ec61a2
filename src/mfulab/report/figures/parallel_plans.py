"""Memory and traffic of a transformer on many devices, by the formulas of each way to divide it."""

import json

import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.core.language.quantities import quantity
from mfulab.flops.parallel import MICRO_BATCHES
from mfulab.report.drawing import kinds, style
from mfulab.report.frames import Tables, ok

TABLES = ("flops",)
TOPIC = "training"
ORDER = 11
WHOLE = "data parallel"  # which holds everything on each device
SPLIT = ("tensor parallel", "pipeline parallel")  # which need enough of a model's parts
PARTS = ("heads", "layers")


def rows(tables: Tables) -> pd.DataFrame:
    """A row a way and number of devices, of the counted transformer with most parameters."""
    counted = ok(tables["flops"], "parameters")
    counted = counted[counted["plans"] != ""].sort_values(["parameters", "batch_size"])
    if counted.empty:
        return counted
    largest = counted.iloc[-1]
    plans = pd.DataFrame(json.loads(largest["plans"]))
    return plans.assign(**{name: largest[name] for name in ("model", "hardware", "recorded", "commit", "started_at")})


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """Memory of one device alone, the way that holds least on most devices, the bubble, and where a way ends."""
    planned = rows.dropna(subset=["memory_bytes"])
    most = planned[planned["devices"] == planned["devices"].max()]
    best = most.sort_values(["memory_bytes", "sent_bytes"]).iloc[0]
    whole = rows[rows["method"] == WHOLE]
    flops = "? FLOP" if pd.isna(best["flops"]) else quantity(best["flops"], "FLOP")
    said = [text("finding", best=best, whole=whole["memory_bytes"].max(), flops=flops)]
    said += [text("fits", sent=quantity(each, "B")) for each in most.loc[most["method"] == WHOLE, "sent_bytes"]]
    waiting = planned[planned["bubble_percent"].notna()].sort_values("devices")
    said += [text("bubble", row=row, micro=MICRO_BATCHES) for _, row in waiting.tail(1).iterrows()]
    for method, parts in zip(SPLIT, PARTS, strict=True):
        without = rows[(rows["method"] == method) & rows["memory_bytes"].isna()]
        if len(without):
            devices = ", ".join(str(each) for each in sorted(without["devices"]))
            unknown = without["reason"].str.startswith("unknown").any()
            values = {"method": text.name("method", method), "parts": text(parts), "devices": devices}
            said.append(text("unknown" if unknown else "undivided" if parts == "heads" else "fewer", **values))
    return " ".join(said)


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """Two panels over the number of devices, a line a way, as far as there is such a plan."""
    columns = {"memory_bytes": text("memory"), "sent_bytes": text("sent")}
    grid = style.panels(figure, [""], list(columns.values()))
    rows = rows.dropna(subset=["memory_bytes"]).sort_values("devices", kind="stable")
    colors, dashes = style.colors(rows["method"]), style.dashes(rows["method"])
    counts = sorted(set(rows["devices"]))
    rows = rows.assign(place=rows["devices"].map(counts.index), run=rows["method"])
    look: style.Look = {"hue": "method", "colors": colors, "dash": "method", "dashes": dashes, "s": 25}
    for column, title in columns.items():
        axes = grid["", title]
        kinds.lines(axes, rows, "place", column, "devices", column, **look)
        axes.set_yscale("log")
        axes.set_xticks(range(len(counts)), [str(each) for each in counts])
    style.label(figure, text("devices"), text("bytes"))
    style.legend(figure, [style.line(colors[each], text.name("method", each), dashes[each]) for each in colors])
