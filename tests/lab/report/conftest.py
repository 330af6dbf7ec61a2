"""Tables of two invented machines, and a page that is drawn once for all tests."""

import json
from pathlib import Path

import pytest
from support import report_rows
from support.shared import leave_figures, leave_the_headline, made_once
from support.slow import AT_NIGHT

from mfulab.cli.main import main
from mfulab.lab.report import frames, trust

# Of the page by day: one of each topic, in their order, and of each way of drawing.
FIGURES_BY_DAY = (
    "mfu_versus_utilization",
    "headroom",
    "utilization_ladder",
    "time_by_batch_size",
    "training_phases",
    "precision_speed",
    "number_formats",
    "computational_graph",
    "roofline",
    "ceilings",
    "kernel_ladder",
    "memory_breakdown",
)


@pytest.fixture(scope="session")
def invented(tmp_path_factory) -> frames.Tables:
    """Every table of the two machines with all of their models. Tests change copies."""
    root = made_once(tmp_path_factory, "invented", _make_invented)
    return frames.read(root / "tables")[0]


def _make_invented(root: Path) -> None:
    machines = (report_rows.CPU, report_rows.GPU)
    report_rows.tabled(root, *(report_rows.lay_out(root, machine) for machine in machines))


@pytest.fixture(scope="session")
def recorded(tables_of_recordings) -> frames.Tables:
    """The tables of the recordings that the project ships."""
    return frames.read(tables_of_recordings)[0]


@pytest.fixture(scope="session")
def quickstart(recorded) -> frames.Tables:
    """What the recorded CPU measured of the first sweep's models and kernels, as if measured
    here."""
    models, modes = ["simple_cnn", "resnet18", "gpt2"], ["training", "inference"]
    own = {}
    for name, rows in recorded.items():
        if {"recorded", "hardware"} <= set(rows):
            rows = rows[rows["hardware"].str.startswith("amd")]
            rows = rows.assign(recorded=False, experiment="quickstart")
        if name == "profile":
            usual = rows["model"].isin(models) & rows["workload"].isin(modes)
            usual &= rows["batch_size"].isin([1, 4]) & (rows["execution"] == "eager")
            rows = rows[usual & rows["precision"].isin(["fp32", "bf16"])]
        own[name] = rows.head(0) if name == "traces" else rows
    return trust.judged(own)


@pytest.fixture(scope="session")
def page(tmp_path_factory) -> Path:
    """A folder with tables, figures and the page, hostile texts among them; tests change copies.

    By day it has a figure or two of each topic, and the page in Korean beside it the first alone.
    """
    return made_once(tmp_path_factory, "page", _make_page)


def _make_page(root: Path) -> None:
    manifest = report_rows.lay_out(root, models=(*report_rows.MODELS, report_rows.EVIL_NAME))
    reason = json.dumps(f"a day of pure Python {report_rows.EVIL}").strip('"')
    manifest.write_text(manifest.read_text().replace("a day of pure Python", reason))
    of_machine = root / "results" / report_rows.CPU
    row = next((of_machine / "environment").iterdir()) / "row.csv"
    cell = report_rows.EVIL.replace('"', '""')
    row.write_text(row.read_text().replace("Linux 6.1", f'"{cell}"'))
    run = next(path for path in (of_machine / "profile_step").iterdir() if "gpt2" in path.name)
    (run / "log").write_text(f"</script>{report_rows.EVIL_NAME}")
    tables, drawn = str(root / "results/tables"), str(root / "figures")
    main(["tables", "--root", str(root), "--out", tables, "--manifest", str(manifest)])
    written = ["page", "--tables", tables, "--figures", drawn, "--out"]
    with pytest.MonkeyPatch.context() as patch:
        if not AT_NIGHT:
            leave_figures(patch, FIGURES_BY_DAY)
        main(["figures", "--tables", tables, "--out", drawn, "--formats", "svg"])  # once for both
        main([*written, str(root / "report.html"), "--language", "en"])
        if not AT_NIGHT:
            leave_the_headline(patch)
        main([*written, str(root / "korean.html"), "--language", "ko"])
