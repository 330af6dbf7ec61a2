"""Cost of autograd when no gradients are needed: time relative to no_grad, and memory of graphs
that are kept."""

from mfulab.core.groups import LEAKED_STEPS
from mfulab.lab.report import claims
from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, specs, style, ticks
from mfulab.lab.report.frames import DataFrame, Series, Tables, against, highest, one_each, steps

TOPIC = "execution"
ORDER = 10
CLAIM = claims.side_of("relative", 100.0)
CASE = ["machine", "model", "precision", "sequence_length", "batch_size"]
COLORS = {
    "no_grad": style.MUTED,
    "inference_mode": style.PALETTE[0],
    "recorded": style.PALETTE[2],
    "leaked": style.PALETTE[1],
}
LEAST = 0.5  # % of a time, below which there is no difference
MOST_CASES = 8  # each with a line


def rows(tables: Tables) -> DataFrame:
    """Selects eager inference in each way, with its time relative to no_grad in percent
    (`relative`). For leaks, `graph_bytes` is the memory kept by each step."""
    timed = steps(tables, "time_s", mode="inference", execution="eager", autograd=COLORS)
    timed = one_each(timed, [*CASE, "autograd"])
    timed = against(timed, timed[timed["autograd"] == "no_grad"], CASE, "_no_grad")
    ways = timed.groupby(CASE, dropna=False)["autograd"].transform("nunique")
    timed = style.of_machines(timed[ways > 1], 2)
    # Only the cases in which the ways differ most are drawn.
    difference = (timed["factor"] - 1).abs()
    differs = difference.groupby([timed["model"], timed["batch_size"]]).transform("max")
    timed = timed[differs.rank(method="dense", ascending=False) <= MOST_CASES]
    return timed.assign(relative=100 * timed["factor"], graph_bytes=_graph_bytes(timed))


def _graph_bytes(timed: DataFrame) -> Series:
    """Memory that each leaking step keeps; missing for other ways."""
    recorded = timed["memory_bytes"].where(timed["autograd"] == "recorded")
    once = recorded.groupby([timed[key] for key in CASE], dropna=False).transform("first")
    graph_bytes = (timed["memory_bytes"] - once) / LEAKED_STEPS
    return graph_bytes.where(timed["autograd"] == "leaked")


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the case in which recording costs most time, if beyond the spread of processes,
    and on the largest kept graph."""
    more = (rows["relative"] - 100).where(rows["apart"], 0)
    slower = more[rows["autograd"] == "recorded"]
    faster = -more[rows["autograd"] == "inference_mode"]
    sentences = [
        *_largest(rows, slower, ("slower", "no_slower"), text),
        *_largest(rows, faster, ("faster", "no_faster"), text),
    ]
    if (rows["graph_bytes"] > 0).any():
        largest = highest(rows, "graph_bytes")
        sentences.append(text("leaks", row=largest, later=1000 * largest["graph_bytes"]))
    return " ".join(sentences)


def _largest(rows: DataFrame, shares: Series, keys: tuple[str, str], text: Texts) -> list[str]:
    """Sentence on the largest of the shares, or that there is no such difference; empty without
    any. `keys` are those of the two sentences."""
    if shares.empty:
        return []
    share = shares.max()
    key, no_difference = keys
    if share < LEAST:
        key = no_difference
    return [text(key, row=rows.loc[shares.idxmax()], share=share)]


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Draws a row of panels for each machine, with a line for each case: time relative to no_grad,
    and peak memory."""
    cases = []
    for row in rows.itertuples():
        cases.append(
            text(
                "case",
                model=row.model,
                batch=int(row.batch_size),
            )
        )
    shown = rows.assign(case=cases, memory_mib=rows["memory_bytes"] / 2**20)
    by_size = shown.sort_values(["model", "batch_size"], kind="stable")
    order = list(by_size["case"].drop_duplicates())[::-1]
    lines = None
    if shown["machine"].nunique() == 1:
        lines = len(order)
    colors = specs.present(COLORS)(shown["autograd"])
    look = style.hued("autograd", colors)
    titles = [text("times"), text("memory")]
    for (left, right), here in style.in_rows(figure, shown, titles, sharey=True, lines=lines):
        place = kinds.lanes(
            left,
            here,
            "case",
            order,
            "autograd",
            [*colors],
            apart=0.18,
        )
        here = here.assign(place=place)
        kinds.points(left, here, "relative", "place", "relative", "time_s", **look)
        kinds.points(right, here, "memory_mib", "place", "memory_bytes", **look)
        left.axvline(100, color=style.MUTED, linewidth=1)
        lowest = min(90.0, 0.95 * here["relative"].min())
        furthest = max(110.0, 1.05 * here["relative"].max())
        left.set_xlim(lowest, furthest)
        ticks.decades(right.xaxis, 5)
    return style.dots(colors, text, "autograd")
