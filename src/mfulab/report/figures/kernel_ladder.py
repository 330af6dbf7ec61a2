"""The ladder of implementations: each rung's share of the library's speed in the same run."""

import itertools
import textwrap

import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.language import Texts, verdicts
from mfulab.core.language.quantities import percent
from mfulab.report.drawing import kinds, matmuls, runs, style, ticks
from mfulab.report.frames import Tables, ok, with_machine

TABLES = ("matmul", "environment")
TOPIC, ORDER = "kernels", 1


def rows(tables: Tables) -> pd.DataFrame:
    """Each machine's largest square matmul that nearly all of its implementations share.

    One measured at smaller sizes only is there with its largest, which its name then says: a share is one of the
    library's time for the same matmul.
    """
    square = matmuls.square(with_machine(tables, ok(tables["matmul"], "share_of_reference_percent")))
    if square.empty:
        return square
    shared = matmuls.most_shared(square)
    chosen = shared.drop_duplicates("machine").set_index("machine")[["precision", "n"]]
    beside = square.join(chosen.add_suffix("_shared"), on="machine")
    beside = beside[(beside["precision"] == beside["precision_shared"]) & (beside["n"] < beside["n_shared"])]
    keys, known = (pd.MultiIndex.from_frame(frame[["machine", "kernel"]]) for frame in (beside, shared))
    smaller = beside[~keys.isin(known)].sort_values("n").drop_duplicates(["machine", "kernel"], keep="last")
    named = smaller.assign(
        kernel=[f"{name} ({n:.0f}³)" for name, n in zip(smaller["kernel"], smaller["n"], strict=True)]
    )
    return pd.concat([shared, named[shared.columns]]) if len(named) else shared


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """From the lowest rung to the highest on the machine with the most rungs."""
    share = "share_of_reference_percent"
    all_sizes = rows[rows["machine"] == rows["machine"].value_counts().idxmax()]
    here = all_sizes[all_sizes["n"] == all_sizes["n"].max()].sort_values(share)
    low, high = here.iloc[0], here.iloc[-1]
    values = {"factor": high[share] / low[share], "reference": high["reference_name"] or text("library")}
    said = [text("finding" if len(here) > 1 else "finding_one", low=low, high=high, **values)]
    if slow := list(all_sizes.loc[all_sizes["n"] < high["n"], "kernel"]):
        said.append(text("finding_smaller", kernels=", ".join(slow)))
    return " ".join([*said, *(_explained(rung, below, text) for below, rung in out_of_order(here))])


def out_of_order(here: pd.DataFrame) -> list[tuple[pd.Series, pd.Series]]:
    """Of one machine: each rung that is no faster than the one below it in its family, with that one before it.

    Libraries are beside one another, not above.
    """
    ladders = matmuls.from_the_lowest(here[here["family"] != "library"]).groupby("family", sort=False)
    pairs = [pair for _, ladder in ladders for pair in itertools.pairwise(row for _, row in ladder.iterrows())]
    share = "share_of_reference_percent"
    return [(below, rung) for below, rung in pairs if rung[share] <= below[share]]


def _explained(rung: pd.Series, below: pd.Series, text: Texts) -> str:
    """Reasons, from the measurement and the compiler, for a rung that is no faster than the one below."""
    reasons = []
    if rung["verdict_flags"]:
        reasons.append(verdicts.flags(rung["verdict_flags"], text.language))
    if rung["spill_bytes"] > 0:
        reasons.append(text("spills", bytes=int(rung["spill_bytes"])))
    if rung["occupancy_percent"] < below["occupancy_percent"]:
        percents = {name: percent(row["occupancy_percent"]) for name, row in (("own", rung), ("below", below))}
        reasons.append(text("occupancy", **percents))
    because = "; ".join(reasons) or text("unexplained")
    return text("out_of_order", rung=rung["kernel"], below=below["kernel"], because=because)


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """Bars on a logarithmic scale, slowest below, each with its share; of one machine also what each rung adds."""
    panels = style.by_machine(
        figure, rows, lambda here: f"{here['n'].max():.0f}³ · {text.name('precision', here['precision'].iloc[0])}"
    )
    style.fit(figure, int(rows.groupby("machine").size().max()))
    colors = style.family_colors(rows["family"])
    for axes, here in panels:
        here = here.sort_values("share_of_reference_percent", ascending=False).head(24)
        shares = here["share_of_reference_percent"]
        here = here.assign(words=[text("share_of", share=share) for share in shares])
        small = 8 if len(here) > 14 else 10
        axes.axvline(100, color=style.MUTED, linewidth=1.2)
        told = ("share_of_reference_percent", "tflop_s", "time_s")
        look: style.Look = {"hue": "family", "colors": colors, "dodge": False, "words": "words", "fontsize": small}
        kinds.bars(axes, here, told[0], "kernel", *told, **look)
        for height, adds in enumerate(map(text.said, here["adds"]) if len(panels) == 1 else ()):
            fewer = len(adds) / max(1, style.letters(adds))
            short = textwrap.shorten(adds, int(72 * fewer), placeholder=" …")
            beside = {"transform": axes.get_yaxis_transform(), "va": "center", "fontsize": small, "color": style.MUTED}
            axes.text(1.01, height, style.wrapped(adds, 44) if len(here) <= 14 and adds else short, **beside)
        axes.set_xscale("log")
        axes.set_xlim(shares.min() / 2, max(150.0, shares.max()) * 8)
        ticks.decades(axes.xaxis, 5)
        axes.tick_params(axis="y", labelsize=small + 1)
        references = {name for name in here["reference_name"] if name}
        reference = references.pop() if len(references) == 1 else text("library")
        axes.set_xlabel(text("share", reference=reference))
    families = {name: color for name, color in colors.items() if name}
    style.legend(figure, style.dots(families, text, "family", "s") + runs.key(rows, text))
