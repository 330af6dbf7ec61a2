"""Autograd's graph of a small network: forward operators, what each saves, and the nodes of the
backward pass."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from mfulab.core.json_text import parse_json
from mfulab.core.parts import Row
from mfulab.lab.report import claims, selection
from mfulab.lab.report.drawing import Figure, Texts, kinds, quantity, style
from mfulab.lab.report.figures.training_phases import COLORS
from mfulab.lab.report.frames import DataFrame, Tables, ok

TOPIC = "flops"
ORDER = 2
CLAIM = claims.COUNTED
# Fields of a node, in the order of the column `graph`.
FIELDS = [
    "node",
    "shape",
    "saved",
    "leaves",
    "forward_flops",
    "backward_flops",
]
WIDE = 2.3  # width of a box
APART = 5.5  # distance between the left edges of the two passes
BEHIND = APART + WIDE  # right edge of the backward pass
STARTS = {"forward": 0.0, "backward": APART}  # left edges of the passes


def rows(tables: Tables) -> DataFrame:
    """Selects a graph and returns a row for each node, in forward order. It is the shortest of
    those with the most kinds of layers with FLOPs, at its largest batch."""
    counted = ok(tables["flops"], "activation_bytes")
    counted = selection.pick(counted[counted["graph"].fillna("") != ""], "recorded")
    counted = counted.assign(nodes=counted["graph"].map(parse_json))
    multiplying = counted["nodes"].map(_multiplying)
    counted = counted.assign(
        kinds=multiplying.map(set).map(len),
        length=counted["nodes"].map(len),
    )
    counted = counted[multiplying.map(len) > 1]
    order = counted.sort_values(
        ["kinds", "length", "model", "batch_size"], ascending=[False, True, True, False]
    )
    nodes = []
    for row in order[:1].to_dict("records"):
        for node in row["nodes"]:
            nodes.append(row | dict(zip(FIELDS, node, strict=True)))
    return DataFrame(nodes, columns=[*counted, *FIELDS[:4]])


def _multiplying(nodes: Sequence[Sequence[Any]]) -> list[str]:
    """Names of the nodes with FLOPs in the backward pass."""
    names = []
    for node in nodes:
        if node[-1]:
            names.append(node[0])
    return names


def finding(rows: DataFrame, text: Texts) -> str:
    """Sentences on FLOPs of the backward and forward pass, on a layer whose backward pass
    multiplies once, and on saved memory."""
    forward = rows["forward_flops"].sum()
    backward = rows["backward_flops"].sum()
    flops = {"forward": forward, "backward": backward, "factor": backward / forward}
    sentences = [text("finding", row=rows.iloc[0], **flops)]
    once = rows[(rows["forward_flops"] > 0) & (rows["backward_flops"] == rows["forward_flops"])]
    if len(once):
        sentences.append(text("once", node=once["node"].iloc[0]))
    return " ".join([*sentences, text("held", row=rows.iloc[0])])


def draw(rows: DataFrame, figure: Figure, text: Texts) -> None:
    """Draws forward nodes downwards on the left, backward nodes upwards on the right, and saved
    shapes between them."""
    style.resize(figure, 1.4 + 0.62 * len(rows))
    axes = figure.subplots()
    numbered = rows.assign(width=WIDE, name=list(map(str, range(len(rows)))))
    for way, start in STARTS.items():
        here = numbered.assign(start=start)
        color = COLORS[f"{way}_ms"]
        kinds.bars(
            axes,
            here,
            "width",
            "name",
            f"{way}_flops",
            start="start",
            color=color,
        )
    for line, row in enumerate(rows.to_dict("records")):
        _name(axes, line, row, "forward", style.ON_DEEP)
        _name(axes, line, row, "backward", style.ON_PALE)
        if line < len(rows) - 1:
            _lead_on(axes, line, row)
        if row["saved"]:
            _write_saved(axes, line, row)
        if row["leaves"]:
            _arrow(axes, (BEHIND + 0.05, line), (BEHIND + 0.4, line))
            axes.text(
                BEHIND + 0.5,
                line,
                _leaves(row["leaves"]),
                va="center",
                fontsize=8,
            )
    heads = {
        "forward": 0,
        "saved": WIDE + 1.1,
        "backward": APART,
        "gradients": BEHIND + 0.5,
    }
    for key, x in heads.items():
        axes.text(
            x,
            -0.75,
            text(key),
            fontweight="bold",
            va="center",
        )
    axes.set(
        xlim=(-0.05, 10.6),
        ylim=(len(rows) - 0.5, -1),
        xticks=[],
        yticks=[],
    )
    axes.set(xlabel="", ylabel="")
    # Not all of the axes is hidden: the page needs its background on narrow screens.
    axes.spines[:].set_visible(False)


def _name(axes: Axes, line: int, row: Row, way: str, ink: str) -> None:
    """Writes a node's name, and its FLOPs if it has any, into its box in one of the passes."""
    words = row["node"].removesuffix("Backward0")
    if row[f"{way}_flops"]:
        words = f"{words}\n{quantity(row[f'{way}_flops'], 'FLOP')}"
    x = STARTS[way] + WIDE / 2
    axes.text(
        x,
        line,
        words,
        ha="center",
        va="center",
        color=ink,
        fontsize=9,
    )


def _lead_on(axes: Axes, line: int, row: Row) -> None:
    """Draws arrows to the next node and back, with the shape that is handed on."""
    x = WIDE / 2
    _arrow(axes, (x, line + 0.36), (x, line + 0.64))
    _arrow(axes, (APART + x, line + 0.64), (APART + x, line + 0.36))
    shape = _shape(row["shape"])
    axes.text(
        x + 0.1,
        line + 0.5,
        shape,
        va="center",
        fontsize=8,
        color=style.MUTED,
    )


def _write_saved(axes: Axes, line: int, row: Row) -> None:
    """Draws an arrow from the forward to the backward node, with what is saved between them."""
    _arrow(axes, (WIDE + 0.05, line), (APART - 0.05, line))
    saved = []
    for name, shape in row["saved"]:
        if shape:
            saved.append(name or _shape(shape))
    x = (WIDE + APART) / 2
    box = style.PAPER_BEHIND | {"pad": 1}
    axes.text(
        x,
        line,
        "\n".join(saved),
        ha="center",
        va="center",
        fontsize=8,
        bbox=box,
    )


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    look = {
        "arrowstyle": "->",
        "color": style.MUTED,
        "shrinkA": 0,
        "shrinkB": 0,
    }
    axes.annotate("", end, start, arrowprops=look)


def _leaves(names: list[str]) -> str:
    """Names of parameters, grouped below the name of their module."""
    of_module: dict[str, list[str]] = {}
    for name in names:
        module, _, own = name.rpartition(".")
        of_module.setdefault(module, []).append(own)
    lines: list[str] = []
    for module, parameters in of_module.items():
        lines += filter(None, (module, ", ".join(parameters)))
    return "\n".join(lines)


def _shape(sides: list[int]) -> str:
    return " × ".join(map(str, sides)) or "1"
