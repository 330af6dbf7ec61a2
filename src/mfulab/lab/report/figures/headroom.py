"""Milliseconds of a step lost between the peak and MFU, without counting any twice."""

from collections.abc import Hashable, Iterable, Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from mfulab.core.language import verdicts
from mfulab.core.parts import Row
from mfulab.lab.report import claims, selection, trust
from mfulab.lab.report.drawing import Figure, Texts, curves, kinds, runs, style
from mfulab.lab.report.figures import mfu_versus_utilization
from mfulab.lab.report.figures.mfu_versus_utilization import COLORS as COLORS
from mfulab.lab.report.figures.mfu_versus_utilization import are_of_cpus, is_of_cpu
from mfulab.lab.report.frames import (
    FAULTY,
    DataFrame,
    Series,
    Tables,
    ok,
    preferred,
    with_machine,
    with_traces,
)
from mfulab.mfu.headroom import PARTS

TOPIC = "why"
ORDER = 0
FEWEST = 1  # even one step has several parts to compare
MOST_RUNS = 12  # of all machines
LINE = 0.37  # inches for a run, whose name has two lines
MATMULS = "matmuls_below_best"
SHOWN = 0.05  # percentage points below which a part is not drawn
NAMED = 4.0  # percentage points below which parts are drawn as one
SMALL = "small"  # the sum of those parts
SMALL_COLOR = "#e6e9ee"
LETTER = 1.05  # percentage points of a letter on a bar
# Parts on which numbers are white. Colours of numbers do not depend on the page's theme.
DARK = ("matmuls_below_best", "useful", "input_wait", "graph")
ON_DARK = "#fefefe"
ON_PALE = "#101418"
# A run's claim is which part it loses most to.
CLAIM = claims.largest([part for part in PARTS if part != "useful"])


def rows(tables: Tables) -> DataFrame:
    """Selects the first run of the page and each model's busiest trusted run on each machine, of
    those that stand for a mode. Losses are percentage points of MFU. Steps from recorded traces are
    included only if there is nothing else."""
    timed = with_machine(tables, ok(with_traces(tables), "time_s", "mfu_percent", "useful_ms"))
    timed = selection.pick(timed, "recorded_trace")
    if timed.empty:
        return timed
    for part in PARTS:
        points = timed[f"{part}_ms"] / 10 / timed["time_s"]
        timed[part] = points.fillna(0)
    named = selection.named_of_page(mfu_versus_utilization, tables)
    first = named[0] if named else None
    trusted = _trusted(selection.one_of_each(timed, named))
    busy = trusted["utilization_percent"].fillna(0)
    busiest = busy.groupby([trusted["machine"], trusted["model"]]).idxmax()
    best = timed[timed.index.isin(busiest) | (timed.index == first)]
    ordered = best.sort_values(["recorded", "machine", "useful"], ascending=[True, True, False])
    machines = style.machines(ordered)
    most = MOST_RUNS // len(machines)
    shown = []
    for machine in machines:
        here = ordered[ordered["machine"] == machine]
        shown.append(_spread(here, most, first))
    return pd.concat(shown)


def _trusted(rows: DataFrame) -> DataFrame:
    """Returns each machine's rows without doubt, or all of its rows if there are none."""
    is_trusted = ~trust.doubtful(rows)
    has_trusted = is_trusted.groupby(rows["machine"]).transform("any")
    return rows[is_trusted | ~has_trusted]


