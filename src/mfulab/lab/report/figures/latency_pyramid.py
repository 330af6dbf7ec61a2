"""The memory hierarchy as a pyramid: cycles and time of a dependent access at each level."""

import numpy as np

from mfulab.lab.report.drawing import Figure, Texts, kinds, significant, style
from mfulab.lab.report.figures import memory_hierarchy
from mfulab.lab.report.frames import DataFrame, Series, Tables

TOPIC, ORDER = "memory", 3
WORDS = ("memory", "page_cache", "disk")  # levels with a word of their own
DEPENDENT = ("random", "page_cache", "disk")  # patterns in which each access waits for the last one


def rows(tables: Tables) -> DataFrame:
    """The fastest working set of each level on one machine, the nearest level first."""
    walked = memory_hierarchy.rows(tables)
    walked = walked[walked["pattern"].isin(DEPENDENT) & (walked["level"] != "")].sort_values("time_per_access_s")
    return walked.drop_duplicates("level").reset_index(drop=True)


def finding(rows: DataFrame, text: Texts) -> str:
    """The nearest level against the farthest, and the largest step between two neighbours."""
    first, last = rows.iloc[0], rows.iloc[-1]
    if len(rows) == 1:
        return text("one", level=_name(first, text), cost=_cost(first, text), row=first)
    steps = rows["time_per_access_s"] / rows["time_per_access_s"].shift()
    names = {"near": _name(first, text), "far": _name(last, text)}
    costs = {"near_cost": _cost(first, text), "far_cost": _cost(last, text)}
    words = [text("finding", **names, **costs, factor=last["time_per_access_s"] / first["time_per_access_s"])]
    if len(rows) > 2 and steps.max() > 1:
        place = int(steps.idxmax())
        upper, lower = (_name(rows.iloc[at], text) for at in (place - 1, place))
        words.append(text("step", upper=upper, lower=lower, factor=steps.max()))
    hierarchy, clocks = text.within("memory_hierarchy"), rows["nominal_mhz"].dropna().head(1)
    return " ".join([*words, *(hierarchy("nominal", clock=f"{clock:,.0f}") for clock in clocks)])


def _name(row: Series, text: Texts) -> str:
    level = str(row["level"])
    return text(level) if level in WORDS else level


def _cost(row: Series, text: Texts) -> str:
    """Cycles and time of an access, the time alone where no clock was read."""
    cycles = row["cycles_per_access"]
    return text("time_alone" if cycles != cycles else "cost", row=row, cycles=significant(cycles))


def draw(rows: DataFrame, figure: Figure, text: Texts) -> None:
    """A bar a level about one middle, as long as the logarithm of its time, its numbers behind it."""
    style.fit(figure, len(rows))
    axes, fastest = figure.subplots(), rows["time_per_access_s"].min()
    width = 1 + np.log10(rows["time_per_access_s"] / fastest)
    words = [_cost(row, text) for _, row in rows.iterrows()]
    shown = rows.assign(width=width, start=-width / 2, named=[_name(row, text) for _, row in rows.iterrows()])
    told = ("working_set_bytes", "time_per_access_s", "cycles_per_access")
    kinds.bars(axes, shown.assign(words=words), "width", "named", *told, start="start", words="words", fontsize=11)
    reach = width.max() / 2
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set(xlim=(-1.1 * reach, 1.9 * reach), xticks=[], xlabel=text("time"), title=rows["machine"].iloc[0])
