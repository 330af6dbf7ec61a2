"""Pruned models: a sentence from few, equal and extreme rows; no text covers another."""

import re

import pytest
from support.drawn import overlaps, step, tables
from support.said import heard
from support.slow import few

from mfulab.core.language import Texts
from mfulab.lab.report import figures
from mfulab.lab.report.figures import pruning

TEXT = Texts("en", "pruning")


def row(
    kind: str = "none", share: float = 0.0, time_s: float = 0.01, batch_size: int = 64, **more
) -> dict:
    shape = {"model": "perceptron", "batch_size": batch_size}
    pruned = {"pruning": kind, "pruned_share": share}
    return {**step("inference"), **shape, "time_s": time_s, **pruned, **more}


def said(tmp_path, *rows: dict) -> dict[str, list[dict]]:
    return heard(pruning, tables(tmp_path, *rows))


def test_the_most_pruned_case_of_each_way_speaks(tmp_path):
    rows = (
        row(),
        row("masked", 0.5, 0.01),
        row("masked", 0.9, 0.0101),
        row("structured", 0.9, 0.0015),
    )
    told = said(tmp_path, *rows)
    [masked], [smaller] = told["finding_slower"], told["finding"]
    assert (masked["best"]["pruning"], masked["pruned"]) == ("masked", 90)
    assert (masked["factor"], masked["best"]["left"]) == (pytest.approx(1.01), pytest.approx(10))
    assert (smaller["best"]["pruning"], smaller["pruned"]) == ("structured", 90)
    assert smaller["best"]["relative"] == pytest.approx(15)
    assert smaller["best"]["left"] == pytest.approx(10)


def test_of_several_machines_each_sentence_names_its_own(tmp_path):
    there = {"hardware": "there"}
    rows = row(), row("masked", 0.9), row(**there), row("two_of_four", 0.5, 0.35, **there)
    sentences = pruning.finding(pruning.rows(tables(tmp_path, *rows)), TEXT)
    here, sparse = sentences.split("there: ")
    assert here.startswith("Invented Xeon: ")
    assert [*map(float, re.findall(r"\d+(?:\.\d+)?", sparse))][:3] == [50, 64, 35]


def test_equal_and_extreme_times(tmp_path):
    [equal] = said(tmp_path, row(), row("masked", 0.5))["finding_alike"]
    assert (equal["best"]["relative"], equal["best"]["left"]) == (100, 50)
    [slower] = said(tmp_path, row(), row("structured", 0.3, 0.5))["finding_slower"]
    assert slower["factor"] == pytest.approx(50)


def test_nominal_and_executed_flops_are_both_said(tmp_path):
    rows = (
        row(executed_flops=1000),
        row("masked", 0.9, executed_flops=1000),
        row("structured", 0.9, executed_flops=80),
    )
    executed = [said["best"] for said in said(tmp_path, *rows)["executed"]]
    assert [best["nominal"] for best in executed] == pytest.approx([10, 8])
    assert [best["executed"] for best in executed] == pytest.approx([100, 8])


def test_times_within_the_intervals_are_no_gain(tmp_path):
    wide = {"time_ci_low_s": 0.001, "time_ci_high_s": 0.02}
    told = said(tmp_path, row(**wide), row("masked", 0.9, 0.005, **wide))
    assert told.keys() == {"finding_alike"}
    narrow = row("structured", 0.9, 0.0005, time_ci_low_s=0.0004, time_ci_high_s=0.0006)
    assert said(tmp_path, row(**wide), narrow).keys() == {"finding"}


def test_without_the_whole_model_there_is_nothing_to_say(tmp_path):
    assert pruning.rows(tables(tmp_path, row("masked", 0.5))).empty
    assert pruning.rows(tables(tmp_path, row())).empty


@pytest.mark.parametrize("language", few(["ko", "en"]))
def test_no_text_covers_another(tmp_path, language):
    rows = [row(batch_size=batch) for batch in (1, 64)]
    for batch in (1, 64):
        rows += [row("masked", share, 0.01, batch) for share in (0.3, 0.5, 0.7, 0.9)]
        rows += [
            row("structured", share, 0.01 * (1 - share), batch) for share in (0.3, 0.5, 0.7, 0.9)
        ]
    drawn = figures.render(
        "pruning", tables(tmp_path, *rows, row("two_of_four", 0.5, 0.006)), language
    )
    assert overlaps(drawn.figure) == []
