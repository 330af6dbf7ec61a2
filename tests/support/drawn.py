"""Tables for figures, and the texts of drawn figures, including overlaps between them."""

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from mfulab.lab.report import frames

ENVIRONMENT = {
    "hardware": "here",
    "recorded": "False",
    "device": "cpu",
    "device_name": "Invented Xeon",
}

STEP = {
    "status": "ok",
    "hardware": "here",
    "recorded": "False",
    "precision": "fp32",
    "execution": "eager",
}


def step(mode: str = "training", **columns: object) -> dict[str, object]:
    """Row of an eager step in fp32 on the invented machine."""
    return {**STEP, "mode": mode, "workload": mode, **columns}


def repeatable(row: Mapping) -> dict[str, object]:
    """The row with an interval of ±0.1 % around its time, unless it has one."""
    if not row.get("time_s"):
        return dict(row)
    time_s = float(row["time_s"])
    return {"time_ci_low_s": 0.999 * time_s, "time_ci_high_s": 1.001 * time_s, **row}


def tables(folder: Path, *profile: dict, **others: Iterable[dict]) -> frames.Tables:
    """Tables of the invented machine, read back from rows given as dictionaries. Steps without an
    interval have a narrow one, unless it is given as empty."""
    profile = tuple(map(repeatable, profile))
    rows_by_table = {"profile": profile, "environment": [ENVIRONMENT], **others}
    for name, rows in rows_by_table.items():
        pd.DataFrame(list(rows) or [{"run": ""}]).to_csv(folder / f"{name}.csv", index=False)
    return frames.read(folder)[0]


def texts(figure: Figure) -> list[tuple[str, Bbox]]:
    """Every drawn text with its bounding box in pixels. Omits slanted texts, whose boxes are too
    large."""
    drawn: list[tuple[str, Bbox]] = []
    original = Text.draw

    def draw(self: Text, renderer: object) -> None:
        if self.get_visible() and self.get_text().strip() and self.get_rotation() % 90 == 0:
            # Text's method, as the extent of an annotation includes its leader line.
            drawn.append((self.get_text(), Text.get_window_extent(self, renderer)))
        original(self, renderer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", draw)
        figure.canvas.draw()
    return drawn


def overlaps(figure: Figure, drawn: list[tuple[str, Bbox]] | None = None) -> list[tuple[str, str]]:
    """Pairs of overlapping texts. `drawn` are the figure's `texts`, if known."""
    placed = [(words, box.padded(-1)) for words, box in drawn or texts(figure)]
    return [
        (a, b)
        for (a, box_a), (b, box_b) in itertools.combinations(placed, 2)
        if box_a.overlaps(box_b)
    ]
