"""The ladder of implementations: speed of each rung relative to the library in the same run."""

import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from mfulab.core.language import verdicts
from mfulab.lab.report import claims, selection, trust
from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, matmuls, style, ticks
from mfulab.lab.report.frames import DataFrame, Series, Tables, ok, preferred, with_machine

TOPIC = "kernels"
ORDER = 1
CLAIM = claims.side_of("share_of_reference_percent", 100.0)
SHARE = "share_of_reference_percent"
LADDER = ["machine", "precision"]
MOST_MACHINES = 2
MOST_FORMATS = 2  # number formats of a machine
REFERENCE = "torch"  # rung that others are compared with, and measured again with each
LEAST = 1.0  # percentage points by which that rung may differ from itself without a sentence
FEW_RUNGS = 3  # without libraries; needed for a second ladder
MOST_RUNGS = 24
LINE = 0.27  # inches for a rung
TITLE = 29  # letters of a title's line, with two panels side by side


def rows(tables: Tables) -> DataFrame:
    """Selects square matmuls of each machine in the formats with most rungs, at the largest size
    that nearly all have. `elsewhere` names implementations measured only at other sizes, and
    `outside` the less certain rung furthest outside the others of its ladder."""
    measured = with_machine(tables, ok(tables["matmul"], SHARE))
    measured = measured[matmuls.cube(measured)]
    measured = measured[measured["machine"].isin(style.machines(measured, MOST_MACHINES))]
    square = _of_tallest_formats(matmuls.fastest(measured))
    shared = matmuls.most_shared(square)
    if shared.empty:
        return shared.assign(elsewhere="", outside="", outside_percent=np.nan)
    elsewhere = {}
    for ladder, here in square.groupby(LADDER):
        shown = shared.loc[(shared[LADDER] == list(ladder)).all(axis=1), "kernel"]
        elsewhere[ladder] = ", ".join(sorted({*here["kernel"]} - {*shown}))
    ladders = shared[LADDER].itertuples(index=False, name=None)
    shared = shared.assign(elsewhere=[elsewhere[ladder] for ladder in ladders])
    named = [_with_outside(here) for _, here in shared.groupby(LADDER, sort=False)]
    return pd.concat(named).loc[shared.index]


def _with_outside(ladder: DataFrame) -> DataFrame:
    """Adds `outside` and `outside_percent`: the rung with doubts whose speed is furthest below or
    above those of all others; empty if there is none."""
    rungs = ladder[ladder["family"] != "library"]
    is_unsure = trust.unsure(rungs)
    sure = rungs.loc[~is_unsure, SHARE]
    unsure = rungs.loc[is_unsure, SHARE]
    beyond = np.fmax(sure.min() / unsure, unsure / sure.max())
    if not (beyond > 1).any():
        return ladder.assign(outside="", outside_percent=np.nan)
    furthest = rungs.loc[beyond.idxmax()]
    return ladder.assign(outside=furthest["kernel"], outside_percent=furthest[SHARE])


