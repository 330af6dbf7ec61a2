"""Rows that nobody measured: tables are built, no figure raises, and the row says why."""

import csv
import json
import os
import shutil
from pathlib import Path
from pkgutil import iter_modules

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import report_rows, slow
from support.planted import PLANTED

from mfulab.cli.main import main
from mfulab.core import files
from mfulab.lab.report import figures, frames
from mfulab.lab.report.drawing import vector
from mfulab.lab.report.figures import roofline
from mfulab.lab.report.page import document
from mfulab.lab.tables import build
from mfulab.measurements.registry import MEASUREMENTS

# `make test ALL=1` takes 30, `make faults` 2,000
EXAMPLES = int(os.environ.get("MFULAB_EXAMPLES", "8"))
NUMBERS = [
    "0",
    "-0.0",
    "-1",
    "1e-320",
    "1e-30",
    "9.9e29",
    "1e30",
    "1e308",
    "1e400",
    "inf",
    "nan",
    "9" * 18,
    "9" * 400,
]
WORDS = [
    "",
    "abc",
    "True",
    "\0",
    "\n",
    '"',
    "a/b",
    "../../x",
    "=1+1",
    "$x$_{",
    "한글",
    "é",
    "x" * 3000,
    "2026-01-01",
]
JSON = [
    "[",
    "{}",
    "[]",
    "null",
    "[1, 2]",
    '{"a": 1}',
    '{"a": null}',
    '[{"a": 1}]',
    '{"forward": [[1e400, 0]]}',
    "NaN",
    f"[{'9' * 400}]",
    f'{{"a": {"9" * 400}}}',
    f'[{{"time_ns": {"9" * 400}}}]',
]


def lay_out(root: Path) -> Path:
    """The invented machine with one model and steps of traces; gives its manifest."""
    manifest = report_rows.lay_out(root, models=("resnet18",))
    plan = json.loads(manifest.read_text())
    for row in report_rows.traces():
        folder = report_rows.write_run(root, "", "read_trace", row, {})
        plan["runs"].append({"step": "read_trace", "run": row.run, "folder": folder})
    manifest.write_text(json.dumps(plan))
    return manifest


def tables_of(root: Path) -> Path:
    return report_rows.tabled(root, root / "results" / report_rows.CPU / "plan/invented.json")


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def spoil(path: Path, column: str, cell: str) -> None:
    [row] = lines(path)
    files.write_csv(path, [{**row, column: cell}])


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("laid_out")
    lay_out(root)
    return root


@pytest.fixture
def root(laid_out, tmp_path) -> Path:
    shutil.copytree(laid_out, tmp_path, dirs_exist_ok=True)
    return tmp_path


def reason_of(row: dict[str, str]) -> dict[str, dict[str, object]]:
    """Why a row is unreadable, as a key and its numbers."""
    return json.loads(row["message"])["row_unreadable"]["reason"]["of_source"]["reason"]


def row_of(root: Path, step: str = "profile_step", word: str = "") -> Path:
    return next(
        path
        for path in sorted(root.glob(f"results/**/{step}/*/row.csv"))
        if word in path.parent.name
    )


@st.composite
def spoilt(draw):
    """A step, one of its columns, a cell for it, and whether every row of the step gets it."""
    step = draw(
        st.sampled_from(["profile_step", "bench_matmul", "ceilings", "count_flops", *MEASUREMENTS])
    )
    fields = MEASUREMENTS[step].row.model_fields
    column = draw(st.sampled_from([*fields]))
    is_json = (fields[column].description or "").startswith("JSON")
    return (
        step,
        column,
        draw(st.sampled_from(JSON if is_json else [*NUMBERS, *WORDS])),
        draw(st.booleans()),
    )


def figure_names() -> st.SearchStrategy[list[str]]:
    """Two figures, since drawing all of them takes seconds."""
    names = sorted(info.name for info in iter_modules(figures.__path__))
    return st.lists(st.sampled_from(names), min_size=2, max_size=2, unique=True)


