"""One convolution three ways: by the library, as a matmul of unfolded images, by direct loops."""

from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, percent, significant, style, ticks
from mfulab.lab.report.frames import DataFrame, Tables, against, one_each, steps

TOPIC, ORDER = "flops", 6
THREE_WAYS = ("convolution_library", "convolution_im2col", "convolution_direct")
LIBRARY = THREE_WAYS[0]
CASE = ["mode", "batch_size", "precision"]


def rows(tables: Tables) -> DataFrame:
    """Eager steps of the three ways on one machine, the first, each beside the library's of the same case."""
    timed = steps(tables, "time_s", "flops", model=THREE_WAYS, execution="eager")
    timed = one_each(style.one_machine(timed), [*CASE, "model"])
    beside = against(timed, timed[timed["model"] == LIBRARY], CASE, "_library")
    return beside[beside.groupby(CASE)["model"].transform("nunique") > 1].sort_values(CASE)


def finding(rows: DataFrame, text: Texts) -> str:
    """The largest case: the same FLOPs, each way's time against the library's; and the largest error of all."""
    most = rows.loc[rows["flops"].idxmax()]
    here = rows[(rows[CASE] == most[CASE]).all(axis=1) & (rows["model"] != LIBRARY)].sort_values("factor")
    ways = [text("way", name=text(row.model), factor=significant(row.factor, 2)) for row in here.itertuples()]
    words = [text("error", error=significant(error, 2)) for error in rows["relative_error"].nlargest(1)]
    return " ".join([text("finding", most=most, ways=", ".join(ways)), *words])


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """A panel a mode, a group of bars a batch size: time relative to the library's, logarithmic; MFU behind it."""
    cases = {batch: text("batch", count=int(batch)) for batch in sorted(rows["batch_size"].unique(), reverse=True)}
    modes = style.modes(rows, text)
    colors = dict(zip([way for way in THREE_WAYS if (rows["model"] == way).any()], style.PALETTE, strict=False))
    longest, lowest = rows["factor"].max(), rows["factor"].min() / 2
    look: style.Look = {"hue": "model", "palette": colors, "order": list(cases.values()), "words": "words"}
    for axes, here in style.facets(figure, rows, text, "mode", modes, x=text("relative"), lines=2 * len(cases)):
        shares = here["mfu_percent"].map(lambda mfu: f" · {percent(mfu)} %" if mfu == mfu else "")
        words = here["factor"].map(lambda factor: f"{significant(factor, 2)}×") + shares
        here = here.assign(case=here["batch_size"].map(cases), words=words)
        kinds.bars(axes, here, "factor", "case", "factor", "time_s", "mfu_percent", fontsize=10, **look)
        axes.set_xlim(lowest, max(6, longest) * (longest / lowest) ** 0.6)
        ticks.decades(axes.xaxis)
    return style.dots(colors, text, marker="s")
