"""Cost of autograd when no gradients are needed: time relative to no_grad, and memory of graphs
that are kept."""

from mfulab.core.groups import LEAKED_STEPS
from mfulab.lab.report import claims
from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, specs, style, ticks
from mfulab.lab.report.frames import DataFrame, Tables, against, one_each, steps

TOPIC = "execution"
ORDER = 10
CLAIM = claims.side_of("relative", 100.0)
CASE = ["machine", "model", "precision", "sequence_length", "batch_size"]
WAYS = ("no_grad", "inference_mode", "recorded", "leaked")
COLORS = dict(
    zip(WAYS, (style.MUTED, style.PALETTE[0], style.PALETTE[2], style.PALETTE[1]), strict=True)
)
LEAST = 0.5  # % of a time, below which there is no difference
MOST = 8  # cases, each with a line


def rows(tables: Tables) -> DataFrame:
    """Selects eager inference in each way, with its time relative to no_grad in percent
    (`relative`). For leaks, `graph_bytes` is the memory kept by each step."""
    timed = steps(tables, "time_s", mode="inference", execution="eager", autograd=WAYS)
    timed = one_each(timed, [*CASE, "autograd"])
    timed = against(timed, timed[timed["autograd"] == "no_grad"], CASE, "_no_grad")
    timed = timed[timed.groupby(CASE, dropna=False)["autograd"].transform("nunique") > 1]
    timed = timed[timed["machine"].isin(style.machines(timed, 2))]
    # Only the cases in which the ways differ most are drawn.
    differs = (
        (timed["factor"] - 1).abs().groupby([timed["model"], timed["batch_size"]]).transform("max")
    )
    timed = timed[differs.rank(method="dense", ascending=False) <= MOST]
    once = timed.assign(once=timed["memory_bytes"].where(timed["autograd"] == "recorded"))
    graph_bytes = (
        timed["memory_bytes"] - once.groupby(CASE, dropna=False)["once"].transform("first")
    ) / LEAKED_STEPS
    return timed.assign(
        relative=100 * timed["factor"], graph_bytes=graph_bytes.where(timed["autograd"] == "leaked")
    )


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the case in which recording costs most time, if beyond the spread of processes,
    and on the largest kept graph."""
    sentences = []
    off = (rows["relative"] - 100).where(rows["apart"], 0)
    for way, key, none, sign in (
        ("recorded", "slower", "no_slower", 1),
        ("inference_mode", "faster", "no_faster", -1),
    ):
        gaps = sign * off[rows["autograd"] == way]
        if len(gaps):
            largest = gaps.max()
            named = key if largest >= LEAST else none
            sentences.append(text(named, row=rows.loc[gaps.idxmax()], share=largest))
    if (rows["graph_bytes"] > 0).any():
        largest = rows.loc[rows["graph_bytes"].idxmax()]
        sentences.append(text("leaks", row=largest, later=1000 * largest["graph_bytes"]))
    return " ".join(sentences)


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Draws a row of panels for each machine, with a line for each case: time relative to no_grad,
    and peak memory."""
    shown = rows.assign(memory_mib=rows["memory_bytes"] / 2**20)
    shown["case"] = [
        text("case", model=row.model, batch=int(row.batch_size)) for row in shown.itertuples()
    ]
    cases = list(
        shown.sort_values(["model", "batch_size"], kind="stable")["case"].drop_duplicates()
    )[::-1]
    lines = None
    if shown["machine"].nunique() == 1:
        lines = len(cases)
    colors = specs.present(COLORS)(shown["autograd"])
    look: style.Look = {"hue": "autograd", "palette": colors}
    for (left, right), here in style.in_rows(
        figure, shown, [text("times"), text("memory")], sharey=True, lines=lines
    ):
        here = here.assign(
            place=kinds.lanes(left, here, "case", cases, hue="autograd", hues=[*colors], apart=0.18)
        )
        kinds.points(left, here, "relative", "place", "relative", "time_s", **look)
        kinds.points(right, here, "memory_mib", "place", "memory_bytes", **look)
        left.axvline(100, color=style.MUTED, linewidth=1)
        left.set_xlim(
            min(90.0, 0.95 * here["relative"].min()), max(110.0, 1.05 * here["relative"].max())
        )
        ticks.decades(right.xaxis, 5)
    return style.dots(colors, text, "autograd")