@pytest.mark.slow
@settings(max_examples=min(300, EXAMPLES), deadline=None)
@given(spoilt=st.lists(spoilt(), min_size=1, max_size=4), drawn=figure_names())
def test_no_cell_costs_a_table_or_a_figure(laid_out, tmp_path_factory, spoilt, drawn):
    root = tmp_path_factory.mktemp("spoilt")
    shutil.copytree(laid_out, root, dirs_exist_ok=True)
    for step, column, cell, is_all in spoilt:
        found = sorted(root.glob(f"results/**/{step}/*/row.csv"))
        for path in found if is_all else found[:1]:
            spoil(path, column, cell)
    tables, problems = frames.read(tables_of(root))
    assert not any("cannot be read" in problem.text for problem in problems)
    for name in drawn:
        figures.render(name, tables)
    shutil.rmtree(root)


def test_a_time_that_no_step_takes_is_no_number(root):
    """It made the roofline's axes infinite."""
    spoil(row_of(root, word="inference"), "time_s", "1e-320")
    found = lines(tables_of(root) / "profile.csv")
    [row] = [row for row in found if row["status"] == "failed"]
    said = {"cell": "time_s", "value": "1e-320"}
    assert reason_of(row) == {"cell_out_of_range": said}
    assert figures.render("roofline", frames.read(root / "tables")[0])


@pytest.mark.parametrize(
    "column", slow.few(["measured_tflop_s", "computed_tflop_s", "datasheet_tflop_s"])
)
def test_a_peak_of_zero_is_no_number(root, column):
    spoil(row_of(root, "ceilings", "fp32"), column, "0")
    found = lines(tables_of(root) / "ceilings.csv")
    [row] = [row for row in found if row["status"] == "failed"]
    assert reason_of(row) == {"cell_no_peak": {"cell": column}}
    figures.render("ceilings", frames.read(root / "tables")[0])


ENDLESS = {"lists": "[" * 200_000, "objects": '{"a":' * 3000, "letters": "x" * 200_000}


@pytest.mark.parametrize("column", slow.few(["device_name", "python", "driver"]))
@pytest.mark.parametrize("text", slow.few(ENDLESS))
def test_a_text_without_end_costs_its_row_alone(root, column, text):
    spoil(row_of(root, "environment"), column, ENDLESS[text])
    found = lines(tables_of(root) / "environment.csv")
    broken = [row for row in found if row["status"] == "failed"]
    assert [column in row["message"] for row in broken] == [True]
    assert all(len(cell) < 5000 for row in found for cell in row.values())
    assert any(row["status"] == "ok" for row in lines(root / "tables/profile.csv"))


@pytest.mark.parametrize("run", ["", "another"])
def test_the_row_of_another_run_is_not_taken_for_this_one(root, run):
    path, other = row_of(root, word="inference"), row_of(root, word="training").parent.name
    spoil(path, "run", run and other)
    found = lines(tables_of(root) / "profile.csv")
    [row] = [row for row in found if row["status"] == "failed"]
    assert row["run"] == path.parent.name
    named = {"run": run and other, "hardware": path.parents[2].name}
    assert reason_of(row) == {"row_of_another": named}
    assert str(path) in row["message"]


@pytest.mark.parametrize("run", ["", "first"])
def test_a_recorded_row_without_a_run_of_its_own_is_named(root, run):
    measured = lines(tables_of(root) / "profile.csv")
    folder = root / "reference" / "machine"
    recorded = [
        {**row, "run": measured[0]["run"] if run else ""} if n == 2 else row
        for n, row in enumerate(measured)
    ]
    files.write_csv(folder / "profile.csv", recorded)
    found = build.collect(reference=root / "reference")
    assert len(found.records["profile"]) == len(measured) - 1
    [problem] = found.upkeep
    assert (problem.key, problem.numbers["line"]) == ("line_unreadable", 4)
    assert problem.numbers["file"] == str(folder / "profile.csv")
    reason = problem.numbers["reason"]
    assert reason.key == ("run_there_twice" if run else "run_empty")