def _spread(ordered: DataFrame, most: int, first: Hashable | None) -> DataFrame:
    """Selects at most `most` runs of a machine, evenly spread by MFU, including the `first` run of
    the page. Real models are preferred."""
    ordered = preferred(ordered, ~selection.is_synthetic(ordered) | (ordered.index == first))
    others = ordered.index.drop(first, errors="ignore")
    room = most - (len(ordered) - len(others))
    positions = np.linspace(0, len(others) - 1, min(len(others), room)).round().astype(int)
    return ordered[ordered.index.isin([first, *others[positions]])]


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentence on the largest share lost, of the run that has it, and on what counts as matmuls. Runs
    with many page faults, which slow matmuls as well, are no example of slow matmuls."""
    losses = rows[[part for part in PARTS if part != "useful"]].astype(float)
    is_faulty = losses["page_faults"] >= 100 * FAULTY
    slow = losses[MATMULS].mask(is_faulty)
    if slow.notna().any():
        losses = losses.assign(**{MATMULS: slow})
    index, part = losses.stack().idxmax()
    worst = rows.loc[index]
    said = text(
        "finding",
        worst=worst,
        step=1e3 * worst["time_s"],
        ms=worst[f"{part}_ms"],
        points=worst[part],
        part=verdicts.part_of_step(part, is_of_cpu(worst.to_dict()), text),
    )
    if part == MATMULS:
        return f"{said} {text('matmuls')}"
    return said


def draw(rows: DataFrame, figure: Figure, text: Texts) -> None:
    """Draws a bar for each run, divided into the parts of its step, of which the useful part and
    the largest loss are labelled. Runs of a machine are below its name."""
    axes = style.panels(figure, [""], [""])[0, 0]
    style.resize(figure, 1.7 + LINE * (len(rows) + rows["machine"].nunique()))
    rows, colors = _of_few_parts(rows)
    shown = _under_machines(axes, rows, text)
    shares = shown[[*colors]].astype(float).clip(lower=0).fillna(0)
    shown[[*colors]] = shares
    tooltip = [f"{part}_ms" for part in PARTS]
    kinds.stacks(axes, shown, colors, "name", *tooltip, width=0.78)
    starts = shares.cumsum(axis=1) - shares
    middles = starts + shares / 2
    look: style.Look = {
        "va": "center",
        "ha": "center",
        "fontsize": 9,
        "fontweight": "bold",
    }
    for line, of_run in shares.iterrows():
        names = _part_names(colors, is_of_cpu(shown.loc[line].to_dict()), text)
        for part, words in _labels(of_run, names, text).items():
            if shown.loc[line, runs.DOUBTFUL]:
                color = style.INK
            elif part in DARK:
                color = ON_DARK
            else:
                color = ON_PALE
            axes.text(
                middles.loc[line, part],
                line,
                words,
                color=color,
                **look,
            )
    axes.tick_params(axis="y", length=0, labelsize=9)
    right = max(100.0, float(shares.sum(axis=1).max()))
    axes.set(
        ylim=(len(shown) - 0.4, -0.6),
        xlim=(0, right),
        xlabel=text("points"),
    )
    names = _part_names(colors, are_of_cpus(rows), text)
    entries = [style.dot(color, names[part], "s") for part, color in colors.items()]
    style.legend(figure, entries + runs.key(figure, text), 3)


def _under_machines(axes: Axes, rows: DataFrame, text: Texts) -> DataFrame:
    """Returns the rows with the `name` of each run, and a line before those of each machine, on
    which it writes the machine's name."""
    lines: list[Row] = []
    for machine, here in rows.groupby("machine", sort=False):
        axes.text(
            0,
            len(lines) + 0.1,
            machine,
            fontsize=10,
            fontweight="bold",
            va="center",
        )
        lines.append({runs.DOUBTFUL: False, "run": "", "name": ""})
        for row in here.to_dict("records"):
            lines.append(row | {"name": _named(row, text)})
    return DataFrame(lines)


def _of_few_parts(rows: DataFrame) -> tuple[DataFrame, dict[str, str]]:
    """Adds the sum of the parts that are small in every run. Returns the drawn parts with their
    colours, the useful one first."""
    colors = {}
    small = []
    for part, color in reversed(COLORS.items()):
        largest = rows[part].abs().max()
        if largest >= NAMED or part == "useful":
            colors[part] = color
        elif largest >= SHOWN:
            small.append(part)
    if len(small) == 1:
        colors[small[0]] = COLORS[small[0]]
    elif small:
        shares = rows[small].astype(float).clip(lower=0)
        rows = rows.assign(small=shares.sum(axis=1))
        colors[SMALL] = SMALL_COLOR
    return rows, colors


def _part_names(parts: Iterable[str], is_cpu: bool, text: Texts) -> dict[str, str]:
    """Names of drawn parts in the legend and on bars, for runs of CPUs only or of any device."""
    names = {}
    for part in parts:
        if part == SMALL:
            names[part] = text(SMALL, share=NAMED)
        else:
            names[part] = verdicts.part_of_step(part, is_cpu, text)
    return names


def _labels(shares: Series, names: Mapping[str, str], text: Texts) -> dict[str, str]:
    """Labels of the useful part, and of the largest loss with its name, as far as they fit into
    their parts of the bar."""
    choices = {"useful": [text("share_of", share=shares["useful"])]}
    lost = shares.drop(["useful", SMALL], errors="ignore")
    if len(lost):
        part = str(lost.idxmax())
        share_of = text("share_of", share=lost[part])
        choices[part] = [f"{share_of} {names[part]}", share_of]
    labels = {}
    for part, choices_of_part in choices.items():
        for words in choices_of_part:
            if shares[part] and style.letters(words) * LETTER <= shares[part]:
                labels[part] = words
                break
    return labels


def _named(row: Row, text: Texts) -> str:
    """Label of a run in two lines: model and MFU, then its settings."""
    words = [text.name("mode", row["mode"]), text.name("precision", row["precision"])]
    if row["batch_size"] == row["batch_size"]:
        words.append(text.within("why")("batch", batch_size=int(row["batch_size"])))
    words += curves.variant(row, text)
    share = text("mfu", share=row["useful"])
    settings = ", ".join(filter(None, words))
    return f"{row['model']}, {share}\n{settings}"
