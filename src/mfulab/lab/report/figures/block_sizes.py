"""Speed of one kernel over its thread blocks or tiles."""

from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Figure, Texts, kinds, significant
from mfulab.lab.report.frames import DataFrame, Tables, highest, lowest, ok, with_machine

TOPIC = "kernels"
ORDER = 3
FEWEST = 4  # block sizes of a figure
SIDES = r"(?P<block_x>[\d.]+)(?:[^\d.]+(?P<block_y>[\d.]+))?"


def rows(tables: Tables) -> DataFrame:
    """Selects the kernel, size and precision with the most block sizes on one machine, and adds the
    sides of blocks."""
    timed = with_machine(tables, ok(tables["matmul"], "tflop_s"))
    timed = timed.join(timed["block"].str.extract(SIDES).astype(float)).dropna(subset=["block_x"])
    timed = timed.assign(block_y=timed["block_y"].fillna(1.0))
    keys = ["machine", "kernel", "size", "precision"]
    blocks = timed.groupby(["recorded", *keys])["block"].transform("nunique")
    chosen = selection.pick(timed[blocks >= FEWEST], "recorded")
    chosen = selection.largest(chosen, keys, "block")
    sizes = [f"{size}³" if size.isdigit() else size for size in chosen["size"]]
    return chosen.assign(size=sizes)


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentence on the best and the worst block size."""
    best = highest(rows, "tflop_s")
    worst = lowest(rows, "tflop_s")
    factor = best["tflop_s"] / worst["tflop_s"]
    key = "finding_one"
    if claims.differs(worst, best, "tflop_s"):
        key = "finding"
    tied = 1 + len(claims.ties(rows, best, "tflop_s"))
    return text(key, best=best, worst=worst, factor=factor, tied=tied)


def draw(rows: DataFrame, figure: Figure, text: Texts) -> None:
    """Draws a heat map of GFLOP/s, with the first side of blocks across and the second down."""
    fastest = rows.sort_values("tflop_s", ascending=False).drop_duplicates(["block_x", "block_y"])
    table = fastest.pivot_table(index="block_y", columns="block_x", values="tflop_s") * 1e3
    axes = figure.subplots()
    kinds.cells(
        axes,
        table,
        table.map(significant),
        fastest,
        "block_x",
        "block_y",
        "tflop_s",
        "time_s",
        small=12,
        cbar_kws={"label": "GFLOP/s"},
    )
    axes.invert_yaxis()
    for axis in (axes.xaxis, axes.yaxis):
        sides = [label.get_text().removesuffix(".0") for label in axis.get_ticklabels()]
        axis.set_ticklabels(sides)
    first = rows.iloc[0]
    precision = text.name("precision", first["precision"])
    title = " · ".join([first["kernel"], first["size"], precision, first["machine"]])
    axes.set(
        title=title,
        xlabel=text("block_x"),
        ylabel=text("block_y"),
    )
