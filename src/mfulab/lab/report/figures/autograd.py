"""Cost of autograd when no gradients are needed: time relative to no_grad, and memory of graphs
that are kept."""

from typing import Any

from mfulab.core.groups import LEAKED_STEPS
from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, significant, specs, style
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
BASE = "no_grad"
LEAST = 0.5  # % of a time, below which there is no difference
MOST_CASES = 4  # each with a bar for each way
ROOM = 1.45  # length of an x axis ÷ longest bar


def rows(tables: Tables) -> DataFrame:
    """Selects eager inference in each way on one machine, each model at the batch at which the ways
    differ most. `relative` is time in percent of no_grad's; for leaks, `graph_bytes` is the memory
    kept by each step."""
    timed = steps(tables, "time_s", mode="inference", execution="eager", autograd=COLORS)
    timed = one_each(timed, [*CASE, "autograd"])
    timed = against(timed, timed[timed["autograd"] == BASE], CASE, "_no_grad")
    ways = timed.groupby(CASE, dropna=False)["autograd"].transform("nunique")
    timed = selection.pick(selection.one_machine(timed[ways > 1]), "synthetic")
    timed = timed.assign(
        relative=100 * timed["factor"],
        graph_bytes=_graph_bytes(timed),
        difference=(timed["factor"] - 1).abs().where(timed["apart"], 0),
    )
    by_difference = timed.sort_values("difference", kind="stable")
    cases = by_difference.drop_duplicates("model", keep="last")[CASE]
    return timed.merge(cases.tail(MOST_CASES), on=CASE)


def _graph_bytes(timed: DataFrame) -> Series:
    """Memory that each leaking step keeps; missing for other ways."""
    recorded = timed["memory_bytes"].where(timed["autograd"] == "recorded")
    cases = [timed[key] for key in CASE]
    once = recorded.groupby(cases, dropna=False).transform("first")
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
    """Draws bars for each case and way: time relative to no_grad, and peak memory."""
    cases = [text("case", model=row.model, batch=int(row.batch_size)) for row in rows.itertuples()]
    rows = rows.assign(case=cases, memory_mb=rows["memory_bytes"] / 1e6, measured=True)
    colors = specs.present(COLORS)(rows["autograd"])
    order = list(rows["case"].drop_duplicates())
    titles = [text("times"), text("memory")]
    times, memory = style.panels(figure, [""], titles, sharey=True, lines=2 * len(order))[0]
    ways = rows[rows["autograd"] != BASE]
    ways = ways.assign(words=[_change(row, text) for row in ways.itertuples()])
    peaks = rows.dropna(subset=["memory_mb"])
    peaks = peaks.assign(words=[significant(peak) for peak in peaks["memory_mb"]])
    for axes, here, value, pale, line in (
        (times, ways, "relative", "apart", 100),
        (memory, peaks, "memory_mb", "measured", 0),
    ):
        shown = {way: color for way, color in colors.items() if (here["autograd"] == way).any()}
        look = style.hued("autograd", shown) | {"order": order, "words": "words", "pale": pale}
        kinds.bars(axes, here, value, "case", value, "time_s", beyond=line, **look)
        axes.set_xlim(0, ROOM * max(here[value].max(), 1))
    times.axvline(100, **style.LIMIT)
    return style.dots(colors, text, "autograd", "s") + style.within(~ways["apart"], text)


def _change(row: Any, text: Texts) -> str:
    """Words on how much longer a way takes than no_grad."""
    if not row.apart:
        return text("grey_short")
    return f"{row.relative - 100:+.0f} %".replace("-", "\N{MINUS SIGN}")
