"""Labels next to what they name, without overlap."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from mfulab.lab.report.drawing.style import INK, MUTED, PAPER, Look

GAP = 1.5  # points between labels
ALIGNED = {"left": 0.0, "center": 0.5, "right": 1.0}
NEAR = 20  # distance in points above which a label needs a leader
LEADER_START = 8  # distance in points from a mark at which its leader counts
LEADER_STEP = 3  # points of a leader that one box covers
# Offsets (x, y, alignment) of a label in points, nearest first.
PLACES: list[tuple[float, float, str]] = []
for reach in (8, 14, 22, 32, 44, 60, 80):
    PLACES += [(reach, 0, "left"), (-reach, 0, "right")]
    PLACES += [(0, reach + 3, "center"), (0, -reach - 3, "center")]
    PLACES += [(0.8 * reach, reach, "left"), (0.8 * reach, -reach, "left")]
    PLACES += [(-0.8 * reach, reach, "right"), (-0.8 * reach, -reach, "right")]
LEADER: Look = {"arrowstyle": "-", "shrinkB": 4, "gid": "leader"}
# Font sizes in points. If labels do not fit even at SMALLEST, the lowest lines are not named.
USUAL = 10
SMALLEST = 6


LEADING = 1.25  # height of a line ÷ font size
MARGIN = 1.03  # place across a panel of names in its right margin
EARLY = 0.6  # place across a panel up to which a line that ends is named beside its end
OUTLINE = withStroke(linewidth=2.5, foreground=PAPER)  # of names over lines
LineEnd: TypeAlias = tuple[float, tuple[float, float], str, str]  # height, end, name and colour
_waiting: WeakKeyDictionary[Figure, list[Callable[[], object]]] = WeakKeyDictionary()


def later(place: Callable[..., object], axes: Axes, *arguments: object) -> None:
    """Registers a function below, with its arguments, to place labels when `settle` has laid out
    the figure."""
    _waiting.setdefault(axes.figure, []).append(partial(place, axes, *arguments))


def settle(figure: Figure) -> None:
    """Lays out the figure, places the registered labels, and lays it out again. Call it when
    panels, limits and legend are final."""
    engine = figure.get_layout_engine()
    engine.execute(figure)  # `draw_without_rendering` would also draw everything
    waiting = _waiting.pop(figure, [])
    for place in waiting:
        place()
    if waiting:
        engine.execute(figure)


def at_line_ends(
    axes: Axes, x: Iterable[float], y: Iterable[float], names: Iterable[str], colors: Iterable[str]
) -> None:
    """Names lines in the right margin, in order and without overlap. Their last points are at `x`
    and `y`. Lines that end early are named beside their ends. Use it with `later`."""
    to_fraction = axes.transData + axes.transAxes.inverted()
    columns: dict[float, list[LineEnd]] = {}
    for x_end, y_end, name, color in zip(x, y, names, colors, strict=True):
        across, height = to_fraction.transform((x_end, y_end))
        place = MARGIN
        if across < EARLY:
            place = round(across + MARGIN - 1, 3)
        columns.setdefault(place, []).append((height, (x_end, y_end), name, color))
    alone = []
    for place, ends in columns.items():
        if place < MARGIN and len(ends) == 1:
            [(_, (x_end, y_end), name, _)] = ends
            alone.append((x_end, y_end, name))
        else:
            _name_column(axes, place, sorted(ends))
    beside_points(axes, alone)


def _name_column(axes: Axes, place: float, ends: Sequence[LineEnd]) -> None:
    """Names lines, the lowest first, below one another at a place across the panel."""
    room = axes.get_window_extent().height * 72 / axes.figure.dpi
    size = max(SMALLEST, min(USUAL, (room / len(ends) - GAP) / LEADING))
    most = int(room / (SMALLEST * LEADING + GAP))
    ends = ends[-most:]
    height = (size * LEADING + GAP) / room
    top = 1 - height / 2  # highest centre of a label that stays below the panel's title
    placed = top * _apart([end[0] / top for end in ends], height / top)
    for (_, end, name, color), position in zip(ends, placed, strict=True):
        leader = {
            **LEADER,
            "linewidth": 0.8,
            "shrinkA": 1,
            "relpos": (0, 0.5),
            "color": color,
        }
        label = axes.annotate(
            name,
            end,
            (place, position),
            textcoords="axes fraction",
            annotation_clip=False,
            fontsize=size,
            color=INK,
            va="center",
            arrowprops=leader,
        )
        if place < MARGIN:  # within the panel, over lines
            label.set_path_effects([OUTLINE])


def _apart(wanted: Sequence[float], height: float) -> np.ndarray:
    """Returns positions in [0, 1] close to the wanted ones (ascending), at least `height` apart.
    Uses the pool-adjacent-violators algorithm."""
    blocks: list[tuple[float, int]] = []  # (start, members)
    for start in wanted:
        count = 1
        while blocks and _end(blocks[-1], height) > start:
            below, members = blocks.pop()
            # Both blocks move to where their members are closest to their wanted positions.
            shifted = (start - members * height) * count
            start = (below * members + shifted) / (members + count)
            count += members
        blocks.append((start, count))
    positions = []
    for start, members in blocks:
        for index in range(members):
            positions.append(start + index * height)
    lowest = height * np.arange(len(positions))  # with room for the labels below
    highest = 1 - lowest[::-1]  # with room for those above
    return np.maximum(np.minimum(positions, highest), lowest)


def _end(block: tuple[float, int], height: float) -> float:
    """Position after the last member of a block."""
    start, members = block
    return start + members * height


def beside_points(axes: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """Names points (x, y, name), each at the nearest place free of points, the panel's lines and
    other texts. A label without a free place is omitted. Use it with `later`."""
    if not points:
        return
    renderer = axes.figure.canvas.get_renderer()
    inside = axes.get_window_extent(renderer).extents
    scale = axes.figure.dpi / 72
    taken = [
        _squares(axes.transData.transform([point[:2] for point in points]), 4 * scale),
        _squares(_along_lines(axes), 2 * scale),
    ]
    for text in axes.texts:
        if text.get_text():
            taken.append(text.get_window_extent(renderer).extents[None])
    for x, y, name in points:
        label = axes.annotate(
            name,
            (x, y),
            (0, 0),
            textcoords="offset points",
            fontsize=USUAL,
            color=INK,
            va="center",
        )
        label.set_path_effects([OUTLINE])
        center = axes.transData.transform((x, y))
        extent = label.get_window_extent(renderer).size + 2 * GAP * scale
        free = _free(
            center,
            extent,
            inside,
            np.vstack(taken),
            scale,
        )
        if free is None:
            label.remove()
            continue
        (dx, dy, align), boxes = free
        taken.append(boxes)
        label.set(ha=align, position=(dx, dy))
        if abs(dx) + abs(dy) > NEAR:
            _lead(axes, (x, y), (dx, dy))
            label.remove()
            axes.add_artist(label)  # directly after its leader, as the page's script expects


def _lead(axes: Axes, point: tuple[float, float], offset: tuple[float, float]) -> None:
    """Draws a leader from a point towards its label, `offset` points away."""
    dx, dy = offset
    axes.annotate(
        "",
        point,
        (dx * 0.92, dy * 0.85),
        textcoords="offset points",
        arrowprops=LEADER | {"color": MUTED, "linewidth": 0.6, "shrinkA": 0},
    )


def _along_lines(axes: Axes) -> np.ndarray:
    """Places in pixels along all lines of a panel, LEADER_STEP from one another."""
    found = [np.empty((0, 2))]
    for line in axes.lines:
        places = line.get_transform().transform(line.get_xydata())
        places = places[np.isfinite(places).all(axis=1)]
        for start, end in pairwise(places):
            count = int(np.hypot(*(end - start)) / LEADER_STEP) + 2
            found.append(np.linspace(start, end, count))
    return np.vstack(found)


def _squares(centers: np.ndarray, reach: float) -> np.ndarray:
    """Squares around places in pixels: x0, y0, x1, y1."""
    return np.hstack([centers - reach, centers + reach])


def _free(
    center: np.ndarray, size: np.ndarray, inside: np.ndarray, taken: np.ndarray, scale: float
) -> tuple[tuple[float, float, str], np.ndarray] | None:
    """Finds the nearest free place around `center` for a label of `size` pixels. Returns its offset
    and alignment, and the boxes that it occupies. None if no place is free."""
    width, height = size
    for dx, dy, align in PLACES:
        left, middle = center + np.array([dx, dy]) * scale - (width * ALIGNED[align], 0)
        box = np.array([left, middle - height / 2, left + width, middle + height / 2])
        is_outside = (box[:2] < inside[:2]).any() or (box[2:] > inside[2:]).any()
        if is_outside:
            continue
        boxes = box[None]
        # Small boxes along the leader, beyond its point, keep other labels and leaders away.
        if abs(dx) + abs(dy) > NEAR:
            boxes = np.vstack([boxes, _along(center, np.array([dx, dy]), scale)])
        if not _overlap(boxes, taken):
            return (dx, dy, align), boxes
    return None


def _along(center: np.ndarray, offset: np.ndarray, scale: float) -> np.ndarray:
    """Small boxes along the leader from `center` to a label, `offset` points away."""
    length = np.hypot(*offset)
    parts = np.linspace(LEADER_START / length, 0.9, int(length / LEADER_STEP))
    middles = center + np.outer(parts, offset) * scale
    half = LEADER_STEP / 2 * scale
    return np.hstack([middles - half, middles + half])


def _overlap(boxes: np.ndarray, others: np.ndarray) -> bool:
    """True if one of the boxes overlaps one of the others."""
    boxes = boxes[:, None]
    others = others[None]
    starts_before = boxes[..., :2] < others[..., 2:]
    ends_after = others[..., :2] < boxes[..., 2:]
    return bool((starts_before & ends_after).all(axis=-1).any())
