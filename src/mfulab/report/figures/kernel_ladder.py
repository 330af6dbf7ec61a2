"""The ladder of implementations: each rung's share of the library's speed in the same run."""

import pandas as pd
from matplotlib.figure import Figure

from mfulab.report import matmuls, style
from mfulab.report.frames import Tables, ok, with_machine
from mfulab.report.language import Texts
from mfulab.report.quantities import percent, significant

TABLES = ("matmul", "environment")
TOPIC = "kernels"
ORDER = 1


def rows(tables: Tables) -> pd.DataFrame:
    """Each machine's largest square product that most of its implementations share."""
    square = matmuls.square(with_machine(tables, ok(tables["matmul"], "share_of_reference_percent")))
    return matmuls.most_shared(square)


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """From the lowest rung to the highest on the machine with the most rungs."""
    here = rows[rows["machine"] == rows["machine"].value_counts().idxmax()].sort_values("share_of_reference_percent")
    low, high = here.iloc[0], here.iloc[-1]
    return text(
        "finding",
        machine=high["machine"],
        size=int(high["n"]),
        precision=text.name("precision", high["precision"]),
        low=low["kernel"],
        low_share=percent(low["share_of_reference_percent"]),
        high=high["kernel"],
        high_share=percent(high["share_of_reference_percent"]),
        factor=significant(high["share_of_reference_percent"] / low["share_of_reference_percent"]),
        reference=high["reference_name"] or text("library"),
    )


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """Bars on a logarithmic scale, slowest below; beside each its share and, where there is room, what it adds."""
    machines = style.machines(rows)
    titles = {}
    for machine in machines:
        first = rows[rows["machine"] == machine].iloc[0]
        titles[machine] = f"{machine} · {int(first['n'])}³ · {text.name('precision', first['precision'])}"
    grid = style.panels(figure, [""], list(titles.values()))
    colors = style.family_colors(rows["family"])
    for machine in machines:
        axes = grid["", titles[machine]]
        here = rows[rows["machine"] == machine].sort_values("share_of_reference_percent").tail(24)
        shares = here["share_of_reference_percent"]
        axes.barh(here["kernel"], shares, color=here["family"].map(colors), height=0.7)
        axes.axvline(100, color=style.MUTED, linewidth=1.2)
        label = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 1}  # the line at 100 % would cross it
        small = 8 if len(here) > 14 else 10
        for height, (share, adds) in enumerate(zip(shares, here["adds"], strict=True)):
            words = f"{percent(share)} %" + (f"  {adds}" if adds and len(machines) == 1 else "")
            axes.annotate(
                words, (share, height), (5, 0), textcoords="offset points", va="center", fontsize=small, bbox=label
            )
        axes.set_xscale("log")
        room = 1e3 if len(machines) == 1 and (here["adds"] != "").any() else 8
        axes.set_xlim(shares.min() / 2, max(150.0, shares.max()) * room)
        decades = [10.0**power for power in range(-4, 3) if 10.0**power >= shares.min() / 2]
        axes.set_xticks(decades[::-2][::-1] if len(decades) > 4 else decades)
        axes.xaxis.set_major_formatter(lambda share, _: f"{share:g}")
        axes.tick_params(axis="y", labelsize=small + 1)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(text("share"))
    style.legend(figure, [style.dot(color, family, "s") for family, color in colors.items() if family])
