"""Time of a matmul outside its kernel: memory for its matrices and, on a GPU, their transfers."""

from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, matmuls, style
from mfulab.lab.report.frames import DataFrame, Tables, ok, preferred, with_machine

TOPIC = "kernels"
ORDER = 4
PARTS = ("allocation_s", "host_to_device_s", "time_s", "device_to_host_s")
COLORS = dict(zip(PARTS, (style.PALETTE[place] for place in (3, 0, 2, 1)), strict=True))
MOST_LEVEL = 16  # bars whose labels need no rotation
CLAIM = claims.largest(PARTS)
REASONS = selection.FIRST_PANEL


def rows(tables: Tables) -> DataFrame:
    """Selects the fastest kernel of each size on each machine, in the most common precision."""
    timed = with_machine(tables, ok(tables["matmul"], "time_s", "allocation_s"))
    timed = selection.largest(matmuls.square(timed), ["precision"])
    timed = selection.pick(timed, "uneven")
    return timed.loc[timed.groupby(["machine", "n"])["time_s"].idxmin()].sort_values("n")


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentence on the longest part besides the kernel, and on the kernel's share at the smallest
    and largest size."""
    rows = preferred(rows, rows["host_to_device_s"].notna())
    here = selection.largest(rows, ["machine"]).sort_values("n")
    parts = _shares(here)
    kernel = parts.pop("time_s %")
    here = here.assign(kernel=kernel, share=100 - kernel)
    small = here.iloc[0]
    longest = parts.loc[small.name].astype(float).idxmax()
    part = longest.removesuffix(" %")
    share = parts.loc[small.name, longest]
    key = "finding_one" if len(here) == 1 else "finding"
    copied = small[["host_to_device_s", "device_to_host_s"]].notna().any()
    whole = text("with_copies" if copied else "without_copies")
    values = {"small": small, "large": here.iloc[-1], "part": text(part), "share": share}
    return text(key, whole=whole, **values)


def _shares(here: DataFrame) -> DataFrame:
    """Each part in percent of their sum."""
    parts = here[[*PARTS]]
    return parts.div(parts.sum(axis=1) / 100, axis=0).add_suffix(" %")


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Draws a panel for each machine, with bars of all parts stacked to 100 % and the total time
    above."""
    precision = text.name("precision", rows["precision"].iloc[0])

    def titled(here: DataFrame) -> str:
        return precision

    panels = style.by_machine(figure, rows, titled, y=text("share_of_time"), sharey=True)
    bars = rows.groupby("machine").size().max() * len(panels)
    is_tight = bars > MOST_LEVEL
    turned = 90 if is_tight else 0
    parts = {f"{part} %": color for part, color in COLORS.items()}
    words = {"ha": "center", "rotation": turned, "fontsize": 8 if is_tight else 9}
    for axes, here in panels:
        total = here[[*PARTS]].sum(axis=1)
        sizes = here["n"].map("{:g}".format)
        shown = here.assign(size=sizes).join(_shares(here))
        kinds.stacks(axes, shown, parts, "size", *PARTS, upright=True)
        for index, seconds in enumerate(total):
            axes.text(index, 102, text("total", time=seconds), **words)
        top = 125 if is_tight else 110
        axes.set(xlabel=text("size"), ylim=(0, top), yticks=range(0, 101, 20))
        axes.tick_params(axis="x", labelrotation=turned)
    present = {}
    for part, color in COLORS.items():
        if rows[part].notna().any():
            present[part] = color
    return style.dots(present, text, marker="s")
