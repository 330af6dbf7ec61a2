"""Pruned models: a sentence from few, equal and extreme rows, and a figure in which no text covers
another."""

import pytest
from support.drawn import overlaps, tables
from support.slow import few

from mfulab.core.language import Texts
from mfulab.lab.report import figures
from mfulab.lab.report.figures import pruning

TEXT = Texts("en", "pruning")


def row(
    kind: str = "none", share: float = 0.0, time_s: float = 0.01, batch_size: int = 64, **more
) -> dict:
    who = {
        "status": "ok",
        "hardware": "here",
        "recorded": "False",
        "model": "perceptron",
        "workload": "inference",
    }
    how = {"precision": "fp32", "execution": "eager", "mode": "inference"}
    return {
        **who,
        **how,
        "batch_size": batch_size,
        "time_s": time_s,
        "pruning": kind,
        "pruned_share": share,
        **more,
    }


def said(tmp_path, *rows: dict) -> str:
    return pruning.finding(pruning.rows(tables(tmp_path, *rows)), TEXT)


def test_the_most_pruned_case_of_each_way_speaks(tmp_path):
    rows = (
        row(),
        row("masked", 0.5, 0.01),
        row("masked", 0.9, 0.0101),
        row("structured", 0.9, 0.0015),
    )
    assert said(tmp_path, *rows) == (
        "At 90 % pruned (weights masked, batch 64) perceptron takes 1.01× as long, with 10 % of the weights."
        " At 90 % pruned (units taken out, batch 64) perceptron takes 15 % of the time with 10 % of the weights."
    )


def test_of_several_machines_each_sentence_names_its_own(tmp_path):
    there = {"hardware": "there"}
    rows = row(), row("masked", 0.9), row(**there), row("two_of_four", 0.5, 0.35, **there)
    masked, sparse = said(tmp_path, *rows).split("there: ")
    assert masked.startswith("Invented Xeon: At 90 % pruned (weights masked")
    assert sparse.startswith(
        "At 50 % pruned (two of four left, batch 64) perceptron takes 35.0× as long"
    )


def test_equal_and_extreme_times(tmp_path):
    assert "takes 100 % of the time with 50 %" in said(tmp_path, row(), row("masked", 0.5))
    assert "takes 50.0× as long" in said(tmp_path, row(), row("structured", 0.3, 0.5))


def test_nominal_and_executed_flops_are_both_said(tmp_path):
    rows = (
        row(executed_flops=1000),
        row("masked", 0.9, executed_flops=1000),
        row("structured", 0.9, executed_flops=80),
    )
    told = said(tmp_path, *rows)
    assert "Nominally 10 % of the FLOPs remain; 100 % are executed." in told
    assert told.endswith("Nominally 8.0 % of the FLOPs remain; 8.0 % are executed.")


def test_times_within_the_intervals_are_no_gain(tmp_path):
    wide = {"time_ci_low_s": 0.001, "time_ci_high_s": 0.02}
    told = said(tmp_path, row(**wide), row("masked", 0.9, 0.005, **wide))
    assert told.endswith("the change of its time is not measurable here.")
    narrow = row("structured", 0.9, 0.0005, time_ci_low_s=0.0004, time_ci_high_s=0.0006)
    assert told != said(tmp_path, row(**wide), narrow)
    assert "no difference" not in said(tmp_path, row(**wide), narrow)


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
