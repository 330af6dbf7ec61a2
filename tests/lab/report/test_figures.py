"""Figures by content: drawn and said from the rows, no text over another."""

import itertools
import math
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from support import report_rows, slow
from support.drawn import overlaps, texts
from support.said import Heard, heard_of
from support.workflow_copy import ROOT

from mfulab.cli.main import main
from mfulab.core.formats import FORMATS
from mfulab.core.language import Texts
from mfulab.core.language.quantities import percent, significant
from mfulab.lab.report import figures, frames, selection, trust
from mfulab.lab.report.drawing import labels, matmuls, relative
from mfulab.lab.report.figures import (
    flops_versus_time,
    headroom,
    kernel_ladder,
    matmul_precision,
    matmul_shapes,
    mfu_versus_utilization,
    precision_speed,
    published_mfu,
    roofline,
    time_by_batch_size,
    utilization_ladder,
)
from mfulab.lab.report.page import why
from mfulab.lab.runtime import forked
from mfulab.measurements.number_formats import operands as operand_rounding
from mfulab.measurements.number_formats.operands import product_error
from mfulab.mfu import ladder

TWENTY = tuple(
    f"{kind}_{size}"
    for kind in ("resnet", "transformer", "mixer", "lstm")
    for size in (18, 34, 50, 101, 152)
)


SIZES = (64, 128, 256, 512, 1024, 2048, 4096)


def measured(
    root: Path, *machines: str, models: tuple[str, ...], sizes: tuple[int, ...] = (256, 512, 1024)
) -> frames.Tables:
    laid = [report_rows.lay_out(root, machine, models, sizes) for machine in machines]
    return frames.read(report_rows.tabled(root, *laid))[0]


# The invented experiment has one execution mode, process and backend of attention, a matmul in each
# step, and none of the seminar's own kernels.
COMPARING = (
    "execution_speed",
    "autograd",
    "data_parallel",
    "attention_length",
    "convolution",
    "frameworks",
    "recompilations",
    "fusion",
    "subnormals",
    "input",
    "quantised",
    "pruning",
    "seminar_matmul",
)
# Several participants or cards, whose rows the usual invented tables do not have.
SEVERAL = {"equal_devices": report_rows.classroom, "equal_cards": report_rows.cards}
# axes, with two numbers or more
LOGARITHMIC = ("roofline", "matmul_precision", "matmul_throughput", "repeatability")
INVENTED = [name for name in figures.modules() if name not in COMPARING]
# By day each third figure in one of two languages, in turn; the rest by night.
IN_TURN, OTHERWISE = (
    [(name, ("en", "ko")[(at + by) % 2]) for at, name in enumerate(INVENTED)] for by in (0, 1)
)
DAILY = IN_TURN[::3]
NAMES = list(figures.modules())
BY_THIRDS = slow.few([*NAMES[::3], *NAMES[1::3], *NAMES[2::3]], len(NAMES[::3]))
DRAWN = slow.few([*DAILY, *sorted({*IN_TURN, *OTHERWISE} - {*DAILY})], len(DAILY))


@pytest.fixture(scope="module")
def few(invented) -> frames.Tables:
    """Two machines; every second run was not steady, so that legends are as long as they become."""
    steady = {name: np.arange(len(invented[name])) % 2 == 0 for name in ("profile", "matmul")}
    return invented | {name: invented[name].assign(steady=each) for name, each in steady.items()}


@pytest.fixture(scope="module")
def render(few) -> Callable[..., figures.Drawn]:
    """Draws a figure of the two machines, once for all tests that look at it."""
    steady = np.arange(len(few["profile"])) % 3 > 0  # some pairs of neighbours are sound
    tables = {
        **{name: several(few) for name, several in SEVERAL.items()},
        "precision_speed": {**few, "profile": few["profile"].assign(steady=steady)},
    }
    return cache(lambda name, language="en": figures.render(name, tables.get(name, few), language))


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> frames.Tables:
    """Twenty models whose utilization and speed are scattered as real ones are, and matrices of
    seven sizes."""
    root = tmp_path_factory.mktemp("many")
    # not for longer: other fixtures of this module invent rows too
    with pytest.MonkeyPatch.context() as patch:
        scatter(patch)
        return measured(root, report_rows.CPU, report_rows.GPU, models=TWENTY, sizes=SIZES)


def scatter(patch: pytest.MonkeyPatch) -> None:
    """Invents the models of TWENTY, and gives every row a speed and a utilization of its own."""
    chance = random.Random(7)
    for name in TWENTY:
        work, parameters = (int(10 ** chance.uniform(*ends)) for ends in ((7, 12), (6, 9)))
        tokens = 128 if "transformer" in name else None
        patch.setitem(report_rows.MODELS, name, (work, parameters, tokens))
    invented = report_rows.profile

    def scattered(hardware, model, *rest, **more):
        row = invented(hardware, model, *rest, **more)
        place = random.Random(model + hardware)
        factor, busy = place.uniform(0.8, 8), min(100.0, place.gauss(88, 12))
        for name in ("time_s", "time_p5_s", "time_p95_s", "time_ci_low_s", "time_ci_high_s"):
            setattr(row, name, row.time_s and getattr(row, name) * factor)
        row.utilization_percent = row.utilization_percent and busy
        return row

    patch.setattr(report_rows, "profile", scattered)


def run_together(figure: Figure) -> list[tuple[str, str]]:
    """Numbers below an axis with less than a third of their height between them: side by side they
    read as one."""
    if figure.stale:
        figure.canvas.draw()
    found = []
    for axes in figure.axes:
        labels = [label for label in axes.get_xticklabels() if label.get_text()]
        level = [label for label in labels if label.get_rotation() == 0]
        placed = [(label.get_window_extent(), label.get_text()) for label in level]
        for (one, a), (other, b) in itertools.pairwise(sorted(placed, key=lambda at: at[0].x0)):
            if other.x0 - one.x1 < one.height / 3:
                found.append((a, b))
    return found


@pytest.mark.parametrize(("name", "language"), DRAWN)
def test_nothing_overlaps_all_is_inside_and_has_units_and_provenance(render, name, language):
    drawn = render(name, language)
    assert drawn is not None
    placed = texts(drawn.figure)
    assert overlaps(drawn.figure, placed) == []
    assert run_together(drawn.figure) == []
    width, height = drawn.figure.bbox.size
    for words, box in placed:
        assert -1 <= box.x0 <= box.x1 <= width + 1, words
        assert -1 <= box.y0 <= box.y1 <= height + 1, words
    footer = next(text.get_text() for text in drawn.figure.texts if text.get_gid() == "provenance")
    assert "2026-01-02" in footer
    assert "mfulab 0123abc" in footer
    assert any(
        axes.get_xlabel() or axes.get_ylabel() or not len(axes.get_xticks())
        for axes in drawn.figure.axes
    ), "units"
    assert any(character.isdigit() for character in drawn.finding)
    every = [axis for axes in drawn.figure.axes for axis in (axes.xaxis, axes.yaxis)]
    for axes in drawn.figure.axes:
        bars = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
        assert not bars or "log" not in (axes.get_xscale(), axes.get_yscale()), (
            "a length on a logarithmic axis means nothing"
        )
    for axis in every if name in LOGARITHMIC else []:
        low, high = sorted(axis.get_view_interval())
        ticks = sum(low <= tick <= high for tick in axis.get_majorticklocs())
        assert axis.get_scale() != "log" or ticks >= 2


