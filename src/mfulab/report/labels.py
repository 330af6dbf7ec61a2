"""Labels that stand beside what they name and never on one another."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from mfulab.report.style import INK, MUTED

GAP = 1.5  # points between two labels
NEAR = 20  # points from which on a label needs a leader
SMALLEST = 6  # font size in points; where even these do not fit, the lowest lines go unnamed


def at_line_ends(axes: Axes, ends: Sequence[tuple[float, float, str, str]], size: float = 10) -> list[Annotation]:
    """Names lines in the right margin: (x, y, name, colour) of each line's last point, in data units.

    Labels keep the order of the lines' ends and are pushed apart until none touches another; a thin leader ties each to
    its line. Call it when limits and layout are final.
    """
    axes.figure.canvas.draw()
    room = axes.get_window_extent().height * 72 / axes.figure.dpi
    size = max(SMALLEST, min(size, (room / max(len(ends), 1) - GAP) / 1.25))
    ends = sorted(ends, key=lambda end: end[1])[-int(room / (SMALLEST * 1.25 + GAP)) :]
    height = (size * 1.25 + GAP) / room
    to_fraction = axes.transData + axes.transAxes.inverted()
    wanted = sorted(((to_fraction.transform((x, y))[1], (x, y), name, color) for x, y, name, color in ends))
    placed = _apart([want for want, *_ in wanted], height)
    return [
        axes.annotate(
            name,
            end,
            (1.03, place),
            textcoords="axes fraction",
            fontsize=size,
            color=INK,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": color,
                "linewidth": 0.8,
                "shrinkA": 1,
                "shrinkB": 4,
                "relpos": (0, 0.5),
            },
        )
        for (_, end, name, color), place in zip(wanted, placed, strict=True)
    ]


def _apart(wanted: Sequence[float], height: float) -> list[float]:
    """Positions near the wanted ones (ascending), `height` apart or more and within [0, 1] where that many fit.

    Neighbours that touch become a block centred on the mean of what its members want (pool adjacent violators).
    """
    blocks: list[tuple[float, int]] = []  # (start, members)
    for want in wanted:
        block = (want, 1)
        while blocks and blocks[-1][0] + blocks[-1][1] * height > block[0]:
            start, members = blocks.pop()
            count = members + block[1]
            block = ((start * members + (block[0] - members * height) * block[1]) / count, count)
        blocks.append(block)
    positions = [start + index * height for start, members in blocks for index in range(members)]
    for index in range(len(positions) - 1, -1, -1):
        limit = positions[index + 1] - height if index + 1 < len(positions) else 1.0
        positions[index] = min(positions[index], limit)
    for index, position in enumerate(positions):
        limit = positions[index - 1] + height if index else 0.0
        positions[index] = max(position, limit)
    return positions


def beside_points(
    axes: Axes,
    points: Sequence[tuple[float, float, str]],
    obstacles: Sequence[tuple[float, float]] = (),
    size: float = 10,
) -> list[Annotation]:
    """Names points of a scatter: (x, y, name) in data units. Each label takes the nearest free place around its point.

    `obstacles` are points that no label may cover. Call it when limits and layout are final; a label that finds no
    place is left out rather than drawn over another.
    """
    axes.figure.canvas.draw()
    renderer = axes.figure.canvas.get_renderer()
    inside = axes.get_window_extent(renderer)
    scale = axes.figure.dpi / 72
    taken = [_around(axes.transData.transform(point), 4 * scale) for point in [*obstacles, *(p[:2] for p in points)]]
    labels = []
    for x, y, name in points:
        label = axes.annotate(name, (x, y), (0, 0), textcoords="offset points", fontsize=size, color=INK, va="center")
        center = axes.transData.transform((x, y))
        for dx, dy, align in _places():
            label.set_ha(align)
            label.xyann = (dx, dy)
            extent = label.get_window_extent(renderer).padded(GAP * scale)
            leader = _leader_boxes(center, dx * scale, dy * scale) if abs(dx) + abs(dy) > NEAR else []
            clear = not any(box.overlaps(other) for box in (extent, *leader) for other in taken)
            if clear and _within(extent, inside):
                taken += [extent, *leader]
                labels.append(label)
                if leader:
                    _draw_leader(axes, x, y, dx, dy)
                break
        else:
            label.remove()
    return labels


def _leader_boxes(center: Sequence[float], dx: float, dy: float) -> list[Bbox]:
    """Small boxes along the leader, from where it has left its point, so that nothing else is put on it."""
    steps = [step / 10 for step in range(3, 10)]
    return [_around((center[0] + dx * step, center[1] + dy * step), 1) for step in steps]


def _places() -> list[tuple[float, float, str]]:
    """Offsets in points with alignment, nearest first."""
    places: list[tuple[float, float, str]] = []
    for reach in (8, 14, 22, 32, 44):
        places += [(reach, 0, "left"), (-reach, 0, "right"), (0, reach + 3, "center"), (0, -reach - 3, "center")]
        places += [(0.8 * reach, up * reach, "left") for up in (1, -1)]
        places += [(-0.8 * reach, up * reach, "right") for up in (1, -1)]
    return places


def _draw_leader(axes: Axes, x: float, y: float, dx: float, dy: float) -> None:
    axes.annotate(
        "",
        (x, y),
        (dx * 0.92, dy * 0.85),
        textcoords="offset points",
        arrowprops={"arrowstyle": "-", "color": MUTED, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4},
    )


def _around(center: Sequence[float], reach: float) -> Bbox:
    return Bbox.from_extents(center[0] - reach, center[1] - reach, center[0] + reach, center[1] + reach)


def _within(inner: Bbox, outer: Bbox) -> bool:
    return inner.x0 >= outer.x0 and inner.x1 <= outer.x1 and inner.y0 >= outer.y0 and inner.y1 <= outer.y1
