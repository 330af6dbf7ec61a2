"""Slides of a text: which figures, in what order, 16:9 with their sentence."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pandas as pd
import pytest
import yaml
from matplotlib.text import Text
from PIL import Image
from support.said import refused
from support.slow import few

from mfulab.cli.main import main
from mfulab.core.errors import ConfigurationError
from mfulab.lab.planning.keys import Report
from mfulab.lab.report import figures, slides
from mfulab.lab.report.drawing import style

ROOT = Path(__file__).parents[3]
TOPICS = ROOT / "docs" / "seminar.yaml"
TEXTS = [
    text for each in get_args(Report.model_fields["text"].annotation) for text in get_args(each)
]


def test_the_texts_to_choose_are_those_of_the_topics():
    assert [name.lower() for name in yaml.safe_load(TOPICS.read_text())] == TEXTS
    for text in TEXTS:
        assert len(slides.chosen(TOPICS, text)) > 3
    with refused(ConfigurationError, "unknown_choice_near", value="labs", near="lab"):
        slides.chosen(TOPICS, "labs")


def listed(folder, *items: dict[str, str]) -> Path:
    """A file of topics of one text; each item names figures by `where`."""
    topics = folder / "topics.yaml"
    lines = [{"topic": str(place), "state": "works", **item} for place, item in enumerate(items)]
    topics.write_text(yaml.safe_dump({"Nobody": lines}))
    return topics


def test_figures_come_in_the_order_of_the_topics_each_once(tmp_path):
    topics = listed(
        tmp_path,
        {"where": "`roofline`", "state": "gpu: no rows"},
        {"where": "figure `ceilings`; `roofline` and `nothing`"},
        {"where": "`ceilings`", "shown": "decoding cell-01"},
    )
    chosen = slides.chosen(topics, "nobody")
    assert list(chosen.items()) == [("roofline", "no rows"), ("ceilings", ""), ("decoding", "")]


def save(tables: dict, folder: Path, language: str) -> Path:
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)
    names = ("roofline", "pruning", "ceilings")
    topics = listed(folder, *({"where": f"`{name}`"} for name in names))
    out = folder / "out"
    given = ["--topics", str(topics), "--tables", str(folder), "--out", str(out)]
    assert not main(["slides", "nobody", *given, "--language", language])
    return out


@pytest.mark.parametrize("language", few(["ko", "en"]))
def test_a_folder_a_device_of_slides_that_the_last_row_can_read(tmp_path, invented, language):
    out = save(invented, tmp_path, language)
    devices = [path for path in out.iterdir() if path.is_dir()]
    gpus, cpus = slides.shown_devices(invented)
    assert {path.name for path in devices} == {*gpus, *cpus}
    drawn = [{path.stem.partition("_")[2] for path in (out / name).glob("*.png")} for name in gpus]
    for name in cpus:  # what no GPU has
        own = {path.stem.partition("_")[2] for path in (out / name).glob("*.png")}
        assert not own & set().union(*drawn)
    devices = [path for path in devices if path.name in (gpus or cpus)]
    for device in devices:
        missing = (device / slides.MISSING).read_text()
        assert missing.startswith("pruning: ")
        pictures = sorted(device.glob("*.png"))
        assert pictures
        for path in pictures:
            assert Image.open(path).size == (1920, 1080)
        for path in [device / slides.DECK]:
            left, low, right, high = map(
                float, re.search(rb"/MediaBox \[([^\]]+)\]", path.read_bytes())[1].split()
            )
            assert (right - left) / (high - low) == pytest.approx(16 / 9, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("language", "place", "every"), few([("ko", 0, 4), ("en", 0, 1), ("ko", -1, 1)])
)
def test_no_letter_is_below_24_pixels_and_no_legend_is_cut_or_covers(
    invented, language, place, every
):
    """By day of every fourth figure."""
    gpus, cpus = slides.shown_devices(invented)
    tables = slides.only(invented, [*gpus, *cpus][place])
    legends = 0
    for name, module in [*figures.modules().items()][::every]:
        rows = slides.rows_of(module, tables)
        drawn = figures.render(name, tables, language, rows, for_slide=True)
        if drawn is None:
            continue
        letters = [words for words in drawn.figure.findobj(Text) if words.get_text().strip()]
        shown = [words for words in letters if words.get_gid() != "provenance"]
        smallest = min(words.get_fontsize() for words in shown)
        assert smallest / 72 * slides.PIXELS / slides.WIDTH >= 24, name
        below = slides.HEIGHT - drawn.figure.get_figheight()
        assert below > slides.LINES * 1.2 * slides.SENTENCE / 72
        tops = [axes.get_tightbbox().y1 for axes in drawn.figure.axes]
        for legend in drawn.figure.legends:
            place = legend.get_window_extent()
            assert place.x1 <= drawn.figure.bbox.x1, name
            assert place.y0 > max(tops) - 12, name
            legends += 1
    assert legends > 10 / every


@pytest.mark.parametrize(
    ("finding", "lines", "ends"),
    [
        ("One.", 1, "One."),
        ("One. Two. Three.", 1, "Three."),
        (f"{'word ' * 15}end. {'more ' * 15}end.", 2, "more end."),
        (f"{'word ' * 15}end. {'more ' * 30}end.", 1, "word end."),
        (f"{'word ' * 40}end. {'more ' * 40}end.", 3, "word end."),
        (f"{'word ' * 100}end.", 3, "…"),
        ("", 0, ""),
    ],
)
def test_a_slide_s_sentence_has_three_lines_at_most(finding, lines, ends):
    words = slides.sentence(finding)
    assert len(words.splitlines()) == lines
    assert words.endswith(ends)


def test_a_device_has_its_own_rows_and_a_text_its_own_model_where_it_makes_a_figure(invented):
    gpus, cpus = slides.shown_devices(invented)
    kept = slides.only(invented, [*gpus, *cpus][0])
    assert set(kept["profile"]["hardware"]) <= {[*gpus, *cpus][0]}
    module = figures.modules()["time_by_batch_size"]
    whole = slides.rows_of(module, kept)
    for model in whole["model"].unique():
        assert set(slides.rows_of(module, kept, [model])["model"]) == {model}
    assert len(slides.rows_of(module, kept, ["none such"])) == len(whole)
    formats = slides.only(invented, "a device without rows")["formats"]
    assert len(formats) == len(invented["formats"]) > 1


def stand_in(rows: pd.DataFrame, *reasons: str) -> SimpleNamespace:
    """A figure's module that draws these rows."""
    return SimpleNamespace(rows=lambda _: rows, TOPIC="memory", REASONS=reasons)