@pytest.mark.parametrize("name", slow.few(INVENTED, 0))
def test_nothing_overlaps_with_twenty_models(many, name):
    tables = SEVERAL.get(name, dict)(many)
    drawn = figures.render(name, tables)
    assert drawn is not None
    assert overlaps(drawn.figure) == []
    assert run_together(drawn.figure) == []


@pytest.mark.parametrize("name", NAMES)
def test_no_rows_no_figure(few, name):
    nothing = {table: frame.head(0) for table, frame in few.items()}
    assert figures.render(name, nothing) is None


@pytest.mark.parametrize("name", BY_THIRDS)
def test_a_single_row_a_table_is_no_accident(few, name):
    single = {table: frame.head(1) for table, frame in few.items()}
    drawn = figures.render(name, single)
    assert drawn is None or "nan" not in drawn.finding


def factors(rows: pd.DataFrame, factor: float) -> pd.DataFrame:
    """The rows, the measured numbers of every second one larger or smaller by a factor."""
    measured = ("_s", "_percent", "_tflop_s", "speedup")
    numbers = [name for name in rows.select_dtypes("number") if name.endswith(measured)]
    odd = pd.Series(range(len(rows)), index=rows.index) % 2 == 1
    return rows.assign(**{name: rows[name].where(odd, rows[name] * factor) for name in numbers})


# Settings without whose difference a figure has no sentence, and so is none.
WITHOUT_FIGURE = {"serving": ["largest_batch"]}


@pytest.mark.parametrize("language", slow.few(["en", "ko"]))
@pytest.mark.parametrize("name", BY_THIRDS)
def test_sentences_stay_true_for_extreme_equal_and_single_rows(few, name, language):
    module, text = figures.modules()[name], Texts(language, name)
    rows = module.rows(SEVERAL.get(name, dict)(few))
    if rows.empty:
        return
    first = rows.iloc[0]
    numbers = rows.select_dtypes("number").columns.difference(WITHOUT_FIGURE.get(name, []))
    equal = rows.assign(**{column: first[column] for column in numbers})
    for what in (rows, rows.head(1), equal, factors(rows, 1e5), factors(rows, 1e-5)):
        said = module.finding(what, text)
        assert said or len(what) < getattr(module, "FEWEST", selection.FEWEST)
        assert not said.startswith(" "), said
        runs = re.findall(r"\b\w+ \([^()]*,[^()]*\)", said)
        assert len(runs) == len(set(runs)), said
        assert not re.search(r"\bnan\b|\binf\b|[{}]|\bNone\b(?! of)", said), said
        assert not re.search(r"(?<![\d.,])1 (runs|cases|counts|rows)\b", said), said


def test_a_series_is_named_once_and_a_loss_is_no_gain(few):
    rows = time_by_batch_size.rows(few)
    series = rows[(rows["model"] == "resnet18") & (rows["machine"] == rows["machine"].iloc[0])]
    plain = series[(series["precision"] == "fp32") & (series["mode"] == "training")]
    assert len(heard_of(time_by_batch_size, plain)["finding"]) == 1
    assert not [key for key in heard_of(time_by_batch_size, plain) if key.startswith("least")]
    slower = series[(series["precision"] == "bf16") & (series["mode"] == "training")]
    slower = slower.assign(samples_per_s=[10.0 / size for size in slower["batch_size"]])
    told = heard_of(time_by_batch_size, pd.concat([plain, slower]))
    assert told["least_loses"][0]["small"]["precision"] == "bf16"
    assert "least_gains" not in told
    assert "finding" not in heard_of(time_by_batch_size, slower), "no series gains"
    falling = plain.assign(time_s=[0.1, 0.05, 0.2])
    assert heard_of(time_by_batch_size, falling)["falling"] == [{"count": 1}]


def test_a_series_that_is_not_ranked_is_named_with_its_gain(few):
    rows = time_by_batch_size.rows(few)
    rows = rows[(rows["model"] == "resnet18") & (rows["machine"] == rows["machine"].iloc[0])]
    series = rows[(rows["mode"] == "training") & rows["precision"].isin(["fp32", "bf16"])]
    faulty = (series["precision"] == "bf16") * 1e6
    told = heard_of(time_by_batch_size, series.assign(page_faults_per_s=faulty, page_fault_s=1e-6))
    [unranked] = told["unranked_run"]
    assert unranked["small"]["precision"] == "bf16"
    ends = unranked["large"], unranked["small"]
    assert unranked["gain"] == ends[0]["samples_per_s"] / ends[1]["samples_per_s"]
    assert len(told["unranked"]) == 1


@pytest.mark.parametrize(("half", "is_known"), [(0.17, True), (0.30, False)])
def test_two_ends_differ_if_the_interval_of_their_ratio_says_so(half, is_known):
    """At 17 % the intervals of the two speeds overlap, and that of their ratio excludes 1."""
    ends = []
    for speed in (1184.0, 897.0):
        made = {"samples_per_s": speed, "time_s": 1.0, "time_ci_low_s": 1 / (1 + half)}
        ends.append(pd.Series(made | {"time_ci_high_s": 1 + half}))
    assert time_by_batch_size._is_known(*ends) == is_known


def test_a_pruned_run_has_another_label_than_the_whole_one():
    run = {"model": "perceptron", "mode": "inference", "precision": "bf16", "batch_size": 64.0}
    run |= {"useful": 2.0, "workload": "inference", "execution": "eager", "pruning": "none"}
    text = Texts("en", "headroom")
    whole = headroom._named(run, text)
    pruned = headroom._named(run | {"pruning": "two_of_four"}, text)
    assert pruned == f"{whole}, {text.name('pruning', 'two_of_four')}"


def test_a_gain_within_the_interval_of_another_is_not_the_largest():
    series = {"samples_per_s": [10.0, 10.0], "time_s": 1.0, "time_ci_low_s": 0.99}
    first = pd.DataFrame(series | {"time_ci_high_s": 1.01})
    for other, reached in ((39.8, 1), (20.0, 0)):
        last = first.assign(samples_per_s=[40.0, other])
        gain = last["samples_per_s"] / first["samples_per_s"]
        assert time_by_batch_size._reaching(gain, 0, first, last) == reached


