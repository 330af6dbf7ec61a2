"""Labels next to what they name, without overlap."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from mfulab.lab.report.drawing.style import INK, MUTED, PAPER, Look

Places: TypeAlias = Sequence[tuple[float, float]]
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
    and `y`. Use it with `later`."""
    room = axes.get_window_extent().height * 72 / axes.figure.dpi
    ends = sorted(
        zip(
            x,
            y,
            names,
            colors,
            strict=True,
        ),
        key=lambda end: end[1],
    )
    size = max(SMALLEST, min(USUAL, (room / max(len(ends), 1) - GAP) / LEADING))
    most = int(room / (SMALLEST * LEADING + GAP))
    ends = ends[-most:]
    height = (size * LEADING + GAP) / room
    to_fraction = axes.transData + axes.transAxes.inverted()
    wanted = []
    for x_end, y_end, name, color in ends:
        _, position = to_fraction.transform((x_end, y_end))
        wanted.append((position, (x_end, y_end), name, color))
    wanted.sort()
    top = 1 - height / 2  # highest centre of a label that stays below the panel's title
    placed = top * _apart([end[0] / top for end in wanted], height / top)
    furthest = max((x_end for x_end, *_ in ends), default=0)
    for (_, end, name, color), position in zip(wanted, placed, strict=True):
        # A leader across the panel is dotted, so that it does not look like data.
        dash: object = "-"
        if end[0] != furthest:
            dash = (0, (1, 3))
        leader = {
            **LEADER,
            "linewidth": 0.8,
            "shrinkA": 1,
            "relpos": (0, 0.5),
            "color": color,
            "linestyle": dash,
        }
        axes.annotate(
            name,
            end,
            (1.03, position),
            textcoords="axes fraction",
            annotation_clip=False,
            fontsize=size,
            color=INK,
            va="center",
            arrowprops=leader,
        )


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


def beside_points(
    axes: Axes,
    points: Sequence[tuple[float, float, str]],
    obstacles: Places = (),
    lines: Places = (),
    reach: float | np.ndarray = 4.0,
) -> None:
    """Names points (x, y, name), each at the nearest place free of `obstacles`, `lines` and other
    labels. A label without a free place is omitted. `reach` is the radius of obstacles in points.
    Use it with `later`."""
    renderer = axes.figure.canvas.get_renderer()
    inside = axes.get_window_extent(renderer).extents
    scale = axes.figure.dpi / 72
    taken = [
        _around(axes, obstacles, reach * scale),
        _around(axes, [(x, y) for x, y, _ in points], 4 * scale),
    ]
    for text in axes.texts:
        if text.get_text():
            taken.append(text.get_window_extent(renderer).extents[None])
    crossed = _around(axes, lines, 2 * scale)
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
        label.set_path_effects([withStroke(linewidth=2.5, foreground=PAPER)])
        center = axes.transData.transform((x, y))
        extent = label.get_window_extent(renderer).size + 2 * GAP * scale
        free = _free(
            center,
            extent,
            inside,
            np.vstack([*taken, crossed]),
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


def _around(axes: Axes, points: Places, reach: float | np.ndarray) -> np.ndarray:
    """Squares around points given in data units: x0, y0, x1, y1 in pixels."""
    reach = np.reshape(reach, (-1, 1))
    centers = axes.transData.transform(np.asarray(points, dtype=float).reshape(-1, 2))
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
