"""Slides of a text: which figures, in what order, 16:9 with their sentence; figures without rows are named."""

import re
from pathlib import Path
from typing import get_args

import pytest
import yaml
from PIL import Image

from mfulab.cli.main import main
from mfulab.core.errors import ConfigurationError
from mfulab.lab.planning.keys import Report
from mfulab.lab.report import figures, slides

ROOT = Path(__file__).parents[3]
TOPICS = ROOT / "docs" / "seminar.yaml"
TEXTS = [text for each in get_args(Report.model_fields["text"].annotation) for text in get_args(each)]


def test_the_texts_to_choose_are_those_of_the_topics():
    assert [name.lower() for name in yaml.safe_load(TOPICS.read_text())] == TEXTS
    for text in TEXTS:
        assert len(slides.chosen(TOPICS, text)) > 3
    with pytest.raises(ConfigurationError, match=r"text=labs: unknown\. Choices: lab, kernels"):
        slides.chosen(TOPICS, "labs")


def test_figures_come_in_the_order_of_the_topics_each_once(tmp_path):
    topics = tmp_path / "topics.yaml"
    where = ["`roofline`", "figure `ceilings`; `roofline` and `nothing`", "`ceilings`"]
    topics.write_text(yaml.safe_dump({"Lab": [{"topic": each, "where": each, "state": each} for each in where]}))
    assert slides.chosen(topics, "lab") == {"roofline": where[0], "ceilings": where[1]}


def test_a_folder_of_slides_and_what_is_missing(tmp_path, invented):
    topics = tmp_path / "topics.yaml"
    items = [{"topic": name, "where": f"`{name}`", "state": "works"} for name in ("roofline", "pruning", "ceilings")]
    topics.write_text(yaml.safe_dump({"Lab": items}))
    for name, table in invented.items():
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    out = tmp_path / "out"
    assert not main(
        ["slides", "lab", "--topics", str(topics), "--tables", str(tmp_path), "--out", str(out), "--language", "ko"]
    )
    drawn = [f"{name}.{kind}" for name in ("01_roofline", "02_ceilings") for kind in ("pdf", "png")]
    assert sorted(path.name for path in out.iterdir()) == [*drawn, slides.MISSING]
    assert (out / slides.MISSING).read_text() == "pruning: no rows (another recording has them)\n"
    for path in out.glob("*.png"):
        assert Image.open(path).size == (1920, 1080)
    for path in out.glob("*.pdf"):
        left, low, right, high = map(float, re.search(rb"/MediaBox \[([^\]]+)\]", path.read_bytes())[1].split())
        assert (right - left) / (high - low) == pytest.approx(16 / 9, rel=1e-3)


def test_every_figure_of_a_text_is_one():
    assert {name for text in TEXTS for name in slides.chosen(TOPICS, text)} <= set(figures.modules())
