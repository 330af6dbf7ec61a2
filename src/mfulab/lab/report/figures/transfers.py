"""Time of a matmul besides its kernel: memory for its matrices and, on a GPU, their transfers."""

from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, matmuls, style
from mfulab.lab.report.frames import DataFrame, Tables, most, ok, preferred, with_machine

TOPIC, ORDER = "kernels", 4
PARTS = ("allocation_s", "host_to_device_s", "time_s", "device_to_host_s")
COLORS = dict(zip(PARTS, (style.PALETTE[place] for place in (3, 0, 2, 1)), strict=True))
WHOLE = 32  # sides of other sizes are measured for alignment, and their kernels are slower
MOST_LEVEL = 16  # bars whose words fit beside one another


def rows(tables: Tables) -> DataFrame:
    """The fastest kernel of each size on each machine, in the usual precision."""
    timed = most(matmuls.square(with_machine(tables, ok(tables["matmul"], "time_s", "allocation_s"))), ["precision"])
    timed = preferred(timed, timed["n"] % WHOLE == 0)
    return timed.loc[timed.groupby(["machine", "n"])["time_s"].idxmin()].sort_values("n")


def finding(rows: DataFrame, text: Texts) -> str:
    """All that is not the kernel, at both ends of the sizes."""
    rows = preferred(rows, rows["host_to_device_s"].notna())
    here = most(rows, ["machine"]).sort_values("n")
    here = here.assign(share=100 * (1 - here["time_s"] / here[list(PARTS)].sum(axis=1)))
    return text("finding_one" if len(here) == 1 else "finding", small=here.iloc[0], large=here.iloc[-1])


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """A panel a machine; bars are shares of each part, stacked to 100 %, the total time above each."""
    precision = text.name("precision", rows["precision"].iloc[0])
    panels = style.by_machine(figure, rows, lambda here: precision, y=text("share_of_time"), sharey=True)
    turned = 90 if rows.groupby("machine").size().max() * len(panels) > MOST_LEVEL else 0
    parts = {f"{part} %": color for part, color in COLORS.items()}
    words = {"ha": "center", "rotation": turned, "fontsize": 8 if turned else 9}
    for axes, here in panels:
        total = here[list(PARTS)].sum(axis=1)
        shares = here[list(PARTS)].div(total / 100, axis=0).add_suffix(" %")
        here = here.assign(size=here["n"].map("{:g}".format)).join(shares)
        kinds.stacks(axes, here, parts, "size", *PARTS, upright=True)
        for place, seconds in enumerate(total):
            axes.text(place, 102, text("total", time=seconds), **words)
        axes.set(xlabel=text("size"), ylim=(0, 125 if turned else 110), yticks=range(0, 101, 20))
        axes.tick_params(axis="x", labelrotation=turned)
    present = {part: color for part, color in COLORS.items() if rows[part].notna().any()}
    return style.dots(present, text, marker="s")