def test_a_run_near_the_bend_is_not_counted_as_limited_by_memory(few):
    rows = roofline.rows(few)
    ratio = (rows["memory_tflop_s"] / rows["roof_tflop_s"]).to_numpy()
    limited = int((ratio < 1).sum())
    assert limited
    sure = rows.assign(bandwidth_reach=1.0)
    assert heard_of(roofline, sure)["finding"][0]["limited"] == limited
    told = heard_of(roofline, rows.assign(bandwidth_reach=1e9))["finding_open"][0]
    assert (told["limited"], told["near"]) == (0, len(rows))


def test_a_gain_above_peaks_and_bytes_is_flagged(few):
    rows = precision_speed.rows(few)
    for speedup, low, is_flagged in ((1.5, 1.4, False), (90.0, 80.0, True), (90.0, 0.9, False)):
        told = heard_of(precision_speed, rows.assign(speedup=speedup, speedup_low=low))
        assert ("beyond" in told) == is_flagged
    text = Texts("en", "precision_speed")
    assert precision_speed.finding(rows.head(1), text).count(rows["model"].iloc[0]) == 1
    faults = rows.assign(
        speedup=4.0,
        speedup_low=3.0,
        possible=2.0,
        page_faults_per_s_base=0.6e6,
        page_fault_s_base=1e-6,
    )
    assert "faulty" in heard_of(precision_speed, faults)
    few_faults = faults.assign(page_faults_per_s_base=0.09e6)
    [beyond] = heard_of(precision_speed, few_faults.assign(mfu_percent=float("nan")))["beyond"]
    assert beyond["row"]["possible"] == 2


@pytest.mark.parametrize(
    ("speedup", "says"),
    [
        (8.97, "has 8.97× the speed"),
        (0.000281, "takes 3,560× as long"),
        (1.0, "has 1.00× the speed"),
    ],
)
def test_a_speed_up_is_said_as_a_reader_would(speedup, says):
    assert relative.times(speedup, Texts("en", "execution_speed")) == says


@pytest.mark.parametrize(("many", "falls"), [(20.0, True), (60.0, False), (40.0, False)])
def test_mfu_falls_only_where_it_is_lower_on_more_devices(many, falls):
    one = {"model": "gpt2", "accelerator": "H100", "family": "Hopper"}
    runs = [
        {**one, "accelerators": 8, "mfu_bf16_percent": 40.0},
        {**one, "accelerators": 64, "mfu_bf16_percent": many},
    ]
    runs += [{**each, "accelerator": "H200", "mfu_bf16_percent": 30.0} for each in runs]
    told = heard_of(published_mfu, pd.DataFrame(runs))
    assert ("finding" in told) == falls
    for fall in told.get("finding", []):
        assert (fall["accelerators_few"], fall["mfu_bf16_percent_few"]) == (8, 40)
        assert (fall["accelerators_many"], fall["mfu_bf16_percent_many"]) == (64, 20)


def test_integers_cost_the_rounding_of_their_operands():
    recorded = [("int8", 900.0, 0.0), ("fp32", 300.0, 3e-7), ("bf16", 600.0, 1.7e-3)]
    rows = pd.DataFrame(recorded, columns=["precision", "tflop_s", "relative_error"])
    errors = [
        product_error(row.precision, 1024, 1024, 1024, row.relative_error)
        for row in rows.itertuples()
    ]
    rows = rows.assign(n=1024, machine="here", error=errors)
    [told] = heard_of(matmul_precision, rows)["finding"]
    fast, exact = told["fast"], told["exact"]
    assert (fast["precision"], fast["tflop_s"], told["fast_error"]) == ("int8", 900, "1.6e-02")
    assert (exact["precision"], exact["tflop_s"], told["exact_error"]) == ("fp32", 300, "3.0e-07")
    assert rows.sort_values("error")["precision"].tolist() == ["fp32", "bf16", "int8"]
    alone = rows[rows["precision"] == "fp32"]
    assert heard_of(matmul_precision, alone).keys() == {"finding_same"}
    vague = rows.assign(time_s=1.0, time_ci_low_s=0.75, time_ci_high_s=1.3)
    [tied] = heard_of(matmul_precision, vague)["finding_tied"]
    assert tied["others"] == "bf16", "fp32 is slower within any interval"
    single = vague.assign(time_ci_low_s=float("nan"), time_ci_high_s=float("nan"))
    single = single.assign(tflop_s=single["tflop_s"].where(single["precision"] == "int8", 850.0))
    told = heard_of(matmul_precision, single)
    assert "finding_tied" not in told, "an assumed interval gives no tie"
    assert {said["less"] for said in told["measured_less"]} == {100 * (1 - 850 / 900)}


