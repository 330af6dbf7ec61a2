"""Marks of runs: each figure has titles and hollow marks, or says why it draws no run."""

import math
from collections.abc import Iterator

import pandas as pd
import pytest
from matplotlib.artist import Artist
from matplotlib.collections import Collection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from support import report_rows
from support.slow import few

from mfulab.core.language import Texts
from mfulab.lab.report import claims, figures, frames, trust
from mfulab.lab.report.drawing import kinds, labels, runs, style

NAMES = list(figures.modules())
CAN_BE_DOUBTED = {"profile", "matmul"}  # their rows hold intervals and flags
NO_DOUBTS = {
    "ceilings",
    "computational_graph",
    "counter_deviation",
    "flops_by_layer",
    "known_truth",
    "latency_pyramid",
    "memory_hierarchy",
    "model_parallel",
    "number_formats",
    "quality",
    "serving",
}  # none of them


def titles(artist: Artist) -> list[str]:
    """The titles that an artist was given, a mark each."""
    urls = artist.get_urls() if isinstance(artist, Collection) else [artist.get_url()]
    return [
        url.removeprefix(runs.MARK).partition(":")[2]
        for url in urls or ()
        if (url or "").startswith(runs.MARK)
    ]


def hollow(artist: Artist) -> bool:
    """True if an artist has a mark whose inside is the paper's."""
    faces = artist.get_facecolor() if titles(artist) else []
    faces = [faces] if isinstance(artist, Rectangle) and titles(artist) else faces
    return any(face[3] and to_hex(face) == style.PAPER for face in faces)


def drawn(figure: Figure) -> Iterator[Artist]:
    for axes in figure.axes:
        yield from (*axes.lines, *axes.collections, *axes.patches)


def in_doubt(rows: pd.DataFrame) -> pd.DataFrame:
    unsteady = trust.with_doubts(rows.assign(steady=False, replicates=3.0))
    return unsteady.assign(**{trust.REACH: math.inf})


@pytest.fixture(scope="module")
def doubted(invented, recorded) -> tuple[frames.Tables, frames.Tables]:
    """Tables of invented machines, and of recorded ones for figures that compare what those did not
    run.

    All of their runs are unsteady, and their times may be off by any factor: whatever compares them
    could turn.
    """
    found = [
        tables | {name: in_doubt(tables[name]) for name in CAN_BE_DOUBTED}
        for tables in (invented, recorded)
    ]
    return found[0], found[1] | {"published": found[0]["published"]}


@pytest.mark.parametrize("name", few([*NAMES[::4], *NAMES[1::4], *NAMES[2::4], *NAMES[3::4]], 6))
def test_a_figure_tells_its_runs_and_leaves_doubtful_ones_hollow(doubted, name, monkeypatch):
    module, text = figures.modules()[name], Texts("en", name)
    several = (report_rows.classroom(doubted[0]), report_rows.cards(doubted[0]))
    rows = next((rows for tables in (*doubted, *several) if len(rows := module.rows(tables))), None)
    assert rows is not None, "neither the invented machines nor the recorded ones have rows for it"
    for each in ("settle", "at_line_ends", "beside_points"):
        monkeypatch.setattr(labels, each, lambda *arguments, **options: [])
    figure = figures.render(name, {}, rows=rows).figure
    artists = list(drawn(figure))
    assert any(map(titles, artists))
    if name in NO_DOUBTS:
        return
    assert trust.doubtful(rows).any()
    claim = getattr(module, "CLAIM", None)
    can_turn = claim is not claims.COUNTED
    if claim is not None and can_turn:
        assert trust.REACH in trust.with_doubts(rows), "without it doubts leave no interval"
    assert any(map(hollow, artists)) == can_turn
    entries = [words.get_text() for legend in figure.legends for words in legend.get_texts()]
    assert (text("hollow") in entries) == can_turn


ROWS = pd.DataFrame(
    {"run": ["model=one", "model=two"], "time_s": [1.0, 2.0], "doubtful": [True, False]}
)


@pytest.mark.parametrize("kind", [kinds.points, kinds.bars])
def test_only_the_doubtful_mark_is_hollow(kind):
    axes = Figure().subplots()
    kind(axes, ROWS, "time_s", "run", "time_s", color="red")
    artists = list(drawn(axes.figure))
    told = [title for artist in artists for title in titles(artist)]
    assert told == ["one: time_s 1.00", "two: time_s 2.00"]
    [emptied] = [artist for artist in artists if hollow(artist)]
    if isinstance(emptied, Rectangle):
        assert emptied.get_width() == 1
    else:
        assert [to_hex(face) for face in emptied.get_facecolor()] == [style.PAPER, "#ff0000"]
        assert list(emptied.get_linewidths()) == [runs.EDGE, 0]


def test_sound_marks_stay_full_and_need_no_entry():
    axes, sound = Figure().subplots(), ROWS.assign(doubtful=False)
    kinds.points(axes, sound, "time_s", "time_s")
    kinds.bars(axes, sound, "time_s", "run")
    assert not any(map(hollow, drawn(axes.figure)))
    assert runs.key(axes.figure, Texts()) == []
    kinds.bars(axes, ROWS, "time_s", "run")
    assert len(runs.key(axes.figure, Texts())) == 1


def test_cells_have_titles_and_doubtful_ones_a_rim():
    axes = Figure().subplots()
    axes.text(0.5, 0.5, "1")
    axes.text(1.5, 0.5, "2", color=style.ON_DEEP)
    runs.cells(axes, ROWS, [0.5, 1.5], [0.5, 0.5], "time_s")
    [squares] = axes.collections
    assert len(titles(squares)) == 2
    widths = [path.get_extents().width for path in squares.get_paths()]
    assert widths == pytest.approx([2 * runs.RIM[0], 1.0])
    assert [words.get_color() for words in axes.texts] == [style.INK, style.ON_DEEP]


def test_a_figure_s_own_judgement_stays():
    """A figure that keeps few columns judges its rows before it drops the others."""
    assert trust.doubtful(ROWS).tolist() == [True, False]
    bare = ROWS.drop(columns=runs.DOUBTFUL).assign(status="ok", mfu_percent=[30.0, 120.0])
    assert trust.doubtful(bare).tolist() == [False, True]
