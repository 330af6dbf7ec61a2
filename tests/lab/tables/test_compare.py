"""Comparing: the verdict follows from the intervals alone; exit codes are for CI."""

import csv
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import report_rows
from support.said import keys

from mfulab.cli.main import main
from mfulab.core.language import Texts
from mfulab.core.said import Said, as_told
from mfulab.lab.tables import compare
from mfulab.lab.tables.compare import (
    STYLES,
    Compared,
    Interval,
    interval,
    ratio_interval,
    read,
    verdict,
    write,
)


def known(time: float, half: float) -> Interval:
    return Interval(time, time - half, time + half, True)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (known(1.0, 0.01), known(0.5, 0.01), "faster"),
        (known(1.0, 0.01), known(2.0, 0.01), "slower"),
        (known(1.0, 0.001), known(1.005, 0.001), "same"),
        (known(1.0, 0.3), known(1.2, 0.3), "ambiguous"),
        (known(1.0, 0.001), known(1.02, 0.001), "ambiguous"),
        # the 95 % interval ends beyond 2 %, the 90 % one within
        (known(1.0, 0.0001), known(1.01, 0.0109), "same"),
        (known(1.0, 0.0001), known(1.01, 0.0125), "ambiguous"),
        (Interval(1.0, 1.0, 1.0, False), known(9.0, 0.001), "ambiguous"),
    ],
)
def test_the_verdict(old, new, says):
    assert verdict(old, new)[0] == says


times = st.floats(1e-6, 1e3)
halves = st.floats(0, 0.5)


@given(times, halves, times, halves)
def test_the_verdict_turns_with_its_arguments(old, old_half, new, new_half):
    before, after = known(old, old * old_half), known(new, new * new_half)
    turned = {"faster": "slower", "slower": "faster"}
    there, back = verdict(before, after)[0], verdict(after, before)[0]
    assert back == turned.get(there, there) or "ambiguous" in (there, back)


@given(times, halves, times, halves)
def test_a_time_inside_the_other_interval_is_never_faster_or_slower(old, old_half, new, new_half):
    before, after = known(old, old * old_half), known(new, new * new_half)
    if (
        before.low_s <= after.time_s <= before.high_s
        or after.low_s <= before.time_s <= after.high_s
    ):
        assert verdict(before, after)[0] in ("same", "ambiguous")


def test_half_widths_of_a_ratio_add_as_squares():
    factor = math.exp(0.05)
    low, high = ratio_interval(
        Interval(1.0, 1 / factor, factor, True), Interval(2.0, 2 / factor, 2 * factor, True)
    )
    assert (low, high) == pytest.approx((2 * math.exp(-0.05 * 2**0.5), 2 * math.exp(0.05 * 2**0.5)))


@given(times, halves, st.floats(1, 10))
def test_wider_intervals_never_decide_more(time, half, wider):
    old, new = known(time, time * half / 20), known(2 * time, time * half / 20)
    wide = known(2 * time, min(time * half / 20 * wider, 1.9 * time))
    if verdict(old, wide)[0] == "slower":
        assert verdict(old, new)[0] == "slower"


def test_only_times_that_are_ok_are_compared():
    assert interval({"status": "failed", "time_s": 1.0}) is None
    assert interval({"status": "ok", "time_s": None}) is None
    assert interval({"status": "ok", "time_s": 1.0}) == Interval(1.0, 1.0, 1.0, False)


@pytest.fixture
def two(tmp_path) -> tuple[Path, Path]:
    for name in ("old", "new"):
        report_rows.lay_out(tmp_path / name, models=("resnet18", "gpt2"))
    return tuple(tmp_path / name / "results" / report_rows.CPU for name in ("old", "new"))


def rewrite(path: Path, **cells: str) -> None:
    with path.open(newline="") as file:
        row = next(csv.DictReader(file)) | cells
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        writer.writeheader()
        writer.writerow(row)


def slow_down(
    folder: Path,
    factor: float,
    known: bool = True,
    step: str = "profile_step",
    named: str = "resnet18",
) -> str:
    path = next(path for path in sorted((folder / step).glob("*/row.csv")) if named in str(path))
    with path.open(newline="") as file:
        row = next(csv.DictReader(file))
    bounds = ("time_ci_low_s", "time_ci_high_s")
    times = {name: str(float(row[name]) * factor) for name in ("time_s", *bounds)}
    rewrite(path, **(times if known else {**times, **dict.fromkeys(bounds, "")}))
    return path.parent.name