@pytest.mark.parametrize("name", ["fp64", "fp32", "tf32", "fp16", "bf16", "fp8"])
def test_rounding_of_operands_is_torchs_own(name):
    form = FORMATS[name]
    drawn = torch.randn(4096, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    values = torch.cat([drawn, drawn * 2.0**-9, drawn * 2.0**-20, torch.zeros(1).double()])
    stored = values.to(getattr(torch, form.operand)).double()
    assert operand_rounding.quantised(values.numpy(), form, 1.0).tolist() == stored.tolist()


@pytest.mark.parametrize("size", [192, 384])
@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16", "fp8", "int8"])
def test_rounding_of_operands_costs_what_a_product_of_rounded_ones_loses(name, size):
    generator = torch.Generator().manual_seed(size)
    form = FORMATS[name]
    operands = [torch.randn(size, size, generator=generator, dtype=torch.float64) for _ in range(2)]
    rounded = []
    for matrix in operands:
        scale = float(matrix.abs().max()) / operand_rounding.LARGEST_INT8
        stored = operand_rounding.quantised(matrix.numpy(), form, scale)
        rounded.append(torch.from_numpy(stored))
    exact = operands[0] @ operands[1]
    lost = rounded[0] @ rounded[1] - exact
    relative = float(torch.linalg.vector_norm(lost) / torch.linalg.vector_norm(exact))
    assert product_error(name, size, size, size, 0.0) == pytest.approx(relative, rel=0.12)


@pytest.mark.parametrize("language", ["en", "ko"])
def test_finding_because_and_try_speak_of_one_run_and_its_command_tries_it(few, language):
    rows = mfu_versus_utilization.rows(few)
    models = ["spinning", "resnet18", "vit_b_16", *["gpt2"] * len(rows)][: len(rows)]
    mfu = [0.01, 3.0, 7.0, *np.linspace(10, 40, len(rows))][: len(rows)]
    rows = rows.assign(model=models, mfu_percent=mfu, utilization_percent=99.0, doubtful=False)
    rows["verdict"] = "overhead"
    first = why.first(few, selection.first_run(rows), set(), language)
    text = Texts(language, "mfu_versus_utilization")
    assert mfu_versus_utilization.finding(rows, text).startswith("resnet18")
    assert "resnet18" in first["because"].partition(",")[0]
    assert "model=resnet18 " in first["experiment"]
    assert "execution=eager,compile" in first["experiment"]
    assert ("report.language=ko" in first["experiment"]) == (language == "ko")


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize(
    "mfu", [[3.0, 3.0], [3.0], [0.001, 99.0], [0.0, 0.0], [150.0, 20.0], [1e-9, 1e-9]]
)
def test_the_headline_holds_for_equal_single_and_extreme_rows(few, mfu, language):
    rows = mfu_versus_utilization.rows(few).head(len(mfu))
    rows = rows.assign(mfu_percent=mfu, utilization_percent=95.0, doubtful=False)
    said = mfu_versus_utilization.finding(rows, Texts(language, "mfu_versus_utilization"))
    assert rows.loc[rows["mfu_percent"].idxmin(), "model"] in said
    assert "95" in said
    assert ("0.05" in said) == (min(mfu) < 0.05)
    assert "nan" not in said


@pytest.mark.parametrize(("language", "trusted"), [("en", "reliable"), ("ko", "믿을 만한")])
def test_the_best_run_is_called_reliable_only_where_others_are_doubtful(few, language, trusted):
    rows = mfu_versus_utilization.rows(few).head(3)
    rows = rows.assign(mfu_percent=[1.0, 20.0, 50.0], model="gpt2", batch_size=[1, 2, 4])
    text = Texts(language, "mfu_versus_utilization")
    for doubtful in ([False, False, True], [False] * 3, [True] * 3):
        said = mfu_versus_utilization.finding(rows.assign(doubtful=doubtful), text)
        assert (trusted in said) == (len(set(doubtful)) > 1)


def test_the_list_of_a_phone_tells_the_doubtful_runs_that_the_figure_draws_hollow(few):
    rows = mfu_versus_utilization.rows(few)
    for doubtful in ([False] * len(rows), [True] + [False] * (len(rows) - 1), [True] * len(rows)):
        judged = rows.assign(doubtful=doubtful)
        drawn = mfu_versus_utilization.shown(judged, Texts("en", "mfu_versus_utilization"))
        lines = [line["doubtful"] for lines in why.lanes(judged, "en").values() for line in lines]
        assert sorted(lines) == sorted(drawn["doubtful"])


@pytest.fixture(scope="module")
def bare(few) -> frames.Tables:
    """All optional numbers missing, as of an experiment that only just began."""
    tables = {}
    for table, frame in few.items():
        floats = [column for column in frame if frame[column].dtype == float]
        optional = set(floats) - {"batch_size", "n"}
        tables[table] = frame.assign(**dict.fromkeys(optional, float("nan")))
    return tables


@pytest.mark.parametrize("name", BY_THIRDS)
def test_rows_without_numbers_draw_nothing_wrong(bare, name):
    drawn = figures.render(name, bare)
    assert drawn is None or "nan" not in drawn.finding


def test_the_headline_draws_a_line_a_run_and_says_of_all(few, render):
    drawn, text = render("mfu_versus_utilization"), Texts("en", "mfu_versus_utilization")
    rows = selection.drawable(mfu_versus_utilization, few)
    assert (
        len(rows) == len(few["profile"].dropna(subset=["mfu_percent", "utilization_percent"])) == 80
    )
    shown = mfu_versus_utilization.shown(rows, text)
    ticks = [label.get_text() for axes in drawn.figure.axes for label in axes.get_yticklabels()]
    assert len(ticks) == len(shown) <= mfu_versus_utilization.MOST
    assert all(any(tick.startswith(name) for tick in ticks) for name in shown["name"])
    assert drawn.finding == mfu_versus_utilization.finding(rows, text)
    assert selection.first_run(rows).name in shown.index


@given(st.integers(1, 60), st.booleans())
def test_lines_are_few_sorted_and_hold_the_runs_that_are_named(count, alike):
    rows = pd.DataFrame(
        {
            "model": [f"net_{number % 30}" for number in range(count)], "mode": "training", "precision": "fp32",
            "batch_size": 1.0, "workload": "training", "execution": "eager", "machine": "here", "recorded": False,
            "hardware": "here", "run": [str(number) for number in range(count)], "matmul_percent": 50.0,
            "mfu_percent": [7.0 if alike else float(number) for number in range(count)],
            "utilization_percent": 99.0, "samples_per_s": 1.0, "doubtful": False, "time_s": 0.1,
        }
    )  # fmt: skip
    shown = mfu_versus_utilization.shown(rows, Texts("en", "mfu_versus_utilization"))
    assert len(shown) == min(count, len(shown)) <= mfu_versus_utilization.MOST
    assert (shown["mfu_percent"].diff().dropna() <= 0).all()
    sounder = rows[rows["mfu_percent"] > 0] if (rows["mfu_percent"] > 0).any() else rows
    assert {sounder["mfu_percent"].idxmin(), sounder["mfu_percent"].idxmax()} <= set(shown.index)


@given(st.integers(1, 60), st.integers(0, 3), st.integers(0, 9))
def test_every_run_is_drawn_or_left_out_for_one_reason(count, doubtful, elsewhere):
    rows = pd.DataFrame(
        {
            "model": [f"net_{number % 30}" for number in range(count)], "mode": "training", "precision": "fp32",
            "batch_size": 1.0, "workload": "training", "execution": "eager", "machine": "here", "recorded": False,
            "hardware": "here", "run": [str(number) for number in range(count)], "matmul_percent": 50.0,
            "mfu_percent": [1.0 + number for number in range(count)], "utilization_percent": 99.0,
            "samples_per_s": [1.0 + number for number in range(count)], "time_s": 0.1,
            "doubtful": [number < doubtful for number in range(count)], "elsewhere": elsewhere,
        }
    )  # fmt: skip
    text = Heard("mfu_versus_utilization")
    mfu_versus_utilization.selected(rows, text)
    drawn = len(mfu_versus_utilization.shown(rows, Texts("en", "mfu_versus_utilization")))
    left = 0
    for key, told in text.heard.items():
        if key.startswith("left_"):
            left += told[0]["count"]
    for told in text.heard.get("selected_here", ()):
        left += told["elsewhere"]
    assert drawn + left == count + elsewhere
    assert ("selected_all" in text.heard) == (left == 0)
    # A rule is told only where it has left something out.
    assert ("selected_here" in text.heard) == (drawn == count and elsewhere > 0)
    assert ("selected" in text.heard) == (drawn < count)


@pytest.mark.parametrize("language", ["en", "ko"])
def test_a_measured_roof_above_the_computed_one_is_explained(language):
    text = Texts(language, "roofline")
    above = {"device": "cpu", "ceiling_tflop_s": 0.218, "peak_tflop_s": 0.166}
    below = {"device": "cpu", "ceiling_tflop_s": 0.1, "peak_tflop_s": 0.166}
    card = above | {"device": "cuda"}
    told = Texts(language, "ceilings")("boosted")
    assert figures.selected("roofline", pd.DataFrame([below, above]), text) == told
    assert figures.selected("roofline", pd.DataFrame([below, card]), text) == ""


def test_the_rule_of_selection_stands_under_the_first_figure_alone(few):
    for name in ("mfu_versus_utilization", "headroom"):
        text = Texts("en", name)
        rows = selection.drawable(figures.modules()[name], few)
        assert bool(figures.selected(name, rows, text)) == (name == "mfu_versus_utilization")


def heard_by(module, tables: frames.Tables) -> dict[str, list[dict]]:
    """What the sentence above the drawn figure says, by key."""
    text = Heard(module.__name__.rpartition(".")[2])
    rows = frames.in_words(selection.drawable(module, tables), text)
    figures.finding(module, rows, text)
    return text.heard


def test_the_headline_names_one_busy_run_and_doubts_what_exceeds_the_peak(few):
    profile = few["profile"].copy()
    profile["utilization_percent"] = profile["utilization_percent"].clip(upper=80)
    both = profile.dropna(subset=["mfu_percent", "utilization_percent"])
    both = both[~trust.doubtful(both) & ~frames.emulated(both)]
    first, above = both[both["mode"] == "inference"].index[:2]
    profile.loc[first, ["model", "utilization_percent", "mfu_percent"]] = "resnet18", 95.0, 23.0
    profile.loc[above, ["utilization_percent", "mfu_percent"]] = 95.0, 123.0
    # those of other steps
    profile.loc[[first, above], ["hfu_percent", "useful_mfu_percent"]] = float("nan")
    told = heard_by(mfu_versus_utilization, {**few, "profile": profile})
    [busy] = told["finding"]
    assert (busy["low_run"], busy["busy"], busy["low"]) == ("resnet18", 95, "23 %")
    assert float(busy["high"].split()[0]) < 100
    assert told["doubtful"][0]["count"] == 1


@pytest.mark.parametrize(
    ("low", "high", "is_unsure"),
    [(0.1, 3.0, True), (1.5, 3.0, False), (float("nan"),) * 2 + (False,)],
)
def test_a_ratio_whose_interval_allows_both_says_so(few, low, high, is_unsure):
    text = Texts("en", "precision_speed")
    rows = precision_speed.rows(few).head(1).assign(speedup=2.0, speedup_low=low, speedup_high=high)
    assert (text("unsure") in precision_speed.finding(rows, text)) == is_unsure
    assert not any(letter.isdigit() for letter in text("unsure"))


def test_a_series_with_one_sound_batch_size_neither_gains_nor_stays(few):
    rows = time_by_batch_size.rows(few)
    series = rows.drop_duplicates(["machine", "model", "mode", "precision", "batch_size"])
    alone = series.drop_duplicates(["machine", "model", "mode", "precision"])
    text = Texts("en", "time_by_batch_size")
    assert time_by_batch_size.finding(alone, text) == text("single")
    broken = series[(series["model"] != "resnet18") | series.index.isin(alone.index)]
    said = time_by_batch_size.finding(broken, text)
    assert "resnet18" not in said
    assert "nothing" not in said


@pytest.mark.parametrize("language", ["en", "ko"])
def test_the_headline_tells_two_runs_of_one_model_apart_and_that_others_are_doubtful(few, language):
    rows = mfu_versus_utilization.rows(few)
    two = rows[(rows["model"] == "resnet18")].drop_duplicates("batch_size").head(2)
    two = two.assign(
        mfu_percent=[0.5, 12.0], utilization_percent=99.0, steady=True, mode="training"
    )
    doubtful = two.head(1).assign(mfu_percent=50.0, steady=False)
    rows = pd.concat([two, doubtful], ignore_index=True).drop(
        columns=["doubtful", "doubts", "impossible"], errors="ignore"
    )
    text = Texts(language, "mfu_versus_utilization")
    said = mfu_versus_utilization.finding(rows, text)
    small, large = (f"{size:.0f}" for size in two["batch_size"])
    assert [*re.findall(r"resnet18 \(.*?(\d+)\)", said)] == [small, large]
    assert text("trusted").strip() in said
    assert text("trusted").strip() not in mfu_versus_utilization.finding(rows.head(2), text)


def test_the_headline_speaks_of_this_machine_where_others_are_recorded(few):
    profile = few["profile"].copy()
    profile["recorded"] = profile["hardware"] == report_rows.GPU
    environment = few["environment"].assign(
        recorded=few["environment"]["hardware"] == report_rows.GPU
    )
    drawn = figures.render(
        "mfu_versus_utilization", {**few, "profile": profile, "environment": environment}
    )
    assert "Invented GPU" not in drawn.finding
    assert "the CPU" in drawn.finding
    assert [axes.get_title(loc="left") for axes in drawn.figure.axes] == ["Invented Xeon"]


@pytest.mark.parametrize("order", slow.few([-1, 1]))
def test_modes_stand_in_one_order_everywhere(few, order):
    """Whichever comes first in the table."""
    profile = few["profile"].iloc[::order].assign(steady=True)
    drawn = figures.render("time_by_batch_size", {**few, "profile": profile})
    titles = [axes.get_title(loc="left") for axes in drawn.figure.axes]
    modes = list(dict.fromkeys(re.findall("training|inference|decoding", " ".join(titles))))
    assert modes == [mode for mode in ("training", "inference", "decoding") if mode in modes]
    assert len(modes) > 1


def test_more_flops_are_told_of_first(few):
    """Whichever of the two is slower."""
    rows = flops_versus_time.rows(few)
    model = ["large", "small"]
    pair = rows.iloc[[0, 0]].reset_index(drop=True).assign(model=model, flops_per_sample=[6.0, 2.0])
    for times in ([3.0, 4.0], [9.0, 0.5]):
        timed = pair.assign(time_per_sample=times, speed=pair["flops_per_sample"] / times)
        timed = timed.assign(points=[float("nan"), -1.5], half=[float("nan"), 0.5])
        told = flops_versus_time.finding(timed, Texts("en", "flops_versus_time"))
        assert re.findall("large|small", told)[:2] == ["large", "small"]
        assert re.findall(r"([\d.]+)×", told) == ["3.00", significant(times[0] / times[1])]


@pytest.mark.parametrize(
    ("points", "half", "key", "model"),
    [
        ([-0.3, -0.5], [1.2, 1.0], "accuracy_alike", None),
        ([-1.5, 2.5], [1.0, 1.0], "accuracy", "b"),
        ([-1.5, -2.5], [1.0, 3.0], "accuracy", "a"),
        ([-1.5, -2.5], [float("nan"), float("nan")], "accuracy_alike", None),
        ([float("nan"), float("nan")], [float("nan"), float("nan")], None, None),
    ],
)
def test_only_a_change_of_accuracy_beyond_its_interval_is_told(few, points, half, key, model):
    rows = flops_versus_time.rows(few).iloc[[0, 0]].reset_index(drop=True)
    rows = rows.assign(model=["a", "b"], points=points, half=half)
    told = heard_of(flops_versus_time, rows)
    keys = [name for name in told if name.startswith("accuracy")]
    assert keys == ([key] if key else [])
    if model:
        assert told["accuracy"][0]["row"]["model"] == model


def test_fewer_flops_are_shown_by_one_comparison_in_percent_of_the_most(few):
    rows = flops_versus_time.rows(few)
    for key in flops_versus_time.ALIKE:
        assert rows[key].nunique() == 1, key
    assert rows["flops_percent"].max() == 100
    assert rows["flops_percent"].is_monotonic_decreasing
    one = few["profile"].query("model == 'simple_cnn'")
    one = few["profile"].head(1) if one.empty else one.head(1)
    assert flops_versus_time.rows({**few, "profile": one}).empty


def test_a_bar_of_headroom_names_its_largest_loss_and_has_few_parts(few):
    rows = headroom.rows(few)
    drawn, colors = headroom._of_few_parts(rows)
    losses = [part for part in colors if part not in ("useful", headroom.SMALL)]
    small = [part for part in losses if rows[part].abs().max() < headroom.NAMED]
    assert len(small) <= 1, "several are drawn as one"
    assert not (small and headroom.SMALL in colors)
    whole = rows[list(headroom.PARTS)].astype(float).clip(lower=0).sum(axis=1)
    parts = drawn[[*colors]].astype(float).clip(lower=0).sum(axis=1)
    assert (whole - parts).abs().max() <= headroom.SHOWN * len(headroom.PARTS)
    text = Texts("en", "headroom")
    names = headroom._part_names(colors, False, text)
    shares = pd.Series({"useful": 40.0, losses[0]: 50.0, losses[1]: 10.0})
    labels = headroom._labels(shares, names, text)
    assert labels == {"useful": "40 %", losses[0]: f"50 % {names[losses[0]]}"}
    narrow = headroom._labels(shares / 8, names, text)
    assert narrow.get(losses[0]) == "6.2 %", "the name has no room"


def legend_of(drawn: figures.Drawn) -> set[str]:
    return {words.get_text() for each in drawn.figure.legends for words in each.get_texts()}


def with_idle_steps(tables: frames.Tables, *machines: str) -> frames.Tables:
    """Tables with the rows of these machines alone, whose steps lose most between operators."""
    profile = tables["profile"]
    profile = profile[profile["hardware"].isin(machines)]
    lost = {f"{part}_ms": 0.0 for part in headroom.PARTS if part != "useful"}
    lost["idle_ms"] = 900 * profile["time_s"]
    return {**tables, "profile": profile.assign(**lost, steady=True)}


ON_CPU, ON_ANY = "idle_of_cpu", "idle"  # names of the time in which no operator runs


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize(
    ("machines", "key"),
    [
        ((report_rows.CPU,), ON_CPU),
        ((report_rows.GPU,), ON_ANY),
        ((report_rows.CPU, report_rows.GPU), ON_ANY),
    ],
)
def test_only_where_a_gpu_is_drawn_time_lies_between_kernels(few, machines, key, language):
    names = Texts(language, "trace")
    [other] = {ON_CPU, ON_ANY} - {key}
    tables = with_idle_steps(few, *machines)
    for name in ("headroom", "mfu_versus_utilization"):
        entries = legend_of(figures.render(name, tables, language))
        assert names(key) in entries, name
        assert names(other) not in entries, name


@pytest.mark.parametrize(("machine", "key"), [(report_rows.CPU, ON_CPU), (report_rows.GPU, ON_ANY)])
def test_bars_and_sentence_name_the_lost_time_of_their_own_device(few, machine, key):
    names = Texts("en", "trace")
    both = with_idle_steps(few, report_rows.CPU, report_rows.GPU)
    rows = headroom.rows(both)
    own = rows[rows["hardware"] == machine]
    assert names(key) in headroom.finding(own, Texts("en", "headroom"))
    drawn = figures.render("headroom", both, rows=rows).figure
    labels = [words.get_text() for words in drawn.axes[0].texts]
    assert sum(names(key) in label for label in labels) == len(own)


def test_rungs_of_implementations_are_dots_in_order_of_their_speed(render):
    axes = render("kernel_ladder").figure.axes[0]
    places = np.vstack([each.get_offsets() for each in axes.collections])
    by_height = places[places[:, 1].argsort()]
    assert (np.diff(by_height[:, 0]) >= 0).all(), "the fastest at the top"
    assert not axes.patches


def test_ladders_are_bars_of_three_runs_that_say_their_numbers(few):
    profile = few["profile"]
    tables = {**few, "profile": profile.assign(model=profile["run"])}  # a model a run
    drawn, rows = figures.render("utilization_ladder", tables), utilization_ladder.rows(tables)
    assert len(drawn.figure.axes) == len(rows) == 3
    assert rows["mfu_percent"].is_monotonic_decreasing
    for axes, mfu in zip(drawn.figure.axes, rows["mfu_percent"], strict=True):
        assert f"{percent(mfu)} %" in [each.get_text() for each in axes.texts]
        lengths = [bar.get_width() for bar in axes.patches]
        assert lengths, "a bar a rung"
        names = [label.get_text() for label in axes.get_yticklabels()]
        outside = [rung.column for rung in ladder.RUNGS if not rung.falls]
        words = Texts("en", "rungs")
        assert not {*names} & {words(name) for name in outside}
    assert figures.finding(utilization_ladder, rows, Texts("en", "utilization_ladder"))


def test_uncertainty_is_drawn(render):
    drawn = render("time_by_batch_size")
    assert any(container for axes in drawn.figure.axes for container in axes.containers)


def test_a_block_sweep_leaves_its_best(render):
    drawn = render("kernel_ladder")
    names = [label.get_text() for label in drawn.figure.axes[0].get_yticklabels()]
    assert len(names) == len(set(names)) == 5


def test_a_ladder_has_one_size_and_names_what_was_measured_at_another(few):
    side = {"m": 64, "n": 64, "k": 64, "size": "64"}
    rungs = kernel_ladder.rows(few)
    one = selection.of_module(kernel_ladder, rungs).told.iloc[[0]]
    slow = one.assign(kernel="unrolled_by_hand", after="", share_of_reference_percent=0.01, **side)[
        few["matmul"].columns
    ]
    tables = {**few, "matmul": pd.concat([few["matmul"], slow])}
    ladders = kernel_ladder.rows(tables).groupby(kernel_ladder.LADDER)
    assert (ladders["n"].nunique() == 1).all()
    drawn = figures.render("kernel_ladder", tables)
    names = [label.get_text() for axes in drawn.figure.axes for label in axes.get_yticklabels()]
    assert not [name for name in names if "unrolled_by_hand" in name]
    told = heard_by(kernel_ladder, tables)
    assert told["finding_elsewhere"] == [{"kernels": "unrolled_by_hand"}]


def test_a_ladder_stands_at_the_largest_size_that_nearly_all_have():
    sizes = {
        "python": [128],
        "naive": [128, 1024],
        "blocked": [128, 1024],
        "numpy": [128, 1024],
        "torch": [1024, 2048],
    }
    rows = [("here", kernel, "fp32", n) for kernel, had in sizes.items() for n in had]
    shared = matmuls.most_shared(
        pd.DataFrame(rows, columns=["machine", "kernel", "precision", "n"])
    )
    assert set(shared["n"]) == {1024}
    assert set(shared["kernel"]) == {"naive", "blocked", "numpy", "torch"}


def test_each_format_with_rungs_enough_has_a_ladder_of_its_own(few):
    rungs = kernel_ladder.rows(few)
    [machine, *_] = rungs["machine"]
    here = few["matmul"][few["matmul"]["precision"] == rungs["precision"].iloc[0]]
    beside = here.assign(precision="bf16", share_of_reference_percent=50.0)
    tables = {**few, "matmul": pd.concat([here, beside], ignore_index=True)}
    both = kernel_ladder.rows(tables)
    both = both[both["machine"] == machine]
    own = rungs[(rungs["machine"] == machine) & (rungs["family"] != "library")]
    tall = own["kernel"].nunique() >= kernel_ladder.FEW_RUNGS
    assert both["precision"].nunique() == 1 + tall
    drawn = figures.render("kernel_ladder", tables)
    panels = [axes for axes in drawn.figure.axes if axes.get_visible()]
    ladders = kernel_ladder.rows(tables)[kernel_ladder.LADDER].drop_duplicates()
    assert len(panels) == len(ladders)


def test_odd_shapes_are_compared_with_the_cubes_beside_them(few):
    one = kernel_ladder.rows(few).iloc[0]
    sides = {str(side): 3 * (side,) for side in (64, 1024, 1023)} | {"16x512x512": (16, 512, 512)}
    given = [("numpy", size) for size in sides] + [("python", "64")]
    laid = []
    for kernel, size in given:
        shape = dict(zip("mnk", sides[size], strict=True))
        laid.append({**one, "kernel": kernel, "size": size, "batch": 1, **shape})
    matmul = pd.DataFrame(laid)[few["matmul"].columns]
    rows = matmul_shapes.rows({**few, "matmul": matmul})
    assert set(rows["kernel"]) == {"numpy"}
    found = [matmul_shapes.shape(row) for _, row in rows.iterrows()]
    assert found == ["1024³", "1023³", "16×512×512"]
    more = [
        {**one, "kernel": "numpy", "size": n, "batch": 1, **dict.fromkeys("mnk", n), "flops": n}
        for n in range(2000, 2040)
    ]
    given_more = pd.DataFrame([*laid, *more, {**laid[3], "kernel": "torch"}])[few["matmul"].columns]
    shown = matmul_shapes.rows({**few, "matmul": given_more})["shape"]
    assert shown.nunique() == matmul_shapes.MOST_SHAPES
    assert {"16×512×512", "2039³"} <= set(shown), "what several were given, then the largest"
    assert matmul_shapes.shape(pd.Series({"batch": 8, "m": 128, "n": 128, "k": 128})) == "8 · 128³"


def test_a_rung_that_is_no_faster_than_the_one_below_is_said_with_the_reason(few):
    rows = kernel_ladder.rows(few).iloc[[0, 0]].reset_index(drop=True)
    rungs = {"kernel": ["below", "above"], "after": ["", "below"]}
    rows = rows.assign(family="CUDA C", share_of_reference_percent=[40.0, 30.0], **rungs)
    alike = {"spill_bytes": [0, 0], "verdict_flags": "", "occupancy_percent": [50.0, 50.0]}
    beside = {"verdict_flags": ["", '{"beside": {"share": 30.0}}'], "occupancy_percent": math.nan}
    cases = [
        ({"spill_bytes": [0, 16]}, "it spills 16 bytes"),
        ({"occupancy_percent": [50.0, 25.0]}, "nothing measured explains it"),
        (beside, "other processes took 30 %"),
        ({}, "nothing measured explains it"),
    ]
    for values, because in cases:
        unlike = rows.assign(**{**alike, **values})
        told = kernel_ladder.finding(unlike, Texts("en", "kernel_ladder"))
        assert because in told
    third = rows.iloc[[0, 1, 1]].assign(
        kernel=["below", "above", "third"], after=["", "below", ""], spill_bytes=0, verdict_flags=""
    )
    third = third.assign(occupancy_percent=[50.0, 25.0, 25.0]).reset_index(drop=True)
    for share, is_reason in ((35.0, True), (90.0, False)):
        told = Heard("kernel_ladder")
        kernel_ladder.finding(third.assign(share_of_reference_percent=[40.0, 30.0, share]), told)
        assert ("occupancy" in told.heard) == is_reason
    told = Heard("kernel_ladder")
    kernel_ladder.finding(rows.assign(after=["above", ""]), told)
    assert "out_of_order" not in told.heard


def test_figures_are_written_alone_and_stale_ones_removed(few, tmp_path, monkeypatch, capsys):
    problem = frames.Problem("profile.csv: 3 columns are missing")
    monkeypatch.setattr(frames, "read", lambda folder: (few, [problem]))
    (tmp_path / "execution_speed.svg").write_text("stale")
    assert main(["figures", "--out", str(tmp_path), "--only", "ceilings", "execution_speed"]) == 1
    assert "execution_speed: profile.csv: 3 columns are missing" in capsys.readouterr().err
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == ["ceilings.pdf", "ceilings.png", "ceilings.svg"]


def test_the_same_data_gives_the_same_file(few, tmp_path):
    for name in ("a.svg", "b.svg"):
        figures.save(figures.render("ceilings", few), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_machines_whose_devices_have_one_name_are_told_apart(few):
    environment = few["environment"].assign(device_name="Invented(R) Xeon CPU @ 2.0 GHz")
    drawn = figures.render("mfu_versus_utilization", {**few, "environment": environment})
    titles = [axes.get_title(loc="left") for axes in drawn.figure.axes]
    found = sorted(titles)
    assert found == [f"Invented Xeon {name}" for name in (report_rows.CPU, report_rows.GPU)]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0.001, 0.03))
