"""Adding a thing takes few files: each test writes them into a copy and runs what it added there."""

import csv
from pathlib import Path

import pytest

pytestmark = [pytest.mark.workflow, pytest.mark.xdist_group("adding")]


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new), encoding="utf-8")


def row(folder: Path, pattern: str) -> dict[str, str]:
    (path,) = (folder / "results").glob(pattern)
    with path.open(newline="", encoding="utf-8") as file:
        return next(csv.DictReader(file))


def test_a_number_format_is_a_line_of_the_table_and_its_config(make_project):
    project = make_project(with_source=True)
    table = project.folder / "src/mfulab/core/formats.py"
    line = '        Format("int8", "int8"'
    replace(table, line, f'        Format("fp8_e5m2", "float8_e5m2", "bfloat16", 8, 1, 3.4e-3),\n{line}')
    with (project.folder / "config/precision.yaml").open("a", encoding="utf-8") as file:
        file.write("fp8_e5m2: { dtype: float8_e5m2 }\n")
    project.snakemake("rows", "--config", "experiment=number_formats", "precision=fp8_e5m2")
    probed = row(project.folder, "number_formats/precision=fp8_e5m2/row.csv")
    assert (probed["status"], probed["exponent_bits"], probed["mantissa_bits"]) == ("ok", "5", "2")


def test_a_kernel_is_a_module(make_project):
    project = make_project(with_source=True)
    kernel = """
from mfulab.kernels.cpu_numpy import Numpy


class NumpyAgain(Numpy):
    after = "numpy"
    adds = "nothing"
"""
    (project.folder / "src/mfulab/kernels/numpy_again.py").write_text(kernel)
    short = "timing.windows=2 timing.window_time_s=0.02 timing.warm_up_time_s=0.1"
    options = ("experiment=miniature", "steps=[bench_matmul]", "kernel=numpy_again", "size=64", f"overrides={short}")
    project.snakemake("rows", "--config", *options, "device=cpu")
    assert row(project.folder, "*/bench_matmul/kernel=numpy_again*/row.csv")["adds"] == "nothing"


def test_a_joined_column_is_a_line_and_a_language_a_catalogue(make_project):
    project = make_project(with_source=True)
    join = project.folder / "src/mfulab/tables/join.py"
    line = '        "share_of_spec_percent": percent(speed, peak),'
    replace(join, line, f'{line}\n        "flops_per_byte": ratio(row.get("flops"), row.get("bytes_moved")),')
    catalogues = project.folder / "src/mfulab/core/language/catalogue"
    english = (catalogues / "en.yaml").read_text(encoding="utf-8")
    (catalogues / "xx.yaml").write_text(english.replace("One matmul", "Xne xatrix xroduct"), encoding="utf-8")
    project.snakemake("report", "--config", "experiment=recorded", "overrides=report.language=xx")
    with (project.folder / "results/tables/matmul.csv").open(newline="", encoding="utf-8") as file:
        assert "flops_per_byte" in next(csv.reader(file))
    assert '<html lang="xx"' in (project.folder / "reports/report.html").read_text(encoding="utf-8")


def test_a_step_is_its_entry_config_row_and_module(make_project):
    project = make_project(with_source=True)
    package = project.folder / "src/mfulab"
    config = package / "core/configs.py"
    config.write_text(
        config.read_text()
        + '''

class CountLettersConfig(StepConfig):
    """Letters of a model's name."""

    axes: ClassVar[tuple[str, ...]] = ("model",)
    on_device: ClassVar[bool] = False
    model: ModelConfig
'''
    )
    rows = package / "core/rows.py"
    rows.write_text(
        rows.read_text()
        + '''

class LettersRow(Row):
    """Letters of a model's name."""

    model: str = ""
    letters: int | None = None
'''
    )
    replace(
        package / "measurements/registry.py",
        "    for each in (\n",
        """    for each in (
        Measurement(
            "count_letters", "letters", configs.CountLettersConfig, rows.LettersRow, "Reading {wildcards.run}",
            "model status letters",
        ),
""",
    )
    (package / "steps/count_letters.py").write_text(
        """
from mfulab.core.rows import LettersRow
from mfulab.core.measurement import Measured


def measure(config, folder):
    return Measured(LettersRow(model=config.model.name, letters=len(config.model.name)))
"""
    )
    script = (project.folder / "scripts/count_flops.py").read_text()
    (project.folder / "scripts/count_letters.py").write_text(script.replace("count_flops", "count_letters"))
    (package / "report/figures/letters.py").write_text(
        """
from mfulab.report.frames import ok

TABLES = ("letters",)
TOPIC = "flops"
ORDER = 9


def rows(tables):
    return ok(tables["letters"], "letters")


def finding(rows, text):
    return text("finding", model=rows.iloc[0]["model"])


def draw(rows, figure, text):
    figure.subplots().barh(rows["model"], rows["letters"])
"""
    )
    for language in ("en", "ko"):
        with (package / f"language/catalogue/{language}.yaml").open("a", encoding="utf-8") as file:
            file.write("\nletters:\n  title: Letters\n  reading: Bars.\n  finding: Of {model}.\n")
    options = ("experiment=miniature", "steps=[count_letters]", "model=digit_cnn", "device=cpu")
    done = project.snakemake("report", "--config", *options)
    assert row(project.folder, "count_letters/model=digit_cnn/row.csv")["letters"] == str(len("digit_cnn"))
    assert (project.folder / "reports/figures/letters.svg").exists(), done.stdout
    assert "Of digit_cnn." in (project.folder / "reports/report.html").read_text(encoding="utf-8")
