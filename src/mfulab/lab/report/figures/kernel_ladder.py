"""The ladder of implementations: speed of each rung relative to the library in the same run."""

import textwrap
from collections.abc import Sequence

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
    machines = style.machines(measured, MOST_MACHINES)
    measured = measured[measured["machine"].isin(machines)]
    square = _of_tallest_formats(matmuls.fastest(measured))
    shared = matmuls.most_shared(square)
    if shared.empty:
        return shared.assign(elsewhere="", outside="", outside_percent=np.nan)
    all_kernels = square.groupby(LADDER)["kernel"].agg(set)
    ladders = []
    for ladder, here in shared.groupby(LADDER, sort=False):
        missing = all_kernels[ladder] - set(here["kernel"])
        named = here.assign(elsewhere=", ".join(sorted(missing)))
        ladders.append(_with_outside(named))
    return pd.concat(ladders).loc[shared.index]


def _with_outside(ladder: DataFrame) -> DataFrame:
    """Adds `outside` and `outside_percent`: the rung with doubts whose speed is furthest below or
    above those of all others; empty if there is none."""
    rungs = ladder[_is_rung(ladder)]
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
    rungs = square[_is_rung(square)].groupby(LADDER)["kernel"].nunique()
    kernels = square.groupby(LADDER)["kernel"].nunique()
    heights = DataFrame({"kernels": kernels, "rungs": rungs}).fillna(0)
    heights = heights.sort_values(["kernels", "rungs"], ascending=False, kind="stable")
    place = heights.groupby("machine", sort=False).cumcount()
    is_tall = heights["rungs"] >= FEW_RUNGS
    is_shown = (place == 0) | (is_tall & (place < MOST_FORMATS))
    ladders = pd.MultiIndex.from_frame(square[LADDER])
    return square[ladders.isin(heights.index[is_shown])]