def test_labels_are_pushed_apart_in_order(wanted, height):
    placed = labels._apart(sorted(wanted), height)
    assert all(later - earlier >= height - 1e-9 for earlier, later in itertools.pairwise(placed))
    assert min(placed) >= -1e-9
    assert max(placed) <= 1 + 1e-9


def test_runs_without_a_partner_have_no_speed_up_and_its_columns_are_there(few):
    rows = frames.with_machine(few, frames.ok(few["profile"], "time_s", "samples_per_s"))
    alone = relative.against(rows[rows["precision"] == "bf16"], "precision", "fp32")
    assert alone.empty
    assert {"speedup", "speedup_low", "speedup_high"} <= set(alone.columns)


def test_one_s_own_star_is_of_16_bits_and_stands_at_all_its_devices():
    public = pd.DataFrame([row.model_dump() for row in report_rows.published()])
    alike = {"status": "ok", "model": "gpt2", "mode": "training", "hardware": "here"}
    alike |= {"mfu_percent": 30.0}
    runs = [("bf16", None, None), ("fp32", None, None), ("fp8", 8, 8)]
    runs += [("fp16", 4, 4), ("bf16", 1, 2), ("bf16", None, 2)]
    mine = [
        alike | {"effective_precision": form, "devices": devices, "processes": processes}
        for form, devices, processes in runs
    ]
    found = published_mfu.rows({"published": public, "profile": pd.DataFrame(mine)})
    assert sorted(found.loc[found["family"] == published_mfu.OWN, "accelerators"]) == [1, 1, 2, 4]


