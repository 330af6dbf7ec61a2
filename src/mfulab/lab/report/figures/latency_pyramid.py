"""The memory hierarchy as a pyramid: cycles and time of a dependent access at each level."""

from mfulab.lab.report import selection
from mfulab.lab.report.drawing import Figure, Texts, kinds, significant, style, ticks
from mfulab.lab.report.figures import memory_hierarchy
from mfulab.lab.report.frames import DataFrame, Series, Tables

TOPIC = "memory"
ORDER = 3
REASONS = selection.TOGETHER
WORDS = ("memory", "page_cache", "disk")  # levels with a translated name
# Patterns in which each access depends on the previous one.
DEPENDENT = ("random", "page_cache", "disk")

ROOM = 0.5  # of the axis, right of the points
# Cycles that the accounting text prints. Registers are not measured, as they have no address.
PRINTED = {
    "registers": "1–5",
    "L1": "3–10",
    "L2": "10–20",
    "L3": "40–75",
    "memory": "200–300",
    "disk": "50,000–100,000",
}


def rows(tables: Tables) -> DataFrame:
    """Selects the fastest working set of each level on one machine, the nearest level first."""
    walked = memory_hierarchy.rows(tables)
    walked = walked[walked["pattern"].isin(DEPENDENT) & (walked["level"] != "")].sort_values(
        "time_per_access_s"
    )
    return walked.drop_duplicates("level").reset_index(drop=True)


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences that compare the nearest level with the farthest, and on the largest step between
    neighbours."""
    first = rows.iloc[0]
    last = rows.iloc[-1]
    if len(rows) == 1:
        return text("one", level=_name(first, text), cost=_cost(first, text), row=first)
    steps = rows["time_per_access_s"] / rows["time_per_access_s"].shift()
    names = {"near": _name(first, text), "far": _name(last, text)}
    costs = {"near_cost": _cost(first, text), "far_cost": _cost(last, text)}
    factor = last["time_per_access_s"] / first["time_per_access_s"]
    sentences = [text("finding", **names, **costs, factor=factor)]
    if len(rows) > 2 and steps.max() > 1:
        index = int(steps.idxmax())
        upper = _name(rows.iloc[index - 1], text)
        lower = _name(rows.iloc[index], text)
        sentences.append(text("step", upper=upper, lower=lower, factor=steps.max()))
    for clock in rows["nominal_mhz"].dropna().head(1):
        sentences.append(text.within("memory_hierarchy")("nominal", clock=f"{clock:,.0f}"))
    return " ".join(sentences)


def _name(row: Series, text: Texts) -> str:
    level = str(row["level"])
    if level in WORDS:
        return text(level)
    return level


def _cost(row: Series, text: Texts) -> str:
    """Cycles and time of an access; only the time if no clock was read."""
    cycles = row["cycles_per_access"]
    key = "cost"
    if cycles != cycles:
        key = "time_alone"
    return text(key, row=row, cycles=significant(cycles))


def _beside(row: Series, text: Texts) -> str:
    """Label of a level: the cost of an access, and below it the value that the text prints."""
    printed = PRINTED.get(str(row["level"]))
    cost = _cost(row, text)
    if printed:
        return f"{cost}\n{text('printed', cycles=printed)}"
    return cost


def draw(rows: DataFrame, figure: Figure, text: Texts) -> None:
    """Draws a point for each level at the time of an access, the nearest level at the top. Beside
    it stand its numbers and the text's. Registers have only the text's."""
    style.fit(figure, len(rows) + 1)
    axes = figure.subplots()
    named = [text("registers"), *(_name(row, text) for _, row in rows.iterrows())]
    levels = rows.assign(named=named[1:], nanoseconds=1e9 * rows["time_per_access_s"])
    place = kinds.lanes(axes, levels, "named", named[::-1], fontsize=11)
    levels = levels.assign(place=place)
    tooltip = ("working_set_bytes", "time_per_access_s", "cycles_per_access")
    look: style.Look = {"color": style.PALETTE[0], "s": 110}
    kinds.points(axes, levels, "nanoseconds", "place", *tooltip, **look)
    paper = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.6}
    anchor: style.Look = {"textcoords": "offset points", "va": "center", "fontsize": 10}
    anchor |= {"bbox": paper}
    for _, row in levels.iterrows():
        axes.annotate(_beside(row, text), (row["nanoseconds"], row["place"]), (11, 0), **anchor)
    fastest, slowest = levels["nanoseconds"].min(), levels["nanoseconds"].max()
    words = text("registers_unmeasured", cycles=PRINTED["registers"])
    axes.annotate(words, (fastest, len(rows)), (11, 0), color=style.MUTED, **anchor)
    # Half as much again of the logarithmic axis has room for the numbers of the slowest level.
    axes.set_xlim(fastest / 2, slowest * max(30.0, (slowest / fastest) ** ROOM))
    ticks.decades(axes.xaxis)
    axes.set(xlabel=text("time"), title=rows["machine"].iloc[0])