def _of_tallest_formats(square: DataFrame) -> DataFrame:
    """Rows of each machine in the format with most rungs, and in a second one with at least
    FEW_RUNGS."""
    if square.empty:
        return square
    rungs = square[square["family"] != "library"].groupby(LADDER)["kernel"].nunique()
    kernels = square.groupby(LADDER)["kernel"].nunique()
    heights = DataFrame({"kernels": kernels, "rungs": rungs}).fillna(0)
    heights = heights.sort_values(["kernels", "rungs"], ascending=False, kind="stable")
    place = heights.groupby("machine", sort=False).cumcount()
    is_tall = heights["rungs"] >= FEW_RUNGS
    shown = set(heights.index[(place == 0) | ((place < MOST_FORMATS) & is_tall)])
    ladders = square[LADDER].itertuples(index=False, name=None)
    return square[[ladder in shown for ladder in ladders]]


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the lowest and highest rung in the format with most rungs, on the highest in
    another, and on rungs out of order."""
    here = _told(rows)
    low = here.iloc[0]
    high = here.iloc[-1]
    values = {
        "factor": high[SHARE] / low[SHARE],
        "reference": high["reference_name"] or text("library"),
    }
    key = "finding_one"
    if claims.differs(low, high, SHARE):
        key = "finding_outside" if named_in_doubt(rows) else "finding"
    sentences = [text(key, low=low, high=high, **values)]
    beside = rows[(rows["machine"] == high["machine"]) & (rows["family"] != "library")]
    for _, row in beside[beside["precision"] != high["precision"]].nlargest(1, SHARE).iterrows():
        sentences.append(text("finding_beside", row=row))
        own = rows[(rows[LADDER] == row[LADDER]).all(axis=1) & (rows["kernel"] == REFERENCE)]
        for _, library in own[(own[SHARE] - 100).abs() >= LEAST].iterrows():
            sentences.append(text("finding_reference", row=library))
    if high["elsewhere"]:
        sentences.append(text("finding_elsewhere", kernels=high["elsewhere"]))
    for below, rung in out_of_order(here):
        because = "; ".join(_reasons(below, rung, text)) or text("unexplained")
        names = {"rung": rung["kernel"], "below": below["kernel"]}
        sentences.append(text("out_of_order", **names, because=because))
    return " ".join(sentences)


def named_in_doubt(rows: DataFrame) -> int:
    """Number of rungs left out for doubt that the sentence on these rows names all the same."""
    here = _told(rows)
    differ = claims.differs(here.iloc[0], here.iloc[-1], SHARE)
    return int(differ and here["outside"].iloc[-1] != "")


def _told(rows: DataFrame) -> DataFrame:
    """Rungs of the format with most of them, the slowest first."""
    here = selection.largest(rows, LADDER).sort_values(SHARE)
    return preferred(here, here["family"] != "library")  # a library is the reference, not a rung


def _reasons(below: Series, rung: Series, text: Texts) -> list[str]:
    """Reasons why a rung is no faster than the one below it."""
    reasons = []
    if rung["verdict_flags"]:
        reasons.append(verdicts.flags(rung["verdict_flags"], text.language))
    if rung["spill_bytes"] > 0:
        reasons.append(text("spills", bytes=int(rung["spill_bytes"])))
    if rung["occupancy_percent"] < below["occupancy_percent"]:
        reasons.append(text("occupancy", rung=rung, below=below))
    return reasons


def out_of_order(here: DataFrame) -> list[tuple[Series, Series]]:
    """Pairs (below, rung) on one machine in which a rung is not faster than the one below it.
    Libraries are not rungs."""
    rungs = {rung["kernel"]: rung for _, rung in here[here["family"] != "library"].iterrows()}
    found = []
    for rung in rungs.values():
        below = rungs.get(rung["after"])
        if below is not None and rung[SHARE] <= below[SHARE]:
            found.append((below, rung))
    return found


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Draws a row of panels for each machine, one for each format, with a dot for each rung on a
    logarithmic scale. A single ladder also shows what each rung adds."""
    machines = {}
    for name in style.machines(rows):
        here = rows[rows["machine"] == name]
        ladders = [part for _, part in here.groupby("precision", sort=False)]
        machines[name] = [_tallest(part) for part in sorted(ladders, key=len, reverse=True)]
    across = max(map(len, machines.values()))
    heights = [max(map(len, ladders)) for ladders in machines.values()]
    named = [""] * across
    grid = style.panels(figure, [*machines], named, sharex=True, height_ratios=heights)
    style.resize(figure, 1.8 + 0.8 * len(machines) + LINE * max(6, sum(heights)))
    colors = style.usual_colors(rows["family"], style.FAMILIES)
    shapes = style.shapes(colors)
    look: style.Look = {"hue": "family", "palette": colors, "style": "family", "markers": shapes}
    for line, ladders in zip(grid, machines.values(), strict=True):
        for axes in line[len(ladders) :]:
            axes.set_visible(False)
        for axes, here in zip(line, ladders, strict=False):
            axes.set_title(_title(here, text, across))
            axes.axvline(100, color=style.MUTED, linewidth=1.2)
            # The fastest is at the top.
            heights = kinds.lanes(axes, here, "kernel", list(here["kernel"])[::-1], fontsize=9)
            here = here.assign(height=heights)
            kinds.points(axes, here, SHARE, "height", SHARE, "tflop_s", "time_s", **look)
            _write_shares(axes, here, text)
    if len(machines) == across == 1:
        _say_what_is_added(grid[0, 0], next(iter(machines.values()))[0], text)
    shares = rows[SHARE]
    grid[0, 0].set_xlim(shares.min() / 2, max(150.0, shares.max()) * (3 if across == 1 else 4))
    references = {*rows["reference_name"]} - {""}
    reference = references.pop() if len(references) == 1 else text("library")
    label = style.wrapped(text("share", reference=reference), style.WIDTH // (2 * across - 1))
    for axes in grid[-1]:
        ticks.decades(axes.xaxis, 5)
        axes.set_xlabel(label)
    return style.dots(colors, text, "family", shapes)


def _tallest(here: DataFrame) -> DataFrame:
    """The fastest rungs of a ladder, fastest first."""
    return here.sort_values(SHARE, ascending=False).head(MOST_RUNGS)


def _write_shares(axes: Axes, here: DataFrame, text: Texts) -> None:
    """Writes each share beside its dot, above the line at 100 %."""
    paper = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.6}
    anchor = {"textcoords": "offset points", "va": "center", "fontsize": 9, "bbox": paper}
    for height, share in zip(here["height"], here[SHARE], strict=True):
        axes.annotate(text("share_of", share=share), (share, height), (8, 0), **anchor)


def _title(here: DataFrame, text: Texts, across: int) -> str:
    first = here.iloc[0]
    form = text.name("precision", first["precision"])
    words = f"{first['machine']} · {first['n']:.0f}³\u00a0·\u00a0{form}"  # on one line
    if across == 1:
        return words
    return style.wrapped(words, TITLE)


def _say_what_is_added(axes: Axes, here: DataFrame, text: Texts) -> None:
    """Writes at the right of each line what its rung adds to the one below."""
    rungs = zip(here["kernel"][::-1], here["adds"][::-1], strict=True)
    for height, (kernel, adds) in enumerate(rungs):
        word = text.name("adds", kernel)
        if word != kernel:
            adds = word
        latin = len(adds) / max(1, style.letters(adds))
        line = textwrap.shorten(adds, int(72 * latin), placeholder=" …")
        axes.text(
            1.01,
            height,
            line,
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=9,
            color=style.MUTED,
        )