def pair(**more):
    """A run in bf16, 3 times as fast as in fp32, beside another one, 1.5 times as fast."""
    shared = {"machine": "here", "recorded": False, "mode": "training", "precision": "bf16"}
    shared |= {"time_s": 0.1, "time_s_base": 0.3, "mfu_percent": 20.0, "mfu_percent_base": 20.0}
    shared |= {"possible": 4.0, "speedup_low": 1.2, "speedup_high": 4.0}
    shared |= {"workload": "training", "execution": "eager", "batch_size": 8, "sequence_length": 0}
    faulty = shared | {"model": "faulty", "speedup": 3.0} | more
    return pd.DataFrame([faulty, shared | {"model": "sound", "speedup": 1.5}])


@pytest.mark.parametrize(
    "state",
    [
        {"page_faults_per_s_base": 3e5, "page_fault_s_base": 1e-6},  # 30 % of the slow step
        {"kept_memory_time_s_base": 0.15},
        {"page_faults_per_s": 5e5, "page_fault_s": 1e-6},
        {"matmul_percent": 0.1},  # a loop that spins for a fixed time
    ],
)
def test_steps_in_another_state_of_the_allocator_are_not_ranked(state):
    def told(rows):
        text = Heard("precision_speed")
        relative.finding(relative.ranked(rows), text, "precision")
        return text.heard

    ranked = told(pair(**state))
    assert {said["times"] for said in ranked["as_fast"]} == {"1.50"}
    assert {said["times"] for said in told(pair())["as_fast"]} == {"3.00", "1.50"}
    alone = told(pair(**state).head(1))
    assert {said["times"] for said in alone["as_fast"]} == {"3.00"}
    assert "faulty" in alone


