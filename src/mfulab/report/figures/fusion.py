"""Operators without a matmul: the time that their bytes predict against the measured one, fused and not."""

import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.formats import BY_DTYPE
from mfulab.core.language import Texts
from mfulab.core.language.quantities import significant
from mfulab.report import trust
from mfulab.report.drawing import kinds, runs, style, ticks
from mfulab.report.frames import Tables, alone, ok, one_each, with_machine
from mfulab.tables.join import BYTES_COUNTED_PER_ELEMENT

TABLES = ("profile", "flops", "environment")
TOPIC = "execution"
ORDER = 11
CASE = ["machine", "model", "batch_size", "precision"]
FUSED = "compile"
MARKERS = {"eager": "o", "script": "s", FUSED: "D"}
PLACE = ("predicted_ms", "measured_ms")
ALIKE_WITHIN = 0.02  # of a time: less is no difference


def rows(tables: Tables) -> pd.DataFrame:
    """Inference of models whose operators multiply no matrices, with the milliseconds that their bytes predict.

    Unfused that is what all operators read and write ÷ the measured bandwidth, compiled what one operator would.
    """
    known = ok(tables["profile"], "time_s", "flops", "unfused_roofline_time_s", "ceiling_gb_s")
    known = known[(known["mode"] == "inference") & (known["flops"] == 0) & known["execution"].isin(MARKERS)]
    found = one_each(with_machine(tables, alone(known)), [*CASE, "execution"])
    counted = tables["flops"].drop_duplicates("run").set_index("run")
    scale = found["dtype"].map({dtype: form.bytes for dtype, form in BY_DTYPE.items()}) / BYTES_COUNTED_PER_ELEMENT
    least_s = found["flops_run"].map(counted["least_bytes"]) * scale / found["ceiling_gb_s"] / 1e9
    predicted = least_s.where(found["execution"] == FUSED, found["unfused_roofline_time_s"])
    found = found.assign(predicted_ms=1e3 * predicted, measured_ms=1e3 * found["time_s"])
    return found[found["predicted_ms"] > 0]


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """Of the largest batch: the model that fusing spares most bytes, by time and by bytes; how far bytes predict."""
    large = rows[rows["batch_size"] == rows["batch_size"].max()]
    pairs = large[large["execution"] == "eager"].merge(
        large[large["execution"] == FUSED], on=CASE, suffixes=("", "_fused")
    )
    said = []
    if not pairs.empty:
        spared = pairs["predicted_ms"] / pairs["predicted_ms_fused"]
        pair = pairs.loc[spared.idxmax()]
        times = pair["time_s"] / pair["time_s_fused"]
        key = "finding" if trust.apart(pair, suffix="_fused") else "within_both"
        key = "equal" if abs(times - 1) < ALIKE_WITHIN else key
        said.append(text(key, pair=pair, times=times, expected=spared.max()))
    ratio = significant((large["measured_ms"] / large["predicted_ms"]).median())
    said.append(text("deviation", count=len(large), batch=int(large["batch_size"].iloc[0]), ratio=ratio))
    return " ".join(said)


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """A panel a machine: colour is the model, the mark how it was issued; on the dashed line bytes explain the time."""
    colors = style.colors(sorted(rows["model"].unique()))
    low, high = rows[list(PLACE)].min(axis=None) / 2, rows[list(PLACE)].max(axis=None) * 2
    look: style.Look = {"hue": "model", "colors": colors, "shape": "execution", "markers": MARKERS, "alpha": 0.8}
    for axes, here in style.by_machine(figure, rows):
        axes.axline((1, 1), (10, 10), **style.LIMIT)
        kinds.points(axes, here, *PLACE, **look)
        axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), xlabel=text("predicted"))
        ticks.decades(axes.xaxis)
        ticks.decades(axes.yaxis)
    style.label(figure, y=text("time"))
    entries = [style.dot(color, name) for name, color in colors.items()]
    present = [name for name in MARKERS if (rows["execution"] == name).any()]
    marks = [style.dot(style.MUTED, text.name("execution", name), MARKERS[name]) for name in present]
    style.legend(figure, [*entries, *marks, *runs.key(rows, text)], columns=4)