def test_equal_results_are_not_slower(two):
    assert main(["compare", *(str(folder) for folder in two)]) == 0
    found = compare.verdicts(*map(compare.merged, two))
    assert {each.verdict for each in found} <= {"same", "ambiguous", "not comparable"}


def test_a_matmul_faster_than_its_gpu_allows_is_not_called_faster(tmp_path):
    for name in ("old", "new"):
        report_rows.lay_out(tmp_path / name, report_rows.GPU, models=(), sizes=(1024,))
    old, new = (tmp_path / name / "results" / report_rows.GPU for name in ("old", "new"))
    run = slow_down(new, 1e-3, step="bench_matmul", named="size=1024,precision=fp32")
    (ceiling,) = (new / "ceilings").glob("ceiling=fp32*/row.csv")
    rewrite(ceiling, max_clock_tflop_s="67")
    found = {each.run: each for each in compare.verdicts(*map(compare.merged, (old, new)))}
    assert found[run].verdict == "not comparable"
    because = keys(found[run].because)
    assert {"side_untimed", "above_highest_clock"} <= because
    assert {each.verdict for name, each in found.items() if name != run} <= {"same", "ambiguous"}


def test_a_slower_run_fails_the_build_and_is_named(two, tmp_path, capsys):
    run = slow_down(two[1], 1.5)
    out = tmp_path / "comparison.csv"
    assert main(["compare", *(str(folder) for folder in two), "--out", str(out)]) == 1
    assert "1 slower" in capsys.readouterr().out
    with out.open(newline="") as file:
        slower = [row for row in csv.DictReader(file) if row["verdict"] == "slower"]
    assert [row["run"] for row in slower] == [run]
    assert float(slower[0]["ratio"]) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("row", "compared_by"),
    [
        ({"time_s": 2.0, "median_time_s": 3.0, "time_p5_s": 1.5}, 1.5),  # a CPU's
        ({"time_s": "2", "median_time_s": "3", "time_p5_s": "1.5"}, 1.5),  # as a CSV has it
        ({"time_s": 3.0, "median_time_s": 3.0, "time_p5_s": 1.5}, 3.0),  # a GPU's
        ({"time_s": 2.0, "median_time_s": 3.0}, 2.0),  # a matmul's
        ({"time_s": None, "median_time_s": "", "time_p5_s": ""}, None),
    ],
)
def test_a_process_on_a_cpu_is_compared_by_its_fast_steps(row, compared_by):
    assert compare.fast_s(row) == compared_by


def test_sweeps_are_compared_by_fast_steps_and_recordings_by_what_they_keep(two, tmp_path):
    run = "model=resnet18"
    for folder in two:
        for path in (folder / "profile_step").glob(f"{run}*/row.csv"):
            rewrite(
                path,
                time_s="0.02",
                median_time_s="0.03",
                time_p5_s="0.01" if folder == two[1] else "0.015",
            )
    by_default, fast = ([compare.merged(folder, each) for folder in two] for each in (False, True))
    name = next(name for name in fast[0] if name[0] == "profile_step" and run in name[1])
    assert [rows[name]["time_s"] for rows in by_default] == [0.02, 0.02]
    assert [rows[name]["time_s"] for rows in fast] == [0.015, 0.01]


@pytest.mark.parametrize(("gate", "status"), [("5%", 1), ("0.6", 0), ("50%", 3)])
def test_a_gate_fails_passes_or_cannot_tell(two, capsys, gate, status):
    slow_down(two[1], 1.5)
    assert main(["compare", *map(str, two), "--gate", gate, "--json"]) == status
    told = capsys.readouterr()
    lines = [json.loads(line) for line in told.out.splitlines()]
    found = [line["verdict"] for line in lines if line["ratio"] == pytest.approx(1.5)]
    assert found == ["slower" if status == 1 else "ambiguous" if status == 3 else "same"]
    assert all(line["detects_percent"] > 5 for line in lines if line["ratio"])
    assert ("may be slower by more than 50 %" in told.err) == (status == 3)


@pytest.mark.parametrize("gate", ["much", "0", "-5%", "100%"])
def test_a_gate_that_is_no_share_is_said(two, capsys, gate):
    assert main(["compare", *map(str, two), "--gate", gate]) == 2
    assert f"'{gate}' is no share between 0 and 1, such as 5% or 0.05." in capsys.readouterr().err