def test_a_recorded_machine_is_named_by_a_sentence_about_it_alone(few):
    profile = few["profile"].assign(recorded=True)
    environment = few["environment"].assign(recorded=True)
    tables = trust.judged({**few, "profile": profile, "environment": environment})
    for name in ("energy_efficiency", "mfu_versus_utilization"):
        module, text = figures.modules()[name], Texts("en", name)
        rows = module.rows(tables)
        one = rows[rows["machine"] == rows["machine"].iloc[0]]
        machine = one["machine"].iloc[0]
        assert machine in figures.finding(module, one, text)
        own = one.assign(recorded=False)
        assert machine not in figures.finding(module, own, text)


A_FIGURE = """
from mfulab.lab.report.drawing import kinds, style
from mfulab.lab.report.frames import ok

TOPIC = "memory"


def rows(tables):
    return ok(tables["profile"], "memory_bytes").head(5)


def finding(rows, text):
    return text("finding", most=rows["memory_bytes"].max())


def draw(rows, figure, text):
    axes = style.panels(figure, [""], [""])[0, 0]
    kinds.bars(axes, rows, "memory_bytes", "model", "memory_bytes")
"""


@pytest.mark.slow
def test_a_figure_is_its_module_and_its_words(page, tmp_path):
    """Added to a copy, it is drawn and named by the command; no other file knows it."""
    source = tmp_path / "mfulab"
    shutil.copytree(ROOT / "src/mfulab", source, ignore=shutil.ignore_patterns("__pycache__"))
    (source / "lab/report/figures/most_memory.py").write_text(A_FIGURE)
    for language in ("en", "ko"):
        words = "{title: Invented, finding: 'At most {most:quantity B}.', reading: A bar is a run.}"
        catalogue = source / f"core/language/catalogue/{language}.yaml"
        with catalogue.open("a", encoding="utf-8") as file:
            file.write(f"\nmost_memory: {words}\n")
    options = ["--tables", str(page / "results/tables"), "--out", str(tmp_path)]
    options += ["--only", "most_memory", "--formats", "svg"]
    command = [sys.executable, "-m", "mfulab", "figures", *options]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "most_memory.svg").read_text().count("data-run") == 5


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux forks safely with the libraries loaded"
)
def test_figures_with_data_are_listed_and_drawn_ahead_by_all_cores_and_placed_without_a_table(
    tmp_path, monkeypatch, one_figure
):
    measured(tmp_path, report_rows.CPU, models=("resnet18",))
    monkeypatch.setenv(figures.SOCKET, str(tmp_path / "worker/socket"))
    monkeypatch.setattr(forked, "usable_cores", lambda: figures.FEW_CORES)
    [name] = figures.modules()
    silent = SimpleNamespace(rows=lambda tables: pd.DataFrame())
    known = {"silent": silent, name: figures.modules()[name]}
    monkeypatch.setattr(figures, "modules", lambda: known)
    listed, drawn = tmp_path / "listed", tmp_path / "drawn"
    main(["figures", "--tables", str(tmp_path / "tables"), "--list", str(listed)])
    assert listed.read_text() == f"{name}\n"
    no_table = "what was drawn ahead needs no table"
    monkeypatch.setattr(frames, "read", lambda folder: pytest.fail(no_table))
    options = ["--tables", str(tmp_path / "tables"), "--out", str(drawn), "--only", name]
    main(["figures", *options])
    assert {path.suffix for path in drawn.iterdir()} >= {".svg"}
    with pytest.raises(pytest.fail.Exception, match="needs no table"):
        main(["figures", *options])
