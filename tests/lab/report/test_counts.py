"""Where a sentence is about fewer runs than its figure draws, the page says so beside it."""

import re

import numpy as np
import pandas as pd
import pytest
from support.said import Heard

from mfulab.core.language import Texts
from mfulab.core.language.quantities import significant
from mfulab.lab.report import figures, selection, trust

SHARE = "share_of_reference_percent"
NAMED = re.compile(r'<figure id="figure-(\w+)">(.*?)</figure>', re.DOTALL)


def test_runs_that_a_sentence_leaves_out_are_told_in_the_fold(page):
    told = 0
    for name, written in NAMED.findall((page / "report.html").read_text()):
        before, _, folded = written.partition('<details class="about">')
        told += 'class="reading left-out"' in folded
        assert "left-out" not in before, name
    assert told > 0


def test_words_on_left_out_runs_count_all_that_are_drawn_and_not_told(invented):
    tables = trust.judged(invented)
    counted = 0
    for name, module in figures.modules().items():
        rows = selection.drawable(module, tables)
        if rows.empty:
            continue
        chosen = selection.of_module(module, rows)
        hidden = len(rows) - len(chosen.told) - chosen.left_out.get(selection.SYNTHETIC, 0)
        assert bool(figures.left_out(name, rows, Texts("en", name))) == (hidden > 0), name
        counted += hidden > 0
    assert counted > 0


@pytest.mark.parametrize(
    ("counts", "told"),
    [({"a": 1, "b": 3}, "b"), ({"a": 2, "b": 9}, "a"), ({"a": 1, "b": 1}, "a")],
)
def test_a_panel_of_one_run_is_not_the_one_that_a_sentence_is_about(counts, told):
    machines = np.repeat([*counts], [*counts.values()])
    judged = {"doubtful": False, "impossible": False, "doubts": 0, "reach": 1.0}
    rows = pd.DataFrame({"machine": machines, "recorded": True, "device": "cuda"} | judged)
    chosen = selection.select(rows, selection.FIRST_PANEL)
    assert set(chosen.told["machine"]) == {told}


@pytest.mark.parametrize("factor", [1e-3, 1.0])
def test_a_ladder_tells_no_factor_beside_a_less_certain_rung_outside_it(invented, factor):
    module = figures.modules()["kernel_ladder"]
    tables = trust.judged(invented)
    shown = module.rows(tables)
    is_told = shown["machine"] == selection.main_machine(shown)
    rungs = shown[is_told & (shown["family"] != "library")]
    lowest = rungs.loc[rungs[SHARE].idxmin()]
    matmul = tables["matmul"]
    is_lowest = matmul["run"] == lowest["run"]
    assert is_lowest.any()
    share = matmul[SHARE].mask(is_lowest, factor * lowest[SHARE])
    doubts = matmul["doubts"].mask(is_lowest, 1)
    changed = matmul.assign(**{SHARE: share, "doubts": doubts})
    rows = selection.drawable(module, {**tables, "matmul": changed})
    text = Heard("kernel_ladder")
    figures.finding(module, rows, text)
    [said] = text.heard["finding_outside"]
    assert "finding" not in text.heard
    assert said["high"]["outside"] == lowest["kernel"]
    assert said["high"]["outside_percent"] == pytest.approx(factor * lowest[SHARE])
    figure = figures.render("kernel_ladder", {**tables, "matmul": changed})
    assert figure is not None
    names = [entry.get_text() for entry in figure.figure.legends[0].get_texts()]
    assert text("hollow") in names, "a rung that is named as doubtful"
    # the sentence names this rung, so that only the other machine's is told to be left out
    figures.left_out("kernel_ladder", rows, text)
    assert selection.of_module(module, rows).left_out["unsure"] == 2
    assert text.heard["left_doubtful"] == [{"count": 1}]


