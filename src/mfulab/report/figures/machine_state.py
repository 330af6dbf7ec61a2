"""The machine while it was measured: its probe against its best, over the time of the sweep."""

import pandas as pd
from matplotlib.figure import Figure

from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent, significant
from mfulab.report.drawing import runs, style
from mfulab.report.frames import Tables, own, with_machine
from mfulab.tables import states
from mfulab.timing.probe import PLACED

TABLES = ("profile", "matmul", "ceilings", "environment")
TOPIC = "trust"
ORDER = 1
MEASURED = ("profile", "matmul", "ceilings")
SHARED = ["hardware", "recorded", "run", "probes", "probe_s", "measured_s", "started_at", "commit", "status"]
LEFT_OUT = "left_out_replicates"
LIMITS = {"product": states.DISTURBED, "copy": states.DISTURBED * PLACED}
APART_S = 600  # a longer gap between two probes is a pause: another sweep


def rows(tables: Tables) -> pd.DataFrame:
    """One row a probe of the latest sweep of each machine: minutes since it began, and both parts ÷ their best."""
    found = pd.concat([tables[name][[*SHARED, LEFT_OUT]] for name in MEASURED], ignore_index=True)
    found = own(with_machine(tables, found[found["probes"] != ""]))
    best = states.best(found.to_dict("records"))
    lines = []
    for row in found.to_dict("records"):
        threads, probes = states.probes(row)
        known = best.get((row["hardware"], threads))
        for state in probes:
            assert known is not None  # it is of these very rows
            parts = {"product": state.product_s / known.product_s, "copy": state.copy_s / known.copy_s}
            lines.append({**row, "at_s": state.at_s, **parts, "slowdown": state.slowdown(known)})
    if not lines:
        return pd.DataFrame(columns=[*found.columns, "at_s", "product", "copy", "slowdown", "minutes"])
    probed = pd.DataFrame(lines).sort_values(["machine", "at_s"], ignore_index=True)
    sweep = (probed.groupby("machine")["at_s"].diff() > APART_S).groupby(probed["machine"]).cumsum()
    probed = probed[sweep == sweep.groupby(probed["machine"]).transform("max")]
    begun = probed.groupby("machine")["at_s"].transform("min")
    return probed.assign(minutes=(probed["at_s"] - begun) / 60)


def finding(rows: pd.DataFrame, text: Texts) -> str:
    """The share of probes that found the machine slow, what probing cost, and how many processes do not count."""
    slow = rows["slowdown"] >= states.DISTURBED
    runs = rows.drop_duplicates(["hardware", "run"])
    left_out = int(runs[LEFT_OUT].sum())
    said = text(
        "finding" if slow.any() else "finding_quiet",
        count=len(rows),
        share=percent(100 * slow.mean()),
        limit=significant(states.DISTURBED),
        worst=significant(rows["slowdown"].max()),
        cost=percent(100 * runs["probe_s"].sum() / runs["measured_s"].sum()) if runs["measured_s"].sum() else "–",
    )
    return f"{said} {text('left_out', count=left_out)}" if left_out else said


def draw(rows: pd.DataFrame, figure: Figure, text: Texts) -> None:
    """A panel a machine, a point a probe and part; hollow from its part's line on, where the machine is disturbed."""
    machines = style.machines(rows)
    grid = style.panels(figure, [""], machines, sharey=True)
    parts = {"product": style.PALETTE[0], "copy": style.PALETTE[1]}
    for machine in machines:
        axes, here = grid["", machine], rows[rows["machine"] == machine]
        for (part, color), marker in zip(parts.items(), ("o", "s"), strict=True):
            axes.axhline(LIMITS[part], color=color, linewidth=1, linestyle=(0, (4, 3)))
            slow = here[part] >= LIMITS[part]
            look = {"marker": marker, "rasterized": len(here) > style.MANY}
            drawn = axes.scatter(here["minutes"], here[part], s=18, color=color, linewidth=0, **look)
            runs.mark(drawn, here.assign(doubtful=slow), part, "minutes")
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda value, place: f"{value:g}")
        axes.set(ylim=(0.85, max(2.2, 1.3 * rows["slowdown"].max())), xlabel=text("minutes"))
    grid["", machines[0]].set_ylabel(text("slowdown"))
    words = (text("product"), text("copy"))
    entries = zip(words, parts.values(), "os", strict=True)
    style.legend(figure, [style.dot(color, word, marker) for word, color, marker in entries])
