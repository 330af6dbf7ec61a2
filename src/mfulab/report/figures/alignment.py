"""Speed of one matmul around multiples of a tile's side: the staircase that padding makes."""

import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent
from mfulab.report import trust
from mfulab.report.drawing import kinds, matmuls, runs, style
from mfulab.report.frames import Tables, ok, own, with_machine

TABLES = ("matmul", "environment")
TOPIC = "kernels"
ORDER = 6
TILES = (128, 64, 32, 16, 8, 1)
CHANGES = {"time": "time_s", "flops": "flops"}
FEWEST = 4  # sizes that are one more than a multiple of eight, each beside that multiple


def rows(tables: Tables) -> pd.DataFrame:
    """The sizes of one kernel in each precision on one machine, if it was timed at and above multiples of eight."""
    timed = own(matmuls.square(with_machine(tables, ok(tables["matmul"], "tflop_s"))))
    if timed.empty:
        return timed
    keys = ["hardware", "kernel", "precision"]
    known = timed.set_index([*keys, "n"]).index
    above = [(*at[:3], at[3] - 1) in known and at[3] % 8 == 1 for at in known]
    beside = timed.assign(above=above)
    counts = beside.groupby(keys)["above"].transform("sum")
    enough = beside[counts >= FEWEST]
    if enough.empty:
        return enough
    first = enough.loc[counts[enough.index].idxmax()]
    here = enough[(enough["hardware"] == first["hardware"]) & (enough["kernel"] == first["kernel"])]
    return here.assign(tile=here["n"].map(tile)).sort_values(["precision", "n"])


def tile(n: float) -> int:
    """The largest of TILES of which n is a multiple."""
    return next(each for each in TILES if n % each == 0)


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """Steps from a multiple of eight to one more: their median, both directions, and the one that costs most.

    All are of the precision in which a step costs most; that one is named if it costs more beyond the intervals.
    """
    steps = rows[rows["n"] % 8 == 1].merge(rows.assign(n=rows["n"] + 1), on=["precision", "n"], suffixes=("", "_below"))
    longer = steps["time_s"] / steps["time_s_below"]
    if not longer.notna().any():
        return text("no_step", row=rows.iloc[0], count=rows["n"].nunique())
    beyond = trust.apart(steps, suffix="_below")
    risen = beyond & (longer > 1)
    row = steps.loc[(longer[risen] if risen.any() else longer).idxmax()]
    here = (steps["precision"] == row["precision"]) & longer.notna()
    counts = {"rises": (here & risen).sum(), "falls": (here & beyond & (longer < 1)).sum(), "count": here.sum()}
    said = [text("finding", row=row, median=_signed(longer[here].median())), text("directions", **counts)]
    if risen.any():
        changes = {name: _signed(row[column] / row[f"{column}_below"]) for name, column in CHANGES.items()}
        said.append(text("most", row=row, below=row["n"] - 1, **changes))
    return " ".join(said)


def _signed(ratio: float) -> str:
    return ("−" if ratio < 1 else "+") + percent(abs(100 * (ratio - 1)))


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """A panel a precision: speed over size, each size coloured by the largest tile that it fills."""
    names = {precision: text.name("precision", precision) for precision in dict.fromkeys(rows["precision"])}
    grid = style.panels(figure, [""], list(names.values()))
    colors = {each: color for each, color in zip(TILES, style.PALETTE, strict=False) if (rows["tile"] == each).any()}
    for precision, name in names.items():
        axes, here = grid["", name], rows[rows["precision"] == precision]
        here = here.assign(place=range(len(here)), gflop_s=1e3 * here["tflop_s"])
        axes.plot(here["place"], here["gflop_s"], color=style.GRID, linewidth=1.5, zorder=1)
        kinds.points(axes, here, "place", "gflop_s", "n", "tflop_s", hue="tile", colors=colors, s=60)
        axes.set_xticks(here["place"], [f"{n:g}" for n in here["n"]], rotation=90, fontsize=9)
        axes.set_ylim(0, 1.1 * here["gflop_s"].max())
        axes.set_title(" · ".join([here["machine"].iloc[0], here["kernel"].iloc[0], name]))
    style.label(figure, text("size"), "GFLOP/s")
    words = {each: text("multiple", tile=each) if each > 1 else text("no_multiple") for each in colors}
    style.legend(figure, [*(style.dot(colors[each], words[each]) for each in colors), *runs.key(rows, text)])