def test_a_column_of_another_shape_costs_its_row_alone(root):
    spoil(
        row_of(root, "count_flops"),
        "intensities",
        '{"inference": [1], "forward": 3, "backward": 3}',
    )
    spoil(row_of(root, "read_trace"), "spent", '["x"]')
    tables = tables_of(root)
    for name in ("profile", "traces"):
        rows = lines(tables / f"{name}.csv")
        failed = [row for row in rows if row["status"] == "failed"]
        assert failed
        assert any(row["status"] == "ok" for row in rows)
        for row in failed:
            assert [*json.loads(row["message"])] == ["cannot_be_joined"]


def test_samples_without_end_are_named_and_not_read(root):
    path = row_of(root).with_name("samples.csv")
    path.write_text("window,step,time_s\n" + "0,0,1.0\n" * (1 << 20))
    [problem] = lines(tables_of(root) / "problems.csv")
    said = json.loads(problem["said"])["run_shown_without"]
    assert said["reason"] == {
        "of_source": {"source": str(path), "reason": {"larger_than": {"mib": 8}}}
    }


@pytest.mark.parametrize("what", slow.few(PLANTED, 2))
def test_what_stands_in_place_of_a_row_or_a_table_is_named(root, what):
    path = row_of(root)
    path.unlink()
    PLANTED[what](path)
    tables = tables_of(root)
    [row] = [row for row in lines(tables / "profile.csv") if row["run"] == path.parent.name]
    assert str(path) in row["message"]
    for name in ("profile", "series", "excluded", "seminar", "comparison"):
        (tables / f"{name}.csv").unlink(missing_ok=True)
        PLANTED[what](tables / f"{name}.csv")
    found, problems = frames.read(tables)
    assert found["profile"].empty
    assert any("profile.csv" in problem.text for problem in problems)
    assert frames.texts(tables / "excluded.csv").empty
    assert frames.texts(tables / "seminar.csv").empty


def test_odd_files_of_a_run_cost_its_row_alone(root):
    """Thousands of columns, another encoding, a row that is there twice, a NUL."""
    wide, latin, twice, nul = sorted(root.glob("results/**/profile_step/*/row.csv"))[:4]
    [row] = lines(wide)
    files.write_csv(wide, [{**row, **{f"column_{number}": 1 for number in range(5000)}}])
    latin.write_bytes(latin.read_text().replace("inference", "inférence").encode("utf-16"))
    files.write_csv(twice, [*lines(twice), *lines(twice)])
    nul.write_bytes(nul.read_bytes().replace(b"eager", b"ea\0er"))
    found = {row["run"]: row for row in lines(tables_of(root) / "profile.csv")}
    assert found[wide.parent.name]["status"] == "ok"  # of a later version, which may know more
    for path in (latin, twice):
        assert found[path.parent.name]["status"] == "failed"
        assert str(path) in found[path.parent.name]["message"]
    assert len(found) == len(list(root.glob("results/**/profile_step/*/row.csv")))


@pytest.fixture
def few(monkeypatch) -> None:
    """Two figures: a page with all of them takes many seconds."""
    known = figures.modules()
    monkeypatch.setattr(
        figures, "modules", lambda: {name: known[name] for name in ("ceilings", "roofline")}
    )


@pytest.mark.parametrize(
    ("part", "language"), slow.few([("draw", "ko"), ("rows", "en"), ("finding", "en")], 0)
)
def test_a_figure_that_raises_is_a_line_on_the_page(root, few, monkeypatch, part, language):
    def broken(*_):
        raise ValueError("Axis limits cannot be NaN or Inf <b>")

    tables = tables_of(root)
    monkeypatch.setattr(roofline, part, broken)
    out = root / "figures"
    main(["figures", "--tables", str(tables), "--list", str(root / "listed")])
    assert (root / "listed").read_text().split() == ["ceilings", "roofline"]
    main(["figures", "--tables", str(tables), "--out", str(out), "--language", language])
    found = {path.name for path in out.glob("roofline.*")}
    assert found == {"roofline.svg", "roofline.png", "roofline.pdf"}
    assert vector.saved(out, "roofline") is None
    for content in (document.build(tables, out, language), document.build(tables, None, language)):
        assert 'id="figure-ceilings"' in content
        assert 'id="figure-roofline"' not in content
        assert "Axis limits cannot be NaN or Inf &lt;b&gt;" in content
