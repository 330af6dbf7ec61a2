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
    ends = sorted(zip(x, y, names, colors, strict=True), key=lambda end: end[1])
    size = max(SMALLEST, min(USUAL, (room / max(len(ends), 1) - GAP) / 1.25))
    ends = ends[-int(room / (SMALLEST * 1.25 + GAP)) :]
    height = (size * 1.25 + GAP) / room
    to_fraction = axes.transData + axes.transAxes.inverted()
    wanted = sorted(
        ((to_fraction.transform((x, y))[1], (x, y), name, color) for x, y, name, color in ends)
    )
    top = 1 - height / 2  # highest centre of a label that stays below the panel's title
    placed = top * _apart([position / top for position, *_ in wanted], height / top)
    look: Look = {"textcoords": "axes fraction", "annotation_clip": False}
    look |= {"fontsize": size, "color": INK, "va": "center"}
    leader = LEADER | {"linewidth": 0.8, "shrinkA": 1, "relpos": (0, 0.5)}
    furthest = max((end[0] for _, end, *_ in wanted), default=0)
    for (_, end, name, color), position in zip(wanted, placed, strict=True):
        # A leader across the panel is dotted, so that it does not look like data.
        arrow = leader | {"color": color, "linestyle": "-"}
        if end[0] != furthest:
            arrow["linestyle"] = (0, (1, 3))
        axes.annotate(name, end, (1.03, position), **look, arrowprops=arrow)


def _apart(wanted: Sequence[float], height: float) -> np.ndarray:
    """Returns positions in [0, 1] close to the wanted ones (ascending), at least `height` apart.
    Uses the pool-adjacent-violators algorithm."""
    blocks: list[tuple[float, int]] = []  # (start, members)
    for start in wanted:
        count = 1
        while blocks and blocks[-1][0] + blocks[-1][1] * height > start:
            below, members = blocks.pop()
            start = (below * members + (start - members * height) * count) / (members + count)
            count += members
        blocks.append((start, count))
    positions = []
    for start, members in blocks:
        for index in range(members):
            positions.append(start + index * height)
    least = height * np.arange(len(positions))  # room for labels below; reversed, for those above
    return np.maximum(np.minimum(positions, 1 - least[::-1]), least)


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
    named = _around(axes, [point[:2] for point in points], 4 * scale)
    taken = np.vstack([_around(axes, obstacles, reach * scale), named])
    texts = [text.get_window_extent(renderer).extents for text in axes.texts if text.get_text()]
    if texts:
        taken = np.vstack([taken, *texts])
    crossed = _around(axes, lines, 2 * scale)
    for x, y, name in points:
        label = axes.annotate(
            name, (x, y), (0, 0), textcoords="offset points", fontsize=USUAL, color=INK, va="center"
        )
        label.set_path_effects([withStroke(linewidth=2.5, foreground=PAPER)])
        center = axes.transData.transform((x, y))
        extent = label.get_window_extent(renderer).size + 2 * GAP * scale
        free = _free(center, extent, inside, np.vstack([taken, crossed]), scale)
        if free is None:
            label.remove()
            continue
        (dx, dy, align), boxes = free
        taken = np.vstack([taken, boxes])
        label.set(ha=align, position=(dx, dy))
        if abs(dx) + abs(dy) > NEAR:
            leader = LEADER | {"color": MUTED, "linewidth": 0.6, "shrinkA": 0}
            axes.annotate(
                "", (x, y), (dx * 0.92, dy * 0.85), textcoords="offset points", arrowprops=leader
            )
            label.remove()
            axes.add_artist(label)  # directly after its leader, as the page's script expects


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
        extent = (left, middle - height / 2, left + width, middle + height / 2)
        boxes = np.array([extent])
        # Small boxes along the leader, beyond its point, keep other labels and leaders away.
        if abs(dx) + abs(dy) > NEAR:
            length = np.hypot(dx, dy)
            parts = np.linspace(LEADER_START / length, 0.9, int(length / LEADER_STEP))
            leader = center + np.outer(parts, (dx, dy)) * scale
            half = LEADER_STEP / 2 * scale
            boxes = np.vstack([boxes, np.hstack([leader - half, leader + half])])
        if (np.array(extent[:2]) < inside[:2]).any() or (np.array(extent[2:]) > inside[2:]).any():
            continue
        wanted = boxes[:, None]
        others = taken[None]
        overlaps = (wanted[..., :2] < others[..., 2:]) & (others[..., :2] < wanted[..., 2:])
        if not overlaps.all(axis=-1).any():
            return (dx, dy, align), boxes
    return None
