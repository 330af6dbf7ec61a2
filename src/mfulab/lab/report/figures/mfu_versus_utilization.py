"""MFU and device utilization: a line for each run from one to the other, coloured by the largest
cause of the gap."""

from collections.abc import Collection, Hashable

import numpy as np
import pandas as pd

from mfulab.core.language import verdicts
from mfulab.core.parts import Row
from mfulab.lab.report import claims, selection, trust
from mfulab.lab.report.drawing import Figure, Texts, curves, kinds, runs, style
from mfulab.lab.report.frames import (
    DataFrame,
    Series,
    Tables,
    emulated,
    ok,
    preferred,
    with_machine,
    with_traces,
)
from mfulab.lab.tables.consistency import above_peak
from mfulab.mfu import account, three_lines
from mfulab.mfu.headroom import PARTS

TOPIC = "headline"
ORDER = 0
CLAIM = claims.below("mfu_percent", "utilization_percent")
REASONS = ("contradict", "recorded")  # of `selection`; the sentence selects further
TALLEST = 4.6  # inches, so that sentence, figure and cause fit one screen
COLORS = dict(zip(PARTS, (
    "#8c8c8c", "#c9ced6", "#cc78bc", "#56b4e9", "#949494", "#d55e00", "#de8f05", "#ece133", "#ca9161", "#fbafe4",
    "#b4d3b2", "#7fa87c", "#a5c8e1", "#0173b2", "#029e73"), strict=True))  # fmt: skip
MOST = 18  # lines in all panels


def rows(tables: Tables) -> DataFrame:
    """Selects runs of this machine with both measures. If there are none, recorded runs, preferably
    of GPUs."""
    measured = of_all_machines(tables)
    picked = selection.pick(measured, "recorded", "recorded_cpu")
    return picked.assign(elsewhere=len(measured) - len(picked))


