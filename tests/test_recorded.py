"""Recorded results: what was measured once is shown anywhere, figure by figure, without measuring."""

from pathlib import Path

import pytest
import report_rows

from mfulab.report import figures, frames, page, tables


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """results/reference of a machine that measured and recorded."""
    root = tmp_path_factory.mktemp("measured")
    manifest = str(report_rows.lay_out(root))
    reference = root / "reference"
    tables.main(
        ["--root", str(root), "--out", str(root / "tables"), "--manifest", manifest, "--record", str(reference)]
    )
    return reference


def test_recorded_tables_hold_rows_and_no_joined_values(recorded):
    folder = recorded / report_rows.CPU
    assert {path.name for path in folder.iterdir()} >= {
        f"{name}.csv" for name in ("environment", "profile", "matmul", "series")
    }
    header = (folder / "profile.csv").read_text().partition("\n")[0].split(",")
    assert "time_s" in header
    assert "mfu_percent" not in header


def test_everything_is_drawn_again_elsewhere(recorded, tmp_path):
    """The same figures with the same findings as on the machine that measured, each marked as recorded."""
    measured = frames.read(recorded.parent / "tables")[0]
    tables.main(["--reference", str(recorded), "--out", str(tmp_path / "tables")])
    again, problems = frames.read(tmp_path / "tables")
    assert problems == []
    for name, module in figures.modules().items():
        first, second = module.rows(measured), module.rows(again)
        assert len(first) == len(second), name
        if len(first) and "mfu_percent" in first:
            assert sorted(first["mfu_percent"].dropna()) == pytest.approx(sorted(second["mfu_percent"].dropna()))
        if "machine" in second and len(second):
            assert second["machine"].str.endswith("(recorded)").all()
    content = page.build(tmp_path / "tables")
    assert "Invented Xeon (recorded)" in content


def test_this_machine_comes_before_recorded_ones(recorded, tmp_path):
    manifest = report_rows.lay_out(tmp_path, report_rows.GPU)
    arguments = ["--root", str(tmp_path), "--out", str(tmp_path / "tables"), "--manifest", str(manifest)]
    tables.main([*arguments, "--reference", str(recorded)])
    found, _ = frames.read(tmp_path / "tables")
    drawn = figures.render("mfu_versus_utilization", found)
    assert [axes.get_title(loc="left") for axes in drawn.figure.axes] == [
        "Invented GPU 80GB",
        "Invented Xeon (recorded)",
    ]


def test_every_figure_has_a_caption_for_snakemakes_report():
    captions = (Path(__file__).parents[1] / "workflow/report/figure.rst").read_text()
    for name in figures.modules():
        assert f'"{name}": "' in captions