def test_a_slide_leaves_doubtful_rows_out_where_others_are_left():
    rows = pd.DataFrame({"model": ["resnet18", "spinning", "gpt2"], "impossible": False})
    for doubtful, left in (([0, 0, 1], 2), ([0, 1, 1], 3), ([0, 0, 0], 3)):
        judged = rows.assign(doubtful=[bool(each) for each in doubtful])
        assert len(slides.rows_of(stand_in(judged, "doubtful"), {})) == left
        assert len(slides.rows_of(stand_in(judged), {})) == 3


def test_a_slide_of_loads_alone_is_none_unless_its_figure_is_about_loads():
    rows = pd.DataFrame({"model": ["tiny_kernels", "spinning"], "doubtful": False})
    assert slides.rows_of(stand_in(rows, "synthetic"), {}).empty
    assert len(slides.rows_of(stand_in(rows, "doubtful"), {})) == 2


def test_every_figure_of_a_text_is_one():
    found = {name for text in TEXTS for name in slides.chosen(TOPICS, text)}
    assert found <= set(figures.modules())


@pytest.mark.parametrize("width", range(12, 40, 3))
def test_no_line_begins_with_a_percent_sign(width):
    text = "the furthest, thop on gpt2, is off by −73 % of 174 GFLOP, and 8.3 % to 59 % more"
    lines = style.wrapped(text, width).splitlines()
    assert not any(line.startswith("%") for line in lines)
    assert " ".join(lines) == text
