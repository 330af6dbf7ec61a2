"""Frames of the report: of which machine a row is, and which rows a sentence is about."""

import warnings

import pandas as pd
import pytest
from support.said import Heard

from mfulab.core.language import LANGUAGES, Texts
from mfulab.lab.report import frames, shown_rows
from mfulab.lab.report.figures import ceilings
from mfulab.lab.report.frames import (
    kinds,
    one_each,
    own_or_recorded,
    read,
    with_machine,
)


def table(columns, *rows):
    return pd.DataFrame(rows, columns=columns.split())


ENVIRONMENT = table(
    "hardware recorded device device_name",
    ("epyc-4c", False, "cpu", "AMD EPYC Processor"),
    ("epyc-8c", False, "cpu", "AMD EPYC Processor"),
    ("slug-80gb", True, "cuda", "NVIDIA(R) H100"),
)


def test_rows_tell_their_machine_and_its_device():
    keys = [
        ("epyc-4c", False),
        ("epyc-8c", False),
        ("slug-80gb", True),
        ("slug-80gb", False),
        ("unheard-of", False),
    ]
    found = with_machine({"environment": ENVIRONMENT}, table("hardware recorded", *keys))
    assert list(found["machine"]) == [
        "AMD EPYC epyc-4c",
        "AMD EPYC epyc-8c",
        "NVIDIA H100 (recorded)",
        "slug-80gb",
        "unheard-of",
    ]
    assert list(found["device"]) == ["cpu", "cpu", "cuda", "", ""]
    assert list(found["machine_name"][:3]) == [
        "AMD EPYC epyc-4c",
        "AMD EPYC epyc-8c",
        "NVIDIA H100",
    ]
    assert not found["is_read"].any()


@pytest.mark.parametrize("language", LANGUAGES)
def test_labels_are_made_of_name_and_marks_in_any_language(language):
    keys = [("slug-80gb", True), ("slug-80gb", False), ("epyc (recorded)", False)]
    rows = with_machine({"environment": ENVIRONMENT}, table("hardware recorded", *keys))
    text = Texts(language)
    labels = list(frames.in_words(rows, text)["machine"])
    assert labels[0] == text("machine_recorded", machine="NVIDIA H100")
    assert labels[1:] == ["slug-80gb", "epyc (recorded)"]
    again = frames.in_words(frames.in_words(rows, Texts("ko")), text)
    assert list(again["machine"]) == labels


def test_without_an_environment_a_machine_has_its_own_name():
    found = with_machine(
        {"environment": ENVIRONMENT.iloc[:0]}, table("hardware recorded", ("epyc-4c", False))
    )
    assert (list(found["machine"]), list(found["device"])) == (["epyc-4c"], [""])


def test_recorded_rows_count_where_nothing_was_measured():
    both = table("run recorded", ("a", True), ("b", False), ("c", True))
    assert list(own_or_recorded(both)["run"]) == ["b"]
    assert list(own_or_recorded(both[both["recorded"]])["run"]) == ["a", "c"]


@pytest.mark.parametrize(
    ("device", "computed", "is_said"),
    [("cpu", 0.8, True), ("cpu", 2.0, False), ("cuda", 0.8, False)],
)
def test_a_cpu_above_its_computed_peak_was_boosted_and_a_gpu_was_not(device, computed, is_said):
    text = Texts("en", "ceilings")
    row = table(
        "machine ceiling measured_tflop_s computed_tflop_s device precision_percent",
        ("M", "fp32", 1.0, computed, device, 1.0),
    )
    assert (text("boosted") in ceilings.finding(row, text)) == is_said


@pytest.mark.parametrize(("half", "key"), [(1.0, False), (20.0, True)])
def test_a_ceiling_within_the_precision_of_the_best_could_be_as_fast(half, key):
    rows = table(
        "machine ceiling measured_tflop_s computed_tflop_s device precision_percent",
        ("M", "fp32", 1.0, 2.0, "cpu", half),
        ("M", "bf16", 0.9, 2.0, "cpu", half),
        ("M", "fp64", 0.1, 2.0, "cpu", half),
    )
    text = Heard("ceilings")
    ceilings.finding(rows, text)
    assert ("tied" in text.heard) == key
    if key:
        assert text.heard["tied"] == [{"others": "bf16"}]


