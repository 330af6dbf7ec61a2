"""Figures of dynamic batching and of models split over ranks, from invented rows."""

import pandas as pd
import pytest
from support.said import Heard

from mfulab.core.language import Texts
from mfulab.lab.report import figures, trust
from mfulab.lab.report.figures import model_parallel, serving


@pytest.mark.parametrize("language", ["en", "ko"])
def test_batches_against_one_by_one_and_what_waiting_costs(invented, language):
    rows = serving.rows(invented)
    assert set(rows["way"]) == {"1, 0", "16, 0", "16, 20"}
    said = serving.finding(rows, Texts(language, "serving"))
    # At the highest load one by one answers 250 a second, batches 1,000.
    assert "4.00" in said or "4×" in said or "4배" in said, said
    assert "20 ms" in said
    assert figures.render("serving", invented, language) is not None


def test_batches_that_answer_hardly_more_are_not_called_faster(invented):
    rows = serving.rows(invented)
    text = Heard("serving")
    serving.finding(rows.assign(answered_per_s=rows["answered_per_s"].max(), time_s=1.0), text)
    assert "finding" not in text.heard
    [alike] = text.heard["finding_alike"]
    told = Texts("en", "serving")("finding_alike", **alike)
    assert f"{rows['answered_per_s'].max():.0f}" not in told, "no numbers that look like a gain"
    text = Heard("serving")
    serving.finding(rows.assign(doubts=1), text)
    assert "finding_more" in text.heard, "how many more is uncertain"
    assert not {"finding", "waiting"} & set(text.heard)
    text = Heard("serving")
    serving.finding(rows.assign(latency_p95_s=0.1), text)
    assert "waiting" not in text.heard


def test_without_batches_or_without_one_by_one_nothing_is_said(invented):
    rows = serving.rows(invented)
    text = Texts("en", "serving")
    assert serving.finding(rows[rows["largest_batch"] == 1], text) == ""
    assert serving.finding(rows[rows["largest_batch"] > 1], text) == ""


@pytest.mark.parametrize("language", ["en", "ko"])
def test_a_pipelines_idle_share_beside_its_bubble(invented, language):
    rows = model_parallel.rows(invented)
    assert len(rows[rows["split"] == "pipeline"]) == 5
    said = model_parallel.finding(rows, Texts(language, "model_parallel"))
    for number in ("60", "50", "16", "5.9"):  # measured and bubble, of 1 and 16 micro-batches
        assert number in said, said
    assert figures.render("model_parallel", invented, language) is not None


def test_the_bubble_is_that_of_the_busiest_rank(invented):
    rows = model_parallel.rows(invented)
    even = model_parallel._pipelines(rows.assign(flops=100.0, rank_flops=50.0))
    micro_batches = even["micro_batches"]
    assert list(even["bubble_percent"]) == pytest.approx(list(100 / (micro_batches + 1)))
    uneven = model_parallel._pipelines(rows.assign(flops=100.0, rank_flops=60.0))
    # one micro-batch: all but its 60 %
    assert uneven["bubble_percent"].iloc[0] == pytest.approx(40)
    assert (uneven["bubble_percent"] < even["bubble_percent"]).all()


def test_speeds_that_are_alike_or_doubtful_are_not_ordered(invented):
    rows = model_parallel.rows(invented)
    rows = rows.assign(speedup=1.0, time_s=0.1)
    assert model_parallel._fastest(rows) is None
    last = rows["split"] == "tensor"
    ahead = rows.assign(speedup=rows["speedup"].mask(last, 1.6), time_s=0.1)
    assert model_parallel._fastest(ahead) is None, "within the usual spread"
    ahead["time_s"] = ahead["time_s"].mask(last, 0.1 / 1.6)
    assert model_parallel._fastest(ahead)["split"] == "tensor"
    close = ahead.assign(speedup=ahead["speedup"].where(last, 1.5))
    assert model_parallel._fastest(close) is None
    doubted = ahead.assign(**{trust.DOUBTS: ["busy"] * len(ahead)})
    assert model_parallel._fastest(doubted) is None


def test_one_pipeline_has_no_answer(invented):
    rows = model_parallel.rows(invented)
    found = model_parallel.finding(rows.query("micro_batches == 1"), Texts("en", "model_parallel"))
    assert found == ""


def test_rows_beside_other_programs_are_doubtful():
    rows = pd.DataFrame({"status": "ok", "other_processes_percent": [0.0, 5.0, 60.0]})
    assert trust.doubtful(rows).tolist() == [False, False, True]
