"""Recorded results: what was measured once is shown anywhere without measuring."""

from pathlib import Path

import pandas as pd
import pytest
from support import report_rows

from mfulab.cli.main import main
from mfulab.core.language import Texts
from mfulab.lab.report import figures, frames, trust
from mfulab.lab.report.figures import repeatability
from mfulab.lab.report.page import document
from mfulab.lab.tables import build, compare
from mfulab.lab.tables.recording import record

ROOT = Path(__file__).parents[3]
CPU = "amd-epyc-2c"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """results/reference of a machine that measured and recorded."""
    root = tmp_path_factory.mktemp("measured")
    report_rows.tabled(root, report_rows.lay_out(root, report_rows.GPU))
    return record(root / "results", report_rows.GPU).parent


@pytest.mark.slow
def test_everything_is_drawn_again_elsewhere(recorded, tmp_path, request):
    """The same figures with the same findings as on the machine that measured, each marked as
    recorded."""
    measured = frames.read(recorded.parents[1] / "tables")[0]
    main(["tables", "--reference", str(recorded), "--out", str(tmp_path / "tables")])
    again, problems = frames.read(tmp_path / "tables")
    assert problems == []
    for name, module in figures.modules().items():
        first, second = module.rows(measured), module.rows(again)
        if "machine" not in second:
            continue  # public runs and other libraries' tables are no machine's
        assert len(first) == len(second), name
        if len(first) and "mfu_percent" in first:
            found = sorted(first["mfu_percent"].dropna())
            assert found == pytest.approx(sorted(second["mfu_percent"].dropna()))
        if len(second):
            assert second["machine"].str.endswith("(recorded)").all()
    request.getfixturevalue("one_figure")
    content = document.build(tmp_path / "tables")
    assert "Invented GPU 80GB (recorded)" in content
    assert "mfu_versus_utilization.svg --config experiment=recorded" in content


@pytest.fixture(scope="module")
def beside(recorded, tmp_path_factory) -> frames.Tables:
    """Tables of another machine that measured the same where these recordings lie."""
    root = tmp_path_factory.mktemp("beside")
    manifest = report_rows.lay_out(root, report_rows.CPU)
    return frames.read(report_rows.tabled(root, manifest, reference=recorded))[0]


def test_this_machine_comes_before_recorded_ones(beside):
    drawn = figures.render("roofline", beside)
    found = [axes.get_title(loc="left") for axes in drawn.figure.axes]
    assert found == ["Invented Xeon", "Invented GPU 80GB (recorded)"]


def test_a_machine_that_was_measured_is_not_shown_as_recorded_too(recorded, tmp_path):
    manifest = report_rows.lay_out(tmp_path, report_rows.GPU, models=("resnet18",))
    found, _ = frames.read(report_rows.tabled(tmp_path, manifest, reference=recorded))
    assert all(not rows["recorded"].any() for rows in found.values())
    assert set(found["profile"]["model"]) == {"resnet18"}


def test_a_recorded_cpu_is_shown_where_nothing_was_measured_and_only_there(tmp_path):
    report_rows.lay_out(tmp_path / "elsewhere")
    recorded = record(tmp_path / "elsewhere/results", report_rows.CPU, allow_unfit=True).parent
    manifest = report_rows.lay_out(tmp_path, report_rows.GPU)
    beside = build.collect([manifest], tmp_path, reference=recorded)
    assert {row["hardware"] for row in beside.records["profile"]} == {report_rows.GPU}
    alone = build.collect(reference=recorded)
    assert {row["hardware"] for row in alone.records["profile"]} == {report_rows.CPU}


def test_what_needs_no_device_is_there_once(beside):
    for name in ("flops", "counters", "formats"):
        assert not beside[name]["run"].duplicated().any(), name
    assert beside["profile"]["recorded"].any()


@pytest.mark.slow
def test_sentences_are_about_the_machine_that_was_measured(beside, tmp_path):
    """A recorded machine beside it changes what is drawn, and of a sentence that it is named."""
    manifest = report_rows.lay_out(tmp_path, report_rows.CPU)
    alone, _ = frames.read(report_rows.tabled(tmp_path, manifest))
    for name, module in figures.modules().items():
        text, rows = Texts("en", name), module.rows(alone)
        if rows.empty:
            continue
        expected = figures.finding(module, rows, text)
        both = module.rows(beside)
        told = figures.finding(module, both, text)
        if "machine" in both and both["machine"].nunique() > 1:
            told = told.removeprefix(f"{rows['machine'].iloc[0]}: ")
        assert told == expected, name


def test_the_documents_trust_the_recorded_cpu_as_its_rows_do(tables_of_recordings):
    tables = trust.judged(frames.read(tables_of_recordings)[0])
    rows = repeatability.rows(tables)
    times = tuple(rows.loc[rows["hardware"] == CPU, "times"])
    found = compare.trust(times)
    told = " ".join((ROOT / "docs/measuring.md").read_text(encoding="utf-8").split())
    shares = f"{found.false_percent:.0f} % of {found.verdicts} comparisons and "
    shares += f"{found.covered_percent:.0f} % of {found.measurements} intervals"
    assert f"{shares}, with a usual spread of {found.spread_percent:.0f} %" in told
    measured = []
    for name in ("profile", "matmul"):
        rows = frames.ok(tables[name])
        measured.append(rows.loc[rows["hardware"] == CPU, ["doubtful", "precision_percent"]])
    steps = pd.concat(measured)
    told = " ".join((ROOT / "docs/report.md").read_text(encoding="utf-8").split())
    assert f"{steps['doubtful'].sum()} of {len(steps)} steps and matmuls were doubtful" in told
    assert f"half-width of all times is ±{steps['precision_percent'].median():.0f} %" in told