def _is_rung(rows: DataFrame) -> Series:
    """True for all implementations but libraries, which rungs are compared with."""
    return rows["family"] != "library"


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the lowest and highest rung in the format with most rungs, on the highest in
    another, and on rungs out of order."""
    here = _told(rows)
    low = here.iloc[0]
    high = here.iloc[-1]
    key = "finding_one"
    if claims.differs(low, high, SHARE):
        key = "finding"
        if named_in_doubt(rows):
            key = "finding_outside"
    reference = high["reference_name"] or text("library")
    factor = high[SHARE] / low[SHARE]
    sentences = [
        text(
            key,
            low=low,
            high=high,
            factor=factor,
            reference=reference,
        )
    ]
    sentences += _beside(rows, high, text)
    if high["elsewhere"]:
        sentences.append(text("finding_elsewhere", kernels=high["elsewhere"]))
    for below, rung in out_of_order(here):
        because = "; ".join(_reasons(below, rung, here, text)) or text("unexplained")
        kernels = {"rung": rung["kernel"], "below": below["kernel"]}
        sentences.append(text("out_of_order", **kernels, because=because))
    return " ".join(sentences)


def named_in_doubt(rows: DataFrame) -> int:
    """Number of rungs left out for doubt that the sentence on these rows names all the same."""
    here = _told(rows)
    differ = claims.differs(here.iloc[0], here.iloc[-1], SHARE)
    return int(differ and here["outside"].iloc[-1] != "")


def _told(rows: DataFrame) -> DataFrame:
    """Rungs of the format with most of them, the slowest first."""
    here = selection.largest(rows, LADDER).sort_values(SHARE)
    return preferred(here, _is_rung(here))


def _beside(rows: DataFrame, high: Series, text: Texts) -> list[str]:
    """Sentences on the highest rung in another format than that of `high`, and on the library in
    that format, if it differs from itself. Empty without another format."""
    is_beside = (rows["machine"] == high["machine"]) & (rows["precision"] != high["precision"])
    rungs = rows[is_beside & _is_rung(rows)]
    if rungs.empty:
        return []
    row = rungs.nlargest(1, SHARE).iloc[0]
    sentences = [text("finding_beside", row=row)]
    ladder = rows[(rows[LADDER] == row[LADDER]).all(axis=1)]
    is_off = (ladder[SHARE] - 100).abs() >= LEAST
    for _, library in ladder[is_off & (ladder["kernel"] == REFERENCE)].iterrows():
        sentences.append(text("finding_reference", row=library))
    return sentences


def _reasons(below: Series, rung: Series, here: DataFrame, text: Texts) -> list[str]:
    """Reasons why a rung is no faster than the one below it."""
    reasons = []
    if rung["verdict_flags"]:
        reasons.append(verdicts.flags(rung["verdict_flags"], text.language))
    if rung["spill_bytes"] > 0:
        reasons.append(text("spills", bytes=int(rung["spill_bytes"])))
    if rung["occupancy_percent"] < below["occupancy_percent"] and _slow_by_occupancy(
        below, rung, here
    ):
        reasons.append(text("occupancy", rung=rung, below=below))
    return reasons


def _slow_by_occupancy(below: Series, rung: Series, here: DataFrame) -> bool:
    """True if other rungs have no higher occupancy than `rung`, and all of these are slower than
    the one below it."""
    others = here[_is_rung(here) & (here["kernel"] != rung["kernel"])]
    alike = others[others["occupancy_percent"] <= rung["occupancy_percent"]]
    return len(alike) > 0 and bool((alike[SHARE] < below[SHARE]).all())


def out_of_order(here: DataFrame) -> list[tuple[Series, Series]]:
    """Pairs (below, rung) on one machine in which a rung is not faster than the one below it.
    Libraries are not rungs."""
    rungs = {}
    for _, rung in here[_is_rung(here)].iterrows():
        rungs[rung["kernel"]] = rung
    found = []
    for rung in rungs.values():
        below = rungs.get(rung["after"])
        if below is not None and rung[SHARE] <= below[SHARE]:
            found.append((below, rung))
    return found


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Draws a row of panels for each machine, one for each format, with a dot for each rung on a
    logarithmic scale. A single ladder also shows what each rung adds."""
    machines = style.machines(rows)
    ladders = [_ladders(rows[rows["machine"] == machine]) for machine in machines]
    across = max(map(len, ladders))
    grid = _panels(figure, machines, ladders, across)
    colors = style.usual_colors(rows["family"], style.FAMILIES)
    shapes = style.shapes(colors)
    look = style.hued("family", colors, shapes)
    for line, of_machine in zip(grid, ladders, strict=True):
        for axes in line[len(of_machine) :]:
            axes.set_visible(False)
        for axes, here in zip(line, of_machine, strict=False):
            axes.set_title(_title(here, text, across))
            axes.axvline(100, color=style.MUTED, linewidth=1.2)
            fastest_last = list(here["kernel"])[::-1]  # the last is at the top
            heights = kinds.lanes(axes, here, "kernel", fastest_last, fontsize=9)
            is_named_doubtful = here["kernel"] == here["outside"]
            here = here.assign(height=heights, doubtful=here["doubtful"] | is_named_doubtful)
            kinds.points(
                axes,
                here,
                SHARE,
                "height",
                SHARE,
                "tflop_s",
                "time_s",
                **look,
            )
            _write_shares(axes, here, text)
    if grid.size == 1:
        _say_what_is_added(grid[0, 0], ladders[0][0], text)
    right = max(150.0, rows[SHARE].max()) * (3 if across == 1 else 4)  # with room for shares
    grid[0, 0].set_xlim(rows[SHARE].min() / 2, right)
    references = {*rows["reference_name"]} - {""}
    reference = text("library")
    if len(references) == 1:
        reference = references.pop()
    label = text("share", reference=reference)
    for axes in grid[-1]:
        ticks.decades(axes.xaxis, 5)
        axes.set_xlabel(style.wrapped(label, style.WIDTH // (2 * across - 1)))
    return style.dots(colors, text, "family", shapes)


def _ladders(of_machine: DataFrame) -> list[DataFrame]:
    """Ladders of a machine, the tallest first: the fastest rungs of each, fastest first."""
    ladders = []
    for _, here in of_machine.groupby("precision", sort=False):
        ladders.append(here.sort_values(SHARE, ascending=False))
    ladders.sort(key=len, reverse=True)
    return [ladder.head(MOST_RUNGS) for ladder in ladders]


def _panels(
    figure: Figure, machines: Sequence[str], ladders: Sequence[Sequence[DataFrame]], across: int
) -> np.ndarray:
    """A row of panels for each machine, as high as its tallest ladder."""
    heights = [len(of_machine[0]) for of_machine in ladders]
    columns = [""] * across
    grid = style.panels(figure, machines, columns, sharex=True, height_ratios=heights)
    style.resize(figure, 1.8 + 0.8 * len(machines) + LINE * max(6, sum(heights)))
    return grid


def _write_shares(axes: Axes, here: DataFrame, text: Texts) -> None:
    """Writes each share beside its dot, above the line at 100 %."""
    for height, share in zip(here["height"], here[SHARE], strict=True):
        words = text("share_of", share=share)
        style.beside(
            axes,
            words,
            (share, height),
            8,
            bbox=style.PAPER_BEHIND,
        )


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