def of_all_machines(tables: Tables) -> DataFrame:
    """Selects runs with both measures on all machines. Steps from recorded traces are included only
    if there is nothing else."""
    measured = with_machine(tables, ok(with_traces(tables), "mfu_percent", "utilization_percent"))
    return selection.pick(measured, "recorded_trace")


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on MFU and utilization of the first screen's run, and on the best run of that
    machine."""
    above = int(above_peak(rows).sum())
    worst = selection.first_run(rows)
    ahead = selection.best_runs(rows, worst)
    best = ahead.iloc[0]
    device = _device(worst, rows)
    if best.name == worst.name:
        says = three_lines.finding(worst, worst["model"], device, text.language)
    else:
        names = _named(rows.loc[[worst.name, best.name]], text)
        low, high = (three_lines.used_share(run.to_dict(), text.language) for run in (worst, best))
        key = "finding"
        if low == high:
            key = "finding_same"
        says = text(
            key,
            low_run=names[0],
            high_run=names[1],
            low=low,
            high=high,
            device=device,
            busy=worst["utilization_percent"],
            what=_what_is_best(rows, ahead, text),
        )
    if not above:
        return says
    return f"{says} {text('doubtful', count=above, what=_count(rows, above, text))}"


def _what_is_best(rows: DataFrame, ahead: DataFrame, text: Texts) -> str:
    """Words for the best run, the first of those `ahead`: whether the best of all reliable runs or
    only of real models, and whether others could be as good."""
    reliable = selection.select(rows, ("uncounted", "emulated", "doubtful", "unsure")).told
    here = reliable.loc[reliable["machine"] == ahead["machine"].iloc[0], "mfu_percent"]
    is_highest = ahead["mfu_percent"].iloc[0] >= here.max()
    is_alone = len(ahead) == 1
    keys = ("among_best", "best") if is_highest else ("among_best_model", "best_model")
    are_trusted = trust.unsure(rows).any() and not trust.unsure(ahead).any()
    return text(
        keys[is_alone],
        trusted=text("trusted") if are_trusted else "",
        what=_count(rows, 1 if is_alone else 2, text),
    )


def _device(row: Series, rows: DataFrame) -> str:
    """Words for the device: the machine's name if several are drawn or it is recorded, else what
    was measured of it."""
    if rows["machine"].nunique() > 1 or row["recorded"]:
        return str(row["machine"])
    return three_lines.device_of(row.to_dict())


def _count(rows: DataFrame, total: int, text: Texts) -> str:
    """Words for a number of runs, or of steps if all are read from traces."""
    key = "runs"
    if rows["is_read"].all():
        key = "steps"
    return text(key, total=total)


def _named(ends: DataFrame, text: Texts) -> list[str]:
    """Names two runs by their models; if these are equal, what differs is added in parentheses."""
    names = curves.apart(ends, text) if ends["model"].nunique() == 1 else ends["model"]
    return [_in_brackets(name) for name in names]


def _in_brackets(name: str) -> str:
    """A name with everything behind its first comma in brackets."""
    model, comma, rest = name.partition(", ")
    if not comma:
        return name
    return f"{model} ({rest})"


def because(row: Series, text: Texts) -> str:
    """Sentence on why a run's MFU is low, after what disturbed it; empty if there is no
    explanation."""
    reason = verdicts.columns(row.to_dict(), language=text.language)["verdict_reason"]
    if not reason:
        return ""
    key = "run_of_trace"
    if row["batch_size"] == row["batch_size"]:
        key = "run"
    run = text(key, row=row)
    return text("because", run=run, reason=reason)


def selected(rows: DataFrame, text: Texts) -> str:
    """Sentence on the rule by which runs are drawn, and on how many are left out for each
    reason."""
    drawn = shown(rows, text)
    left = rows.drop(drawn.index)
    elsewhere = int(rows["elsewhere"].iloc[0]) if "elsewhere" in rows else 0
    if left.empty:
        key = "selected_here" if elsewhere else "selected_all"
        return text(key, count=len(drawn), elsewhere=elsewhere)
    doubted = trust.doubtful(left) | ~(left["mfu_percent"] > 0)
    longer = ~doubted & _is_of_longer_format(rows)[left.index]
    fastest = rows.groupby(["machine", "model", "mode"])["samples_per_s"].transform("max")
    slower = ~doubted & ~longer & (left["samples_per_s"] < fastest[left.index])
    counts = {
        "left_format": int(longer.sum()),
        "left_slower": int(slower.sum()),
        "left_many": int((~doubted & ~longer & ~slower).sum()),
        "left_doubted": int(doubted.sum()),
        "left_elsewhere": elsewhere,
    }
    reasons = [text(key, count=count, most=MOST) for key, count in counts.items() if count]
    total = len(rows) + elsewhere
    return text("selected", count=len(drawn), total=total, reasons=", ".join(reasons))


def shown(rows: DataFrame, text: Texts) -> DataFrame:
    """Selects at most MOST runs, evenly spread by MFU, including those of the sentences. Adds
    `name`, `cause` and `color`."""
    machines = style.machines(rows)
    worst = selection.first_run(rows)
    named = {worst.name, selection.best_runs(rows, worst).index[0]}
    most = MOST // len(machines)
    of_machines = []
    few = rows[["machine", "model", "mode", "mfu_percent", "samples_per_s"]].assign(
        doubtful=trust.doubtful(rows),
        longer=_is_of_longer_format(rows),
    )
    for machine in machines:
        here = few[few["machine"] == machine].sort_values("mfu_percent", ascending=False)
        if len(here) > most:
            here = _spread(here, rows, named, most)
        chosen = rows.loc[here.index]
        of_machines.append(chosen.assign(name=curves.apart(chosen, text)))
    rows = pd.concat(of_machines)
    budgets = [account.read(row).losses for row in rows.to_dict("records")]
    causes = []
    for budget in budgets:
        lost_ms = {part: cost.ms for part, cost in budget.items() if part != "useful"}
        # Empty if no trace shows the losses.
        causes.append(max(lost_ms, key=lost_ms.__getitem__, default=""))
    return rows.assign(cause=causes, color=[COLORS.get(cause, style.MUTED) for cause in causes])


def _is_of_longer_format(rows: DataFrame) -> Series:
    """True for runs of a model that the machine also ran, and does not emulate, in fewer bits than
    fp32. As MFU is of each format's own peak, these belong to the figure of formats."""
    is_longer = rows["precision"].isin(("fp32", "fp64"))
    is_shorter = ~is_longer & ~emulated(rows)
    return is_longer & is_shorter.groupby([rows["machine"], rows["model"]]).transform("any")


