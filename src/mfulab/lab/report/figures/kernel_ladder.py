"""The ladder of implementations: each rung's share of the library's speed in the same run."""

import textwrap

import pandas as pd

from mfulab.core.language import verdicts
from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, matmuls, style, ticks
from mfulab.lab.report.frames import DataFrame, Series, Tables, most, ok, with_machine

TOPIC, ORDER = "kernels", 1
SHARE = "share_of_reference_percent"


def rows(tables: Tables) -> DataFrame:
    """Each machine's largest square matmul that nearly all implementations share; others at their own, named so."""
    square = matmuls.square(with_machine(tables, ok(tables["matmul"], SHARE)))
    shared = matmuls.most_shared(square)
    sizes = shared.drop_duplicates("machine")[["machine", "precision", "n"]]
    smaller = square.merge(sizes, on=["machine", "precision"], suffixes=("", "_shared")).query("n < n_shared")
    smaller = smaller.sort_values("n").drop(columns="n_shared")
    rungs = pd.concat([smaller, shared], ignore_index=True).drop_duplicates(["machine", "kernel"], keep="last")
    own = rungs.groupby("machine")["n"].transform("max") == rungs["n"]
    return rungs.assign(kernel=rungs["kernel"].where(own, rungs["kernel"] + rungs["n"].map(" ({:.0f}³)".format)))


def finding(rows: DataFrame, text: Texts) -> str:
    """From the lowest rung to the highest on the machine with the most rungs."""
    all_sizes = most(rows, ["machine"])
    here = all_sizes[all_sizes["n"] == all_sizes["n"].max()].sort_values(SHARE)
    low, high = here.iloc[0], here.iloc[-1]
    values = {"factor": high[SHARE] / low[SHARE], "reference": high["reference_name"] or text("library")}
    words = [text("finding" if len(here) > 1 else "finding_one", low=low, high=high, **values)]
    slow = ", ".join(all_sizes.loc[all_sizes["n"] < high["n"], "kernel"])
    words += [text("finding_smaller", kernels=slow)] if slow else []
    for below, rung in out_of_order(here):
        lower = rung["occupancy_percent"] < below["occupancy_percent"]
        reasons = [verdicts.flags(rung["verdict_flags"], text.language)] if rung["verdict_flags"] else []
        reasons += [text("spills", bytes=int(rung["spill_bytes"]))] if rung["spill_bytes"] > 0 else []
        reasons += [text("occupancy", rung=rung, below=below)] if lower else []
        because = "; ".join(reasons) or text("unexplained")
        words.append(text("out_of_order", rung=rung["kernel"], below=below["kernel"], because=because))
    return " ".join(words)


def out_of_order(here: DataFrame) -> list[tuple[Series, Series]]:
    """Pairs (below, rung) on one machine of a rung that is no faster than the one below it; libraries are beside."""
    rungs = {rung["kernel"]: rung for _, rung in here[here["family"] != "library"].iterrows()}
    pairs = [(rungs[rung["after"]], rung) for rung in rungs.values() if rung["after"] in rungs]
    return [(below, rung) for below, rung in pairs if rung[SHARE] <= below[SHARE]]


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Bars on a logarithmic scale, slowest below, each with its share; of one machine also what each rung adds."""
    panels = style.by_machine(
        figure, rows, lambda here: f"{here['n'].max():.0f}³ · {text.name('precision', here['precision'].iloc[0])}"
    )
    style.fit(figure, int(rows.groupby("machine").size().max()))
    colors = style.usual_colors(rows["family"], style.FAMILIES)
    for axes, here in panels:
        here = here.sort_values(SHARE, ascending=False).head(24)
        here = here.assign(words=[text("share_of", share=share) for share in here[SHARE]])
        small = 8 if len(here) > 14 else 10
        axes.axvline(100, color=style.MUTED, linewidth=1.2)
        look: style.Look = {"hue": "family", "palette": colors, "dodge": False, "words": "words", "fontsize": small}
        kinds.bars(axes, here, SHARE, "kernel", SHARE, "tflop_s", "time_s", labelsize=small + 1, **look)
        for height, adds in enumerate(map(text.said, here["adds"]) if len(panels) == 1 else ()):
            short = textwrap.shorten(adds, 72 * len(adds) // max(1, style.letters(adds)), placeholder=" …")
            beside = {"transform": axes.get_yaxis_transform(), "va": "center", "fontsize": small, "color": style.MUTED}
            axes.text(1.01, height, style.wrapped(adds, 44) if len(here) <= 14 and adds else short, **beside)
        axes.set_xlim(here[SHARE].min() / 2, max(150.0, here[SHARE].max()) * 8)
        ticks.decades(axes.xaxis, 5)
        references = {*here["reference_name"]} - {""}
        share = text("share", reference=references.pop() if len(references) == 1 else text("library"))
        axes.set_xlabel(style.wrapped(share, 64 // len(panels)))
        if len(panels) > 1:  # beside names of kernels, a panel is narrow
            axes.set_title(style.wrapped(" ".join(axes.get_title("left").split()), 52 // len(panels)))
    return style.dots(colors, text, "family", "s")
