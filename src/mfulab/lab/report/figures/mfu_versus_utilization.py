"""MFU beside device utilization: a line a run from the one to the other, whose colour is what takes the gap."""

import numpy as np
import pandas as pd

from mfulab.core.language import verdicts
from mfulab.lab.report import frames, remedies, trust
from mfulab.lab.report.drawing import Figure, Texts, curves, kinds, percent, runs, style
from mfulab.lab.report.figures.headroom import COLORS
from mfulab.lab.report.frames import READ, DataFrame, Series, Tables, ok, own, preferred, with_machine, with_traces
from mfulab.lab.tables.consistency import above_peak

TOPIC, ORDER = "headline", 0
TALLEST = 4.6  # inches: sentence, figure and cause are one screen
BUSY = 90  # percent of the time
USELESS = 1  # percent of MFU: a busy run below it does next to nothing that a model needs
LEAST = 0.05  # percent
MOST = 18  # lines of all panels; `mfu_by_utilization` draws all runs of a larger sweep


def rows(tables: Tables) -> DataFrame:
    """Runs of this machine with both measures; where there is none, of recorded ones, of GPUs alone if any is one."""
    here = own(of_all_machines(tables))
    return preferred(here, ~here["recorded"] | (here["device"] != "cpu"))


def of_all_machines(tables: Tables) -> DataFrame:
    """Runs with both measures; steps that were read from recorded traces only where nothing was measured."""
    measured = with_machine(tables, ok(with_traces(tables), "mfu_percent", "utilization_percent"))
    return preferred(measured, ~(measured["recorded"] & measured["hardware"].str.endswith(READ)))


def finding(rows: DataFrame, text: Texts) -> str:
    """MFU of the busy runs; of those that `_sound` keeps."""
    above, trusted = int(above_peak(rows).sum()), _trusted(rows, text)
    rows = _sound(rows)
    here = _told(rows)
    worst, best = here.loc[here["mfu_percent"].idxmin()], here.loc[here["mfu_percent"].idxmax()]
    low, high = (f"< {LEAST:g}" if mfu < LEAST else percent(mfu) for mfu in (worst["mfu_percent"], best["mfu_percent"]))
    low_run, high_run = _named(here.loc[[worst.name, best.name]], text)
    values = {"low": low, "low_run": low_run, "high": high, "high_run": high_run, "trusted": trusted}
    if here["utilization_percent"].max() < BUSY:
        busiest = rows["utilization_percent"].max()
        return text("finding_none", busiest=busiest, what=_what(rows, 1, text), **values)
    if worst["mfu_percent"] < USELESS <= best["mfu_percent"]:
        least = here.loc[_useful(here)["mfu_percent"].idxmin()]
        key = "useless" if least["model"] in (worst["model"], best["model"]) else "useless_and_low"
        values |= {"low_busy": worst["utilization_percent"], "high_busy": best["utilization_percent"], "least": least}
    else:
        key = "finding_one" if len(here) == 1 else "finding_same" if low == high else "finding"
    words = [text("doubtful", count=above, what=_what(rows, above, text))] if above else []
    return " ".join([text(key, count=len(here), total=len(rows), what=_what(rows, len(rows), text), **values), *words])


def _what(rows: DataFrame, total: int, text: Texts) -> str:
    return text("steps" if rows["hardware"].str.endswith(READ).all() else "runs", total=total)


def _named(ends: DataFrame, text: Texts) -> list[str]:
    """Names two runs by their models; if these are equal, with what sets the runs apart in parentheses."""
    names = curves.apart(ends, text) if ends["model"].nunique() == 1 else ends["model"]
    return [name.replace(", ", " (", 1) + ")" * (", " in name) for name in names]


def _trusted(rows: DataFrame, text: Texts) -> str:
    return text("trusted") if 0 < trust.doubtful(rows).sum() < len(rows) else ""


def lowest(rows: DataFrame) -> Series:
    """The run of lowest MFU that the sentence is about, of several useful ones: there is something to try for it."""
    return _lowest(_told(_sound(rows)))


def _lowest(told: DataFrame) -> Series:
    return told.loc[(useful if len(useful := _useful(told)) > 1 else told)["mfu_percent"].idxmin()]


def _useful(told: DataFrame) -> DataFrame:
    """The runs that a remedy can be about: a loop that spins, or one with next to no matmuls, is slow by design."""
    return preferred(told, (told["mfu_percent"] >= USELESS) & ~(told["matmul_percent"] < frames.MATMULS))


def _told(sound: DataFrame) -> DataFrame:
    return preferred(sound, sound["utilization_percent"] >= BUSY)


def _sound(rows: DataFrame) -> DataFrame:
    """The runs of a sentence: with arithmetic to count, in no emulated format, not doubtful; where any are left."""
    rows = preferred(rows, rows["mfu_percent"] > 0)
    rows = preferred(rows, ~frames.emulated(rows))
    return preferred(rows, ~trust.doubtful(rows))