def test_what_was_written_is_read_in_the_terminals_order(tmp_path):
    file = tmp_path / "comparison.csv"
    written = [
        Compared("profile_step", f"{says}?", says, 1.0, 2.0, ratio=2.0) for says in reversed(STYLES)
    ]
    write(
        [*written, Compared("profile_step", "twice", "slower")],
        file,
        tmp_path / "before",
        tmp_path / "after",
    )
    found = read(file)
    assert list(found["run"]) == ["slower?", "twice", *(f"{says}?" for says in list(STYLES)[1:])]
    seen = dict(found.iloc[0]) | {"old_s": "1.0", "new_s": "2.0", "because": ""}
    assert seen == dict(found.iloc[0])
    assert set(found["old"]) == {str(tmp_path / "before")}
    file.write_text("run,verdict\na,unheard of\nb,same\n")
    assert list(read(file)["run"]) == ["b", "a"]
    assert list(read(file).columns) == list(read(tmp_path / "none.csv").columns)
    file.write_text("run\na\n")
    assert read(file).empty


def test_a_run_of_one_set_alone_and_a_failed_one_say_so(two):
    missing = slow_down(two[1], 1.0)
    (two[1] / "profile_step" / missing / "row.csv").unlink()
    found = {each.run: each for each in compare.verdicts(*map(compare.merged, two))}
    because = (found[missing].verdict, found[missing].because)
    assert because == ("not comparable", Said("only_in_old"))
    statuses = []
    for each in found.values():
        if each.because and each.because.key == "side_untimed":
            statuses.append(each.because.numbers["status"])
    assert statuses.count("out_of_memory") == 2


def test_two_sets_with_nothing_in_common(two, tmp_path):
    (tmp_path / "empty" / "profile_step").mkdir(parents=True)
    assert main(["compare", str(two[0]), str(tmp_path / "empty")]) == 2


def test_a_results_folder_or_a_project_will_do_where_it_holds_one_machine(two, tmp_path, capsys):
    assert main(["compare", str(two[0].parent), str(two[1].parents[1])]) == 0
    assert f"{two[1]} against {two[0]}" in capsys.readouterr().out
    report_rows.lay_out(tmp_path / "new", report_rows.GPU, models=("resnet18",))
    assert main(["compare", str(two[0]), str(tmp_path / "new")]) == 2
    found = f"choose one of {two[1]}, {two[1].with_name(report_rows.GPU)}."
    assert found in capsys.readouterr().err


def test_a_time_without_an_interval_decides_nothing_and_shows_none(two):
    run = slow_down(two[1], 3, known=False)
    found = next(each for each in compare.verdicts(*map(compare.merged, two)) if each.run == run)
    assert (found.verdict, found.ratio) == ("ambiguous", pytest.approx(3))
    assert found.because == Said("measured_by_one", {"sides": "new"})
    assert found.ratio_low is found.ratio_high is None


def test_a_folder_that_is_not_there_is_named(two, capsys):
    assert main(["compare", str(two[0]), "nowhere"]) == 2
    assert "nowhere: no results here" in capsys.readouterr().err


@pytest.mark.parametrize("ambiguous", [1, compare.MOST_UNFOLDED + 1])
def test_markdown_shows_what_differs_and_folds_the_rest(ambiguous):
    times = {"slower": 2.0, "faster": 0.5, "ambiguous": 1.01, "same": 1.001}
    verdicts = [*times, *["ambiguous"] * (ambiguous - 1)]
    compared = []
    for says in verdicts:
        ratio = times[says]
        run = Compared(
            "profile_step", f"a|b\n{says}", says, 0.01, 0.01 * ratio, ratio, 0.4, 2.1, 3.0
        )
        compared.append(run)
    lost = Compared("profile_step", "gone", "not comparable", because=as_told("only | in old"))
    text = Texts("en", "compare")
    shown = compare.markdown([*compared, lost], "new against old", "a basis", text)
    parser = pytest.importorskip("markdown_it").MarkdownIt("commonmark", {"html": True})
    tokens = parser.enable("table").parse(shown)
    kinds = [token.type for token in tokens]
    is_folded = ambiguous > compare.MOST_UNFOLDED
    tables = 2 + is_folded
    assert (kinds.count("table_open"), kinds.count("tr_open")) == (tables, tables + len(verdicts))
    assert kinds.count("td_open") == len(compare.HEADS) * len(verdicts)
    texts = [token.content for token in tokens if token.type == "inline"]
    assert sorted(text for text in texts if text in times) == sorted(verdicts)
    values = [text for text in texts if text.endswith("ms")]
    assert len(values) == 2 * len(verdicts)
    assert not any(" " in value for value in values)
    before = shown.partition("<details>")[0]
    assert ("slower |" in before, "ambiguous |" in before) == (True, not is_folded)
