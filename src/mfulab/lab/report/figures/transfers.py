"""Time of a matmul outside its kernel: memory for its matrices and, on a GPU, their transfers."""

from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Figure, Legend, Texts, kinds, matmuls, style
from mfulab.lab.report.frames import DataFrame, Tables, ok, preferred, with_machine

TOPIC = "kernels"
ORDER = 4
COLORS = {
    "allocation_s": style.PALETTE[3],
    "host_to_device_s": style.PALETTE[0],
    "time_s": style.PALETTE[2],
    "device_to_host_s": style.PALETTE[1],
}
MOST_LEVEL = 16  # bars whose labels need no rotation
TIMES = tuple(COLORS)  # parts of the whole time of a matmul, whose kernel takes `time_s`
CLAIM = claims.largest(TIMES)
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
    shares = _shares(here)
    kernel = shares["time_s %"]
    here = here.assign(kernel=kernel, share=100 - kernel)
    small = here.iloc[0]
    beside_kernel = shares.loc[small.name].drop("time_s %").astype(float)
    longest = str(beside_kernel.idxmax())
    part = longest.removesuffix(" %")
    key = "finding"
    if len(here) == 1:
        key = "finding_one"
    whole = "without_copies"
    if small[["host_to_device_s", "device_to_host_s"]].notna().any():
        whole = "with_copies"
    return text(
        key,
        whole=text(whole),
        small=small,
        large=here.iloc[-1],
        part=text(part),
        share=beside_kernel[longest],
    )


def _shares(here: DataFrame) -> DataFrame:
    """Each part in percent of their sum."""
    parts = here[[*TIMES]]
    percent = parts.sum(axis=1) / 100
    return parts.div(percent, axis=0).add_suffix(" %")


def draw(rows: DataFrame, figure: Figure, text: Texts) -> Legend:
    """Draws a panel for each machine, with bars of all parts stacked to 100 % and the total time
    above."""
    precision = text.name("precision", rows["precision"].iloc[0])

    def titled(here: DataFrame) -> str:
        return precision

    panels = style.by_machine(
        figure,
        rows,
        titled,
        y=text("share_of_time"),
        sharey=True,
    )
    bars = rows["machine"].value_counts().max() * len(panels)
    rotation, fontsize, top = 0, 9, 110
    if bars > MOST_LEVEL:
        rotation, fontsize, top = 90, 8, 125
    parts = {f"{part} %": color for part, color in COLORS.items()}
    for axes, here in panels:
        sizes = here["n"].map("{:g}".format)
        shown = here.assign(size=sizes).join(_shares(here))
        kinds.stacks(axes, shown, parts, "size", *TIMES, upright=True)
        for index, seconds in enumerate(here[[*TIMES]].sum(axis=1)):
            total = text("total", time=seconds)
            axes.text(
                index,
                102,
                total,
                ha="center",
                rotation=rotation,
                fontsize=fontsize,
            )
        axes.set(
            xlabel=text("size"),
            ylim=(0, top),
            yticks=range(0, 101, 20),
        )
        axes.tick_params(axis="x", labelrotation=rotation)
    present = {}
    for part, color in COLORS.items():
        if rows[part].notna().any():
            present[part] = color
    return style.dots(present, text, marker="s")