def because(row: Series, rows: DataFrame, text: Texts) -> str:
    """Sentence on why the lowest of the rows is that low, after what disturbed it; empty where nothing explains it."""
    clauses = text.within("because")
    if not clauses.has(row["verdict"]):
        return ""
    clause, cost = clauses(row["verdict"]), remedies.cost(row.to_dict(), row["verdict"])
    reason = clauses("points", clause=clause, points=percent(cost.points)) if cost else clause
    run = text("run" if row["batch_size"] == row["batch_size"] else "run_of_trace", row=row)
    key, total = ("because_useful", 2) if row["mfu_percent"] >= USELESS else ("because", 1)
    busy = text("busy") if row["utilization_percent"] >= BUSY else ""
    says = text(key, run=run, because=reason, trusted=_trusted(rows, text), busy=busy, what=_what(rows, total, text))
    disturbance = verdicts.disturbance(row, text.language)
    return f"{text.within('measured')('disturbed', what=disturbance)} {says}" if disturbance else says


def shown(rows: DataFrame, text: Texts) -> DataFrame:
    """At most MOST runs by falling MFU, spread evenly, those of the sentences too, with `name`, `cause` and `color`."""
    machines, told = style.machines(rows), _told(_sound(rows))
    named = {told["mfu_percent"].idxmin(), told["mfu_percent"].idxmax(), _lowest(told).name}
    most, of_machines = MOST // len(machines), []
    few = rows[["machine", "model", "mode", "mfu_percent", "samples_per_s"]].assign(doubtful=trust.doubtful(rows))
    for machine in machines:
        here = few[few["machine"] == machine].sort_values("mfu_percent", ascending=False)
        if len(here) > most:
            here = preferred(here, (here["mfu_percent"] > 0) & ~trust.doubtful(here))
            fastest = here.sort_values("samples_per_s", ascending=False).drop_duplicates(["model", "mode"])
            named_here = here.index[here.index.isin(named)]
            others = here.index[here.index.isin(fastest.index.difference(named_here))]
            places = np.linspace(0, len(others) - 1, min(len(others), most - len(named_here))).round().astype(int)
            here = here[here.index.isin([*named_here, *others[places]])]
        here = rows.loc[here.index]
        of_machines.append(here.assign(name=curves.apart(here, text)))
    rows = pd.concat(of_machines)
    budgets = [remedies.budget(row) for row in rows.to_dict("records")]
    lost = [{part: cost.ms for part, cost in budget.items() if part != "useful"} for budget in budgets]
    causes = [max(parts, key=parts.__getitem__, default="") for parts in lost]  # none where no trace tells it
    return rows.assign(cause=causes, color=[COLORS.get(cause, style.MUTED) for cause in causes])


def share(mfu: float, text: Texts) -> str:
    """MFU in words; what is too small to be seen is no longer told apart."""
    return text("least") if 0 < mfu < LEAST else text("share_of", share=mfu)


def draw(rows: DataFrame, figure: Figure, text: Texts) -> None:
    """A panel a machine, one below the other, a line a run."""
    rows = shown(rows, text)
    machines = dict([*rows.groupby("machine", sort=False)])
    heights = [len(here) + 1 for here in machines.values()]
    grid = style.panels(figure, [*machines], [""], x=text("share"), sharex=True, height_ratios=heights)
    style.resize(figure, min(TALLEST, 1.5 + 0.45 * len(machines) + 0.36 * len(rows)))
    for here, axes in zip(machines.values(), grid.flat, strict=True):
        here = here.assign(place=np.arange(len(here)))
        ends, busy = here[["mfu_percent", "utilization_percent"]], here["utilization_percent"]
        axes.hlines(here["place"], ends.min(axis=1), ends.max(axis=1), colors=here["color"], linewidth=3, zorder=2)
        look: style.Look = {"hue": "color", "palette": {color: color for color in here["color"]}}
        kinds.points(axes, here, "mfu_percent", "place", "mfu_percent", "utilization_percent", s=70, **look)
        axes.scatter(busy, here["place"], marker="|", s=150, linewidth=2.5, color=here["color"], zorder=3)
        for place, percent_busy in zip(here["place"], busy, strict=True):
            label = text("share_of", share=percent_busy)
            axes.annotate(label, (percent_busy, place), (7, 0), textcoords="offset points", va="center", fontsize=9)
        names = here["name"] + "   " + [share(mfu, text) for mfu in here["mfu_percent"]]
        axes.set_yticks(here["place"], names, fontsize=10 if len(rows) < MOST - 6 else 9)
        axes.tick_params(axis="y", length=0)
        axes.set(ylim=(len(here) - 0.4, -0.6), xlim=(-1.5, max(107.0, 1.05 * ends.max(axis=None))))
        axes.grid(axis="y", visible=False)
    entries = [style.dot(style.MUTED, text("mfu")), style.dot(style.MUTED, text("utilization"), "|")]
    entries += [style.line(COLORS[part], text.within("trace")(part)) for part in COLORS if part in set(rows["cause"])]
    entries += [style.line(style.MUTED, text("untold"))] if "" in set(rows["cause"]) else []
    style.legend(figure, entries + runs.key(figure, text), 4 if len(entries) > 4 else 0)
