"""One matmul in every implementation: throughput against its size."""

from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, labels, matmuls, style, ticks
from mfulab.lab.report.frames import DataFrame, Tables, most, ok, preferred, with_machine

TOPIC, ORDER = "kernels", 0


def rows(tables: Tables) -> DataFrame:
    """Square matmuls of the precision that most implementations share."""
    square = matmuls.square(with_machine(tables, ok(tables["matmul"], "tflop_s", "n")))
    square = most(square, ["precision"], "kernel").sort_values("n")
    # A recorded machine of one or two sizes has no curve: `kernel_ladder` has its implementations.
    return preferred(square, ~square["recorded"] | (square.groupby("machine")["n"].transform("nunique") > 2))


def finding(rows: DataFrame, text: Texts) -> str:
    """The fastest and the slowest implementation of the largest size that several have."""
    here = rows[rows["machine"] == rows["machine"].iloc[0]]
    shared = here.groupby("n")["kernel"].nunique()
    here = here[here["n"] == shared[shared == shared.max()].index.max()]
    best, worst = here.loc[here["tflop_s"].idxmax()], here.loc[here["tflop_s"].idxmin()]
    values = {"factor": best["tflop_s"] / worst["tflop_s"], "error": here["relative_error"].max()}
    return text("finding_one" if values["factor"] == 1 else "finding", best=best, worst=worst, **values)


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """FLOP/s with the measured ceiling above, a panel a machine; a family has one colour, a line its kernel's name."""
    colors = style.usual_colors(rows["family"], style.FAMILIES)
    for axes, here in style.by_machine(figure, rows, sharex=True, x=text("size")):
        kinds.lines(axes, here, "n", "tflop_s", by=["kernel"], hue="family", palette=colors, s=25)
        ticks.doublings(axes, rows["n"])
        axes.set(yscale="log", ymargin=0.1)
        for ceiling in here["ceiling_tflop_s"].dropna().nlargest(1):
            axes.axhline(ceiling, **style.LIMIT)
            axes.text(0.01, ceiling, text("ceiling"), transform=axes.get_yaxis_transform(), va="bottom", fontsize=9)
        ticks.speeds(axes)
        last = here.groupby("kernel").last().reset_index()
        labels.later(labels.at_line_ends, axes, last["n"], last["tflop_s"], last["kernel"], last["family"].map(colors))
    return style.dots(colors, text, "family", "s")