def test_medians_leave_rows_in_one_piece_with_their_columns_in_order():
    numbers = {f"number_{place}": [1.0, 3.0, 5.0] for place in range(150)}
    rows = pd.DataFrame({"run": ["a", "b", "a"], **numbers, "mode": ["x", "y", "z"]})
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.PerformanceWarning)
        found = one_each(rows, ["run"]).assign(another=1)
    assert list(found) == [*rows, "another"]
    seen = found[["run", "number_7", "mode"]].to_numpy().tolist()
    assert seen == [["a", 3.0, "x"], ["b", 3.0, "y"]]


def test_numbers_texts_and_flags_are_read_whatever_stands_beside_them(tmp_path):
    columns = dict(kinds("profile"))
    assert {str, bool, float} <= {*columns.values()}
    flags, numbers = (
        [name for name, kind in columns.items() if kind is each] for each in (bool, float)
    )
    lines = [
        dict.fromkeys(columns, ""),
        {**dict.fromkeys(columns, "'=1"), **dict.fromkeys(flags, "True"), numbers[0]: "2.5"},
    ]
    pd.DataFrame(lines).to_csv(tmp_path / "profile.csv", index=False)
    tables, problems = read(tmp_path)
    found = tables["profile"]
    assert found[numbers[0]].tolist()[1] == 2.5
    assert found[flags].iloc[1].all()
    assert (found[[name for name, kind in columns.items() if kind is str]].iloc[1] == "=1").all()
    assert any("hold no number" in problem.text for problem in problems) == (len(numbers) > 1)


def test_chosen_rows_of_many_keep_every_column_whatever_its_kind():
    count = 2 * frames.MANY
    empty = pd.Series(float("nan"), range(count))
    rows = pd.DataFrame(
        {
            **{
                f"kind_{each}": pd.Categorical([f"{each}{number % 7}" for number in range(count)])
                for each in "abc"
            },
            **{
                f"flag_{each}": pd.array([number % each == 0 for number in range(count)], "boolean")
                for each in (2, 3)
            },
            **{f"text_{each}": [f"{number * each}" for number in range(count)] for each in (1, 2)},
            "number": range(count),
            "nothing": empty,
            "nothing_else": empty,
        },
        copy=False,
    )
    chosen = rows["number"] % 3 == 1
    pd.testing.assert_frame_equal(frames.those(rows, chosen), rows[chosen])
    kept = frames.those(rows, chosen)
    assert kept["nothing"].to_numpy().ctypes.data == kept["nothing_else"].to_numpy().ctypes.data


def many(*runs):
    """Rows of a table, each with its place as its time."""
    rows = [("cpu", False, run, "ok", float(place)) for place, run in enumerate(runs)]
    return table("hardware recorded run status time_s", *rows).assign(size=64)


def chosen(rows, shown):
    """The rows that stand for all, and the numbers of their rule."""
    choice = shown_rows.choose(rows, rows.columns, "profile.csv", shown)
    return rows[choice.rows], choice.rule


def test_many_rows_are_those_of_median_time_over_what_no_column_shows():
    rows = many(*(f"size={size},seed={seed}" for size in (64, 128) for seed in range(5)))
    found, rule = chosen(rows, 2)
    assert rule.numbers == {"file": "profile.csv", "all": 10, "shown": 2, "axes": "seed"}
    assert list(found["run"]) == ["size=64,seed=2", "size=128,seed=2"]
    assert shown_rows.choose(rows, rows.columns, "", 10) is None
    assert chosen(rows, 1)[1].key == "rows_evenly_in_time", "sizes are never merged"