def _spread(here: DataFrame, rows: DataFrame, named: Collection[Hashable], most: int) -> DataFrame:
    """At most `most` rows of a machine, sorted by MFU: the `named` ones, and of others the run that
    stands for each model and mode, evenly spread. `rows` have all columns."""
    here = preferred(here, (here["mfu_percent"] > 0) & ~trust.doubtful(here))
    told = selection.one_of_each(rows.loc[here.index], [*named])
    told = preferred(told, ~here.loc[told.index, "longer"])
    named_here = here.index[here.index.isin(named)]
    others = here.index[here.index.isin(told.index.difference(named_here))]
    count = min(len(others), most - len(named_here))
    positions = np.linspace(0, len(others) - 1, count).round().astype(int)
    return here[here.index.isin([*named_here, *others[positions]])]


def name_of(cause: str, is_cpu: bool, text: Texts) -> str:
    """Words for the largest loss of a run, which its colour shows; `is_cpu` if only runs of CPUs
    share the colour."""
    if cause in COLORS:
        return verdicts.part_of_step(cause, is_cpu, text)
    return text("untold")


def is_of_cpu(run: Row) -> bool:
    """True if a run was on a CPU, which launches no kernels."""
    return three_lines.device_of(run) == "CPU"


def are_of_cpus(rows: DataFrame) -> bool:
    """True if all runs were on CPUs."""
    return all(map(is_of_cpu, rows.to_dict("records")))


def share(percent: float, text: Texts) -> str:
    """A percentage as text; values too small to see are all the same."""
    if 0 < percent < three_lines.LEAST:
        return text("too_small")
    return text("share_of", share=percent)


def draw(rows: DataFrame, figure: Figure, text: Texts) -> None:
    """Draws a panel for each machine, below each other, with a line for each run."""
    rows = shown(rows, text)
    machines = dict([*rows.groupby("machine", sort=False)])
    heights = [len(here) + 1 for here in machines.values()]
    grid = style.panels(
        figure, [*machines], [""], x=text("share"), sharex=True, height_ratios=heights
    )
    style.resize(figure, min(TALLEST, 1.5 + 0.45 * len(machines) + 0.36 * len(rows)))
    for here, axes in zip(machines.values(), grid.flat, strict=True):
        here = here.assign(place=np.arange(len(here)))
        ends = here[["mfu_percent", "utilization_percent"]]
        busy = here["utilization_percent"]
        axes.hlines(
            here["place"],
            ends.min(axis=1),
            ends.max(axis=1),
            colors=here["color"],
            linewidth=3,
            zorder=2,
        )
        look: style.Look = {"hue": "color", "palette": {color: color for color in here["color"]}}
        kinds.points(
            axes, here, "mfu_percent", "place", "mfu_percent", "utilization_percent", s=70, **look
        )
        axes.scatter(
            busy, here["place"], marker="|", s=150, linewidth=2.5, color=here["color"], zorder=3
        )
        for height, percent_busy in zip(here["place"], busy, strict=True):
            label = text("share_of", share=percent_busy)
            axes.annotate(
                label,
                (percent_busy, height),
                (7, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
            )
        names = here["name"] + "   " + [share(mfu, text) for mfu in here["mfu_percent"]]
        axes.set_yticks(here["place"], names, fontsize=10 if len(rows) < MOST - 6 else 9)
        axes.tick_params(axis="y", length=0)
        axes.set(ylim=(len(here) - 0.4, -0.6), xlim=(-1.5, max(107.0, 1.05 * ends.max(axis=None))))
        axes.grid(axis="y", visible=False)
    is_cpu = are_of_cpus(rows)
    entries = [
        style.dot(style.MUTED, text("mfu")),
        style.dot(style.MUTED, text("utilization"), "|"),
    ]
    for part in COLORS:
        if part in set(rows["cause"]):
            entries.append(style.line(COLORS[part], name_of(part, is_cpu, text)))
    if "" in set(rows["cause"]):
        entries.append(style.line(style.MUTED, name_of("", is_cpu, text)))
    style.legend(figure, entries + runs.key(figure, text), 4 if len(entries) > 4 else 0)
