"""Measured and computed ceilings of each device by precision."""

import math

from mfulab.lab.planning.naming import short
from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, quantity, specs, style
from mfulab.lab.report.frames import (
    RECORDED_HALF_WIDTH,
    DataFrame,
    Series,
    Tables,
    highest,
    ok,
    with_machine,
)

TOPIC = "roofline"
ORDER = 1
RING = style.PALETTE[1]
QUICK = "search=quick"  # part of a run's name if few sizes were tried


def rows(tables: Tables) -> DataFrame:
    """Selects ceilings with a measured matmul."""
    return with_machine(tables, ok(tables["ceilings"], "measured_tflop_s"))


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on the fastest format, on those that could be as fast, and why a CPU may exceed its
    computed peak."""
    best = highest(rows, "measured_tflop_s")
    share = 100 * best["measured_tflop_s"] / best["computed_tflop_s"]
    key = "finding_unknown"
    if share == share:
        key = "finding"
    sentences = [text(key, best=best, share=share)]
    here = rows[rows["machine"] == best["machine"]]
    tied = specs.names("precision", _as_fast(here, best)["ceiling"].drop_duplicates(), text)
    if tied:
        sentences.append(text("tied", others=", ".join(tied)))
    if share > 100 and best["device"] == "cpu":
        sentences.append(text("boosted"))
    return " ".join(sentences)


def _as_fast(rows: DataFrame, best: Series) -> DataFrame:
    """Other formats whose measured matmul could be as fast as the best one, by the precision of
    both."""
    usual_percent = 100 * (math.exp(RECORDED_HALF_WIDTH) - 1)
    half = rows["precision_percent"].fillna(usual_percent) / 100
    could_be = rows["measured_tflop_s"] * (1 + half)
    least = best["measured_tflop_s"] / (1 + half[best.name])
    return rows[(could_be >= least) & (rows["ceiling"] != best["ceiling"])]


def _name(row: Series, text: Texts) -> str:
    """Name of a ceiling: its format and unusual settings, such as fewer threads."""
    settings = row["run"].removeprefix(f"ceiling={row['ceiling']}").strip(",").split(",")
    others = [setting for setting in settings if setting != QUICK]
    parts = [text.name("precision", row["ceiling"]), short(",".join(others))]
    if QUICK in settings:
        parts.append(text("quick"))
    return ", ".join(filter(None, parts))


def _speed(row: Series, text: Texts) -> str:
    """Speed of a ceiling, and its share of the computed peak if that is known."""
    speed = quantity(row["measured_tflop_s"] * 1e12, "FLOP/s")
    share = 100 * row["measured_tflop_s"] / row["computed_tflop_s"]
    if share != share:
        return speed
    return f"{speed}\n{text('share', share=f'{share:.0f}')}"


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Draws a panel for each machine, with a bar for each measured ceiling and a ring at the
    computed peak."""
    most = rows["machine"].value_counts().max()
    panels = style.by_machine(figure, rows, x="TFLOP/s")
    style.resize(figure, 1.8 + 0.36 * max(4, most))
    both = ("measured_tflop_s", "computed_tflop_s")
    for axes, here in panels:
        here = here.sort_values("measured_tflop_s", ascending=False)
        names = [_name(row, text) for _, row in here.iterrows()]
        here = here.assign(name=names)
        kinds.bars(axes, here, "measured_tflop_s", "name", *both, width=0.55)
        axes.plot(
            here["computed_tflop_s"],
            range(len(here)),
            "o",
            color=RING,
            fillstyle="none",
            ms=10,
            markeredgewidth=2,
        )
        far = here[[*both]].max(axis=1)
        for place, (end, (_, row)) in enumerate(zip(far, here.iterrows(), strict=True)):
            style.beside(axes, _speed(row, text), (end, place), 10)
        axes.set_xlim(0, 1.5 * far.max())
        room = max(0.0, (3 - len(here)) / 2)  # space, so that a single bar does not fill the panel
        axes.set_ylim(len(here) - 0.4 + room, -0.6 - room)
    return [
        style.dot(style.PALETTE[0], text("measured"), "s"),
        style.dot(RING, text("computed"), fillstyle="none"),
    ]
