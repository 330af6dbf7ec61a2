"""One convolution three ways: by the library, as a matmul of unfolded images, by direct loops."""

import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent, quantity, significant
from mfulab.report.drawing import runs, style, ticks
from mfulab.report.frames import Tables, ok, one_each, own, with_machine

TABLES = ("profile", "environment")
TOPIC = "flops"
ORDER = 6
THREE_WAYS = ("convolution_library", "convolution_im2col", "convolution_direct")
LIBRARY = THREE_WAYS[0]
CASE = ["mode", "batch_size", "precision"]


def rows(tables: Tables) -> pd.DataFrame:
    """Eager steps of the three ways on one machine, the first, each beside the library's of the same case."""
    known = with_machine(tables, ok(tables["profile"], "time_s", "flops"))
    known = known[known["model"].isin(THREE_WAYS) & (known["execution"] == "eager")]
    if known.empty:
        return known
    known = own(known)
    known = one_each(known[known["machine"] == style.machines(known)[0]], [*CASE, "model"])
    library = known[known["model"] == LIBRARY][[*CASE, "time_s"]]
    beside = known.merge(library, on=CASE, suffixes=("", "_library"))
    beside = beside.assign(factor=beside["time_s"] / beside["time_s_library"])
    several = beside.groupby(CASE)["model"].transform("nunique") > 1
    return beside[several].sort_values(CASE)


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The largest case: the same FLOPs, each way's time beside the library's; and the largest error of all."""
    most = rows.loc[rows["flops"].idxmax()]
    here = rows[(rows[CASE] == most[CASE]).all(axis=1) & (rows["model"] != LIBRARY)].sort_values("factor")
    ways = [text("way", name=text(row.model), factor=significant(row.factor, 2)) for row in here.itertuples()]
    words = [
        text(
            "finding",
            mode=text.name("mode", most["mode"]),
            batch=int(most["batch_size"]),
            flops=quantity(most["flops"], "FLOP"),
            time=quantity(most["time_s_library"], "s"),
            ways=", ".join(ways),
        )
    ]
    errors = rows["relative_error"].dropna()
    if len(errors):
        words.append(text("error", error=significant(errors.max(), 2)))
    return " ".join(words)


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """A panel a mode, a group of bars a batch size: time relative to the library's, logarithmic; MFU behind it."""
    modes = style.modes(rows, text)
    grid = style.panels(figure, [""], list(modes.values()), sharey=True)
    cases = sorted(rows["batch_size"].unique())
    style.fit(figure, 2 * len(cases))
    colors = dict(zip(THREE_WAYS, style.PALETTE, strict=False))
    longest, lowest = rows["factor"].max(), rows["factor"].min() / 2
    for mode, name in modes.items():
        axes = grid["", name]
        here = rows[rows["mode"] == mode]
        heights = here["batch_size"].map(cases.index) + 0.27 - 0.27 * here["model"].map(THREE_WAYS.index)
        bars = axes.barh(heights, here["factor"], height=0.24, color=here["model"].map(colors))
        runs.mark(bars, here, "factor", "time_s", "mfu_percent")
        for height, row in zip(heights, here.itertuples(), strict=True):
            words = f" {significant(row.factor, 2)}×"
            if row.mfu_percent == row.mfu_percent:
                words += f" · {percent(row.mfu_percent)} %"
            axes.text(row.factor, height, words, va="center", fontsize=10)
        axes.set_yticks(range(len(cases)), [text("batch", count=int(each)) for each in cases])
        axes.set_xscale("log")
        axes.set_xlim(lowest, max(6, longest) * (longest / lowest) ** 0.6)
        ticks.decades(axes.xaxis)
        axes.set_xlabel(text("relative"))
        axes.grid(axis="y", visible=False)
    present = [way for way in THREE_WAYS if (rows["model"] == way).any()]
    style.legend(figure, [*(style.dot(colors[way], text(way), "s") for way in present), *runs.key(rows, text)])
