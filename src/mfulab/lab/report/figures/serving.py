"""Dynamic batching: answered requests per second and latency, by load and by how batches are
formed."""

from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, significant, style, ticks
from mfulab.lab.report.frames import DataFrame, Tables, lowest, ok, one_each, with_machine

TOPIC = "batch_size"
ORDER = 6
REASONS = ("contradict", "recorded", "elsewhere")  # rows only make sense together
ALIKE = ["machine", "model"]
WAY = ["largest_batch", "longest_wait_ms"]


def rows(tables: Tables) -> DataFrame:
    """Selects runs of one machine and model. `way` is how batches are formed: their largest size
    and longest wait."""
    served = with_machine(tables, ok(tables["serving"], "answered_per_s", "latency_p95_s"))
    if served.empty:
        return served
    served = selection.one_machine(served)
    served = served[served["model"] == served["model"].mode()[0]]
    served = one_each(served, [*ALIKE, *WAY, "offered_load"])
    # One process measures each way, so its rate is as far off as that of a step.
    served = served.assign(time_s=1 / served["answered_per_s"])
    ways = [f"{size:.0f}, {wait:g}" for size, wait in served[WAY].itertuples(index=False)]
    return served.assign(way=ways).sort_values([*WAY, "offered_load"])


def way(row: object, text: Texts) -> str:
    """Words for how batches are formed."""
    if row.largest_batch == 1:  # type: ignore[attr-defined]
        return text("alone")
    if row.longest_wait_ms == 0:  # type: ignore[attr-defined]
        return text("what_waits", row=row)
    return text("waits", row=row)


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences that compare batches with single requests at the highest load, and on the cost of
    waiting at the lowest. Only measurable differences of rows without doubt have numbers."""
    load = rows["offered_load"]
    is_batched = rows["largest_batch"] > 1
    is_highest = load == load.max()
    alone = rows[is_highest & (rows["largest_batch"] == 1)]
    batched = rows[is_highest & is_batched]
    if alone.empty or batched.empty:
        return ""
    one = alone.iloc[0]
    best = lowest(batched, "latency_p95_s")
    key = "finding_alike"
    if claims.differs(one, best, "answered_per_s"):
        key = "finding"
    elif claims.is_below(one, best, "answered_per_s"):
        key = "finding_more"
    factor = significant(best["answered_per_s"] / one["answered_per_s"])
    sentences = [
        text(
            key,
            one=one,
            best=best,
            factor=factor,
            way=way(best, text),
        )
    ]
    waits = rows[is_batched & (load == load.min())].sort_values("longest_wait_ms")
    if waits["longest_wait_ms"].nunique() > 1:
        first = waits.iloc[0]
        last = waits.iloc[-1]
        if claims.differs(first, last, "latency_p95_s"):
            sentences.append(text("waiting", first=first, last=last))
    return " ".join(sentences)


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Draws answered requests and latency over the load, with a line for each way to form
    batches."""
    names = {}
    for row in rows.drop_duplicates("way").itertuples():
        names[row.way] = way(row, text)
    colors = style.colors(names)
    titles = [text("answered"), text("latency")]
    left, right = style.panels(figure, [""], titles, x=text("load"))[0]
    shown = rows.assign(latency_ms=1e3 * rows["latency_p95_s"])
    look = style.hued("way", colors) | {"marker": "o"}
    kinds.lines(left, shown, "offered_load", "answered_per_s", **look)
    kinds.lines(right, shown, "offered_load", "latency_ms", "offered_load", "latency_p95_s", **look)
    right.set_yscale("log")
    ticks.decades(right.yaxis)
    for axes in (left, right):
        axes.set_xticks(sorted(rows["offered_load"].unique()))
    left.set_ylim(bottom=0)
    return [style.dot(colors[name], words) for name, words in names.items()]
