"""Where the time of a product goes when its matrices come from the host: transfers and the kernel itself, by size."""

import pandas as pd
from matplotlib.figure import Figure

from mfulab.report import matmuls, style
from mfulab.report.frames import Tables, ok, with_machine
from mfulab.report.language import Texts
from mfulab.report.quantities import percent

TABLES = ("matmul", "environment")
TOPIC = "kernels"
ORDER = 4
PARTS = ("host_to_device_s", "time_s", "device_to_host_s")


def rows(tables: Tables) -> pd.DataFrame:
    """The fastest kernel of each size on each machine with transfers, and the best CPU time of that size beside it."""
    timed = matmuls.square(with_machine(tables, ok(tables["matmul"], "time_s")))
    moved = timed[timed[list(PARTS)].notna().all(axis=1)]
    if moved.empty:
        return moved
    best = moved.loc[moved.groupby(["machine", "n"])["time_s"].idxmin()].sort_values("n")
    on_host = timed[timed["host_to_device_s"].isna()].groupby(["recorded", "n"])["time_s"].min().rename("host_s")
    return best.merge(on_host.reset_index(), how="left", on=["recorded", "n"])


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The transfers' share at both ends of the sizes, and from where on the device beats a CPU that was measured."""
    total = rows[list(PARTS)].sum(axis=1)
    share = 100 * (1 - rows["time_s"] / total)
    first, last = rows["n"].idxmin(), rows["n"].idxmax()
    words = text(
        "finding",
        small=int(rows.loc[first, "n"]),
        small_share=percent(share[first]),
        large=int(rows.loc[last, "n"]),
        large_share=percent(share[last]),
    )
    wins = rows[total < rows["host_s"]]
    if rows["host_s"].isna().all():
        return words
    return f"{words} " + (text("wins", size=int(wins["n"].min())) if len(wins) else text("never"))


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """A panel a machine; bars are shares of transfers and kernel, stacked to 100 %, the total time above each."""
    machines = style.machines(rows)
    grid = style.panels(figure, [""], machines, sharey=True)
    for machine in machines:
        axes, here = grid["", machine], rows[rows["machine"] == machine]
        total = here[list(PARTS)].sum(axis=1)
        base = pd.Series(0.0, index=here.index)
        names = [f"{n:g}" for n in here["n"]]
        for index, part in enumerate(PARTS):
            share = 100 * here[part] / total
            axes.bar(names, share, bottom=base, color=style.PALETTE[(0, 2, 1)[index]], width=0.7)
            base += share
        for place, seconds in enumerate(total):
            axes.text(place, 102, text("total", time=seconds), ha="center", fontsize=9)
        axes.set(xlabel=text("size"), ylim=(0, 110))
        axes.grid(axis="x", visible=False)
    grid["", machines[0]].set_ylabel(text("share_of_time"))
    style.legend(figure, [style.dot(style.PALETTE[(0, 2, 1)[i]], text(part), "s") for i, part in enumerate(PARTS)])