@pytest.mark.parametrize(("named", "told"), [(0, [{"count": 2}]), (1, [{"count": 1}]), (2, [])])
def test_a_doubtful_run_that_a_sentence_names_is_not_left_out_of_it(named, told):
    text = Heard("kernel_ladder")
    chosen = selection.Selection(pd.DataFrame(), {"contradict": 1, "unsure": 1, "recorded": 3})
    assert selection.left_out_words(chosen, text, named)
    assert text.heard["left_doubtful"] == told
    assert text.heard["left_recorded"] == [{"count": 3}]


def test_a_less_certain_rung_between_the_others_is_not_named(invented):
    module = figures.modules()["kernel_ladder"]
    rows = module.rows(trust.judged(invented))
    assert (rows["outside"] == "").all()


def test_each_topic_has_its_finding_once_when_it_is_open(page):
    """Beside the folded topic stand its first sentences, which hide when the finding is shown."""
    written = (page / "report.html").read_text()
    captions = len(re.findall("<figcaption>", written))
    assert captions == len(NAMED.findall(written)) - 1, "all but the headline, which is above"
    assert re.search(r"\.topic\[open\] > summary \.brief \{ display: none; \}", written)
    assert '<p class="brief">' in written


def test_every_line_by_batch_size_has_a_name_and_further_series_are_counted(invented):
    profile = invented["profile"]
    copies = [profile.assign(model=profile["model"] + f"_{place}") for place in range(4)]
    tables = {**invented, "profile": pd.concat([profile, *copies], ignore_index=True)}
    module = figures.modules()["time_by_batch_size"]
    for each in (invented, tables):
        rows = module.rows(each)
        panels = [here for _, here in rows.groupby(["machine", "mode"])]
        series = [here.groupby(module.LINE, dropna=False).ngroups for here in panels]
        assert max(series) <= module.MOST_LINES
        drawn = figures.render("time_by_batch_size", each)
        assert drawn is not None
        names = [words for axes in drawn.figure.axes for words in axes.texts if words.get_text()]
        assert len(names) == sum(series)
    text = Heard("time_by_batch_size")
    undrawn = int(rows.drop_duplicates(["machine", "mode"])["undrawn"].sum())
    assert undrawn > 0
    module.reading(rows, text)
    assert text.heard["undrawn"][0]["count"] == undrawn
    few = Heard("time_by_batch_size")
    module.reading(module.rows(invented), few)
    assert "undrawn" not in few.heard


def test_an_interval_by_batch_size_is_within_its_panel(quickstart):
    module = figures.modules()["time_by_batch_size"]
    rows = selection.drawable(module, quickstart)
    slowest = rows["time_s"].idxmax()
    wide = rows["time_ci_high_s"].where(rows.index != slowest, 2.5 * rows["time_s"])
    drawn = figures.render("time_by_batch_size", quickstart, rows=rows.assign(time_ci_high_s=wide))
    assert drawn is not None
    highest = max(max(axes.get_ylim()) for axes in drawn.figure.axes)
    assert highest > 2.5e3 * rows["time_s"].max()


def test_few_speedups_have_their_numbers_beside_their_marks(quickstart):
    rows = selection.drawable(figures.modules()["precision_speed"], quickstart).head(4)
    assert len(rows) > 1
    drawn = figures.render("precision_speed", quickstart, rows=rows)
    assert drawn is not None
    words = [each.get_text() for axes in drawn.figure.axes for each in axes.texts]
    for speedup in rows["speedup"]:
        assert f"{significant(speedup)}×" in words


def test_a_run_slowed_by_page_faults_is_no_example_of_slow_matmuls(quickstart):
    module = figures.modules()["headroom"]
    rows = module.rows(quickstart).head(2)
    assert len(rows) == 2
    others = dict.fromkeys(module.PARTS, 0.0)
    rows = rows.assign(**others)
    rows = rows.assign(matmuls_below_best=[70.0, 60.0], page_faults=[25.0, 0.0])
    text = Heard("headroom")
    module.finding(rows, text)
    [told] = text.heard["finding"]
    assert told["points"] == 60
    assert told["worst"].name == rows.index[1]
    assert "matmuls" in text.heard, "what counts as matmuls"
