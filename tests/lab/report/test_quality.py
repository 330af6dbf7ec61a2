"""Cheaper models on real images: a sentence from few, equal and extreme rows."""

from support.drawn import STEP, tables
from support.said import heard

from mfulab.core.language import Texts
from mfulab.lab.report import figures, frames
from mfulab.lab.report.figures import flops_versus_time, quality

TEXT = Texts("en", "quality")


def row(
    way: str = "none", accuracy: float = 95.0, time: float = 100.0, flops: int = 1000, **changes
) -> dict:
    made = STEP | {"compression": way, "flops": flops, "weight_bytes": flops}
    made |= {"whole_flops": 1000, "whole_weight_bytes": 1000, "change_half_points": 0.5}
    made |= {"accuracy_percent": accuracy, "whole_accuracy_percent": 95.0}
    made |= {"accuracy_half_points": 0.5, "time_s": time / 1e6, "time_percent": time}
    made |= {"time_low_percent": 0.95 * time, "time_high_percent": 1.05 * time}
    return made | changes


def planted(tmp_path, *rows: dict) -> frames.Tables:
    return tables(tmp_path, quality=rows)


def said(tmp_path, *rows: dict) -> dict[str, list[dict]]:
    return heard(quality, planted(tmp_path, *rows))


def test_the_fastest_that_keeps_its_accuracy_and_what_costs_most(tmp_path):
    rows = (
        row(),
        row("pooled", 94.8, 40, 300),
        row("structured", 94.9, 60, 500),
        row("student", 90.0, 10, 50),
    )
    told = said(tmp_path, *rows)
    assert told.keys() == {"whole", "finding", "worst"}
    assert told["whole"][0]["row"]["whole_accuracy_percent"] == 95
    [best], [worst] = told["finding"], told["worst"]
    assert best["row"]["compression"] == "pooled"
    numbers = ["accuracy_percent", "time_percent", "flops_percent", "bytes_percent"]
    assert [*best["row"][numbers]] == [94.8, 40, 30, 30]
    assert (worst["row"]["compression"], worst["lost"]) == ("student", 5)
    assert [*worst["row"][["change_half_points", "time_percent"]]] == [0.5, 10]


def test_the_whole_model_is_all_of_itself(tmp_path):
    shown = quality.rows(planted(tmp_path, row(time=99.4), row("pooled", 94.8, 40, 300)))
    assert shown["time_percent"].tolist() == [100, 40]


def test_a_loss_within_the_interval_of_another_is_not_the_most(tmp_path):
    rows = row(), row("distilled", 90.0, 10, 50), row("student", 90.5, 10, 50)
    told = said(tmp_path, *rows, row("masked", 93.0, 100))
    assert "worst" not in told
    assert told["among_worst"][0]["row"]["compression"] == "distilled"
    assert [way["row"]["compression"] for way in told["as_costly_way"]] == ["student"]


def test_ways_that_could_be_as_fast_are_named_beside_the_fastest(tmp_path):
    rows = row(), row("pooled", 94.8, 70, 300), row("bf16", 95.0, 72), row("structured", 94.9, 90)
    told = said(tmp_path, *rows)
    assert told["finding"][0]["row"]["compression"] == "pooled"
    assert [way["row"]["compression"] for way in told["as_fast_way"]] == ["bf16"]
    slower = said(tmp_path, row(), row("pooled", 94.8, 40), row("bf16", 90.0, 41))
    assert "as_fast_way" not in slower, "it loses accuracy"


def test_each_cheaper_network_has_the_accuracy_of_its_own_technique(tmp_path):
    compressions = ("pooled", "repeatedly_pooled", "separable", "structured")
    judged = [
        row(way, change_half_points=0.1, accuracy_change_points=-float(place))
        for place, way in enumerate(compressions)
    ]
    timed = []
    for place, name in enumerate(("plain", "pooled", "repeatedly_pooled", "separable", "pruned")):
        work = {"flops": 1000 - place, "batch_size": 1, "time_s": 1e-3, "execution": "eager"}
        timed.append(STEP | work | {"model": f"{name}_cnn", "run": name})
    rows = flops_versus_time.rows(tables(tmp_path, quality=judged, profile=timed))
    points = rows.set_index("model")["points"].dropna().to_dict()
    assert points == {
        "pooled_cnn": 0,
        "repeatedly_pooled_cnn": -1,
        "separable_cnn": -2,
        "pruned_cnn": -3,
    }


def test_fewer_flops_that_take_as_long_are_named(tmp_path):
    told = said(tmp_path, row(), row("separable", 95.0, 150, 200), row("masked", 95.0, 100))
    assert told["none_kept"] == [{"count": 2}]
    assert [*told["fewer"][0]["row"][["flops_percent", "time_percent"]]] == [20, 150]


def test_what_lies_within_the_intervals_is_neither_a_gain_nor_a_loss(tmp_path):
    wide = {"time_low_percent": 50.0, "time_high_percent": 120.0, "change_half_points": 3.0}
    told = said(tmp_path, row(), row("pooled", 93.0, 80, **wide))
    assert told["none_kept"] == [{"count": 1}]
    assert "worst" not in told
    [worst] = said(tmp_path, row(), row("pooled", 93.0, 80))["worst"]
    assert (worst["lost"], worst["row"]["time_percent"]) == (2, 80)


def test_equal_extreme_and_single_rows(tmp_path):
    assert said(tmp_path, row()).keys() == {"whole"}
    equal = said(tmp_path, row(), *(row(way) for way in ("masked", "two_of_four")))
    assert equal["none_kept"] == [{"count": 2}]
    assert "worst" not in equal
    unknown = {"change_half_points": None, "time_low_percent": None}
    [worst] = said(tmp_path, row("student", 10.0, 0.5, 1, **unknown))["worst"]
    assert (worst["lost"], worst["reach"], worst["span"]) == (85, "", "")
    assert quality.rows(planted(tmp_path, row("masked", status="failed"))).empty


def test_bars_within_the_intervals_are_pale_in_errors_and_in_time(tmp_path):
    drawn = figures.render(
        "quality", planted(tmp_path, row(), row("masked", 94.8, 101), row("student", 80.0, 20, 50))
    )
    errors, times, flops, _ = drawn.figure.axes
    inks = [[bar.get_facecolor()[3] < 1 for bar in axes.patches] for axes in (errors, times, flops)]
    assert inks == [[False, True, False], [False, True, False], [False, False, False]]
    assert TEXT("within") in [each.get_text() for each in drawn.figure.legends[0].get_texts()]