def test_the_axis_of_most_values_is_merged_first_and_what_failed_stays():
    rows = many(*(f"seed={seed},threads={1 + seed % 2}" for seed in range(9)))
    rows.loc[[0, 1], ["status", "time_s"]] = ["failed", None]
    found, rule = chosen(rows, 4)
    assert rule.numbers["axes"] == "seed"
    assert sorted(zip(found["status"], found["run"].str[-9:], strict=True)) == [
        ("failed", "threads=1"),
        ("failed", "threads=2"),
        ("ok", "threads=1"),
        ("ok", "threads=2"),
    ]
    assert chosen(rows, 2)[1].numbers["axes"] == "seed, threads"


def test_of_many_rows_without_such_an_axis_some_are_spread_evenly_in_time():
    rows = many(*(f"size={size}" for size in range(200)))
    rows.loc[150:, "status"] = "failed"
    found, rule = chosen(rows, 20)
    assert rule.key == "rows_evenly_in_time"
    assert rule.numbers == {"file": "profile.csv", "all": 200, "shown": 20}
    of_status = found.groupby("status")["time_s"].agg(["min", "max", "size"])
    assert of_status.loc["ok"].tolist() == [0, 149, 15]
    assert of_status.loc["failed"].tolist() == [150, 199, 5]
    gaps = found.loc[found["status"] == "ok", "time_s"].diff().dropna()
    assert gaps.min() >= 10
    assert gaps.max() <= 11
    assert shown_rows.choose(rows, rows.columns, "", 200) is None


@pytest.mark.parametrize("shown", [12, 10])
def test_a_file_that_is_read_in_parts_gives_the_same_rows(tmp_path, monkeypatch, shown):
    count = 60
    runs = [f"batch_size={number // 5},seed={number % 5}" for number in range(count)]
    written = many(*runs).assign(steps=range(count), message="none")
    written["steps"] = [str(number) if number != 31 else "text" for number in range(count)]
    written.to_csv(tmp_path / "profile.csv", index=False)
    monkeypatch.setattr(shown_rows, "SHOWN", shown)
    whole, told = read(tmp_path)
    monkeypatch.setattr(frames, "LARGE_BYTES", 0)
    monkeypatch.setattr(frames, "ROWS_AT_ONCE", 7)
    parts, told_of_parts = read(tmp_path)
    # A column of whole numbers is one of integers where no other cell was read.
    pd.testing.assert_frame_equal(whole["profile"], parts["profile"], check_dtype=False)
    assert len(parts["profile"]) == shown
    rules = [problem.said for problem in told if "profile.csv" in problem.said]
    assert rules == [problem.said for problem in told_of_parts if "profile.csv" in problem.said]


def test_a_page_says_which_axes_were_merged(tmp_path, monkeypatch):
    monkeypatch.setattr(shown_rows, "SHOWN", 2)
    header = "hardware,recorded,status,run,time_s"
    runs = [f"kernel={kernel},seed={seed}" for kernel in "ab" for seed in range(3)]
    rows = [f'cpu,False,ok,"{run}",{place}' for place, run in enumerate(runs)]
    (tmp_path / "matmul.csv").write_text("\n".join([header, *rows]) + "\n")
    tables, problems = read(tmp_path)
    assert len(tables["matmul"]) == 2
    [said] = [problem.in_words() for problem in problems if "seed" in problem.said]
    [korean] = [problem.in_words("ko") for problem in problems if "seed" in problem.said]
    assert said != korean
    assert said.startswith("matmul.csv: 2 of 6 ")


def test_runs_of_other_threads_are_not_alone_where_others_have_the_usual_ones():
    runs = ["model=a", "model=a,device.threads=1", "device.threads=1,model=a", "model=threads"]
    machines = ["here", "here", "there", "here"]
    rows = pd.DataFrame({"run": runs, "hardware": machines, "processes": 1.0})
    assert list(frames.alone(rows)["run"]) == [runs[0], runs[2], runs[3]]
    no_names = rows.drop(columns="run")
    assert len(frames.alone(no_names)) == 4
