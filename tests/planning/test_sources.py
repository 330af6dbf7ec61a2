"""The files that a run depends on, read from import statements and from the names of data files."""

import sys
from pathlib import Path

import pytest

from mfulab.core.errors import ConfigurationError
from mfulab.measurements.registry import MEASUREMENTS
from mfulab.planning import sources


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An empty folder in which modules are looked for."""
    monkeypatch.chdir(tmp_path)
    remembered = (sources.locate, sources.target_sources, sources.closure)
    remembered += (sources._file, sources._is_local, sources._data_files)
    for function in remembered:
        function.cache_clear()
    yield tmp_path
    for function in remembered:
        function.cache_clear()


@pytest.fixture
def own_module(elsewhere):
    (elsewhere / "my_layers.py").write_text("WIDTH = 3\n")
    (elsewhere / "my_module.py").write_text("import torch\nfrom my_layers import WIDTH\n\n\ndef build():\n    pass\n")
    return elsewhere


def data(module):
    """Names of the files that a module depends on and that are no Python."""
    return {path.name for path in sources.closure(module) if path.suffix != ".py"}


def test_a_step_depends_on_its_imports_at_any_depth():
    names = {path.name for path in sources.step_sources("bench_matmul")}
    assert {"bench_matmul.py", "base.py", "configs.py", "rows.py"} <= names
    assert all(path.is_relative_to(sources.PACKAGE) for path in sources.step_sources("bench_matmul"))


def test_a_step_does_not_depend_on_other_steps():
    assert "profile_step.py" not in {path.name for path in sources.step_sources("bench_matmul")}


@pytest.mark.parametrize(
    ("kernel", "files"),
    [
        ("cuda_hopper", {"hopper.cu", "hopper_tiles.cuh", "grouped.cuh", "hopper.cuh"}),
        ("cuda_grouped", {"prefetched.cu", "async_tiles.cuh", "async.cuh", "quads.cuh"}),
        ("cuda_vectorised", {"vectorised.cu", "quads.cuh"}),
        ("cuda_naive", {"naive.cu"}),
        ("cuda_tiled", set()),
        ("numba_cuda_naive", set()),
    ],
)
def test_a_kernel_brings_its_own_cuda_c_and_no_other(kernel, files):
    assert data(f"mfulab.kernels.{kernel}") == files


def test_the_tables_of_peaks_decide_what_holds_peaks_alone():
    tables = {path.name for path in (sources.PACKAGE / "hardware").glob("*.csv")}
    assert {step for step in MEASUREMENTS if data(f"mfulab.measurements.{step}.measure") & tables} == {
        "ceilings",
        "published",
        "peaks_audit",
    }
    assert data("mfulab.measurements.ceilings.measure") == tables
    # A measured run's peak is in its ceiling's row; that of a trace is looked up when its row is joined.
    assert data("mfulab.tables.build") == {"checked_texts.csv", "datasheets.csv", "fma_per_clock_per_unit.csv"}


def test_texts_decide_figures_and_page_and_no_table_or_measurement():
    catalogues = {path.name for path in (sources.PACKAGE / "language/catalogue").iterdir()}
    assert [step for step in MEASUREMENTS if data(f"mfulab.measurements.{step}.measure") & catalogues] == []
    assert data("mfulab.tables.build") & catalogues == set()
    assert data("mfulab.report.figures.ceilings") - data("mfulab.tables.build") == catalogues


def test_templates_decide_the_page_alone():
    templates = {path.name for path in (sources.PACKAGE / "report/page/templates").iterdir()}
    page = data("mfulab.report.page.document")
    assert page - templates == data("mfulab.report.figures")
    assert page & templates == templates


def test_every_data_file_of_the_package_decides_something():
    kernels = [f"kernels.{path.stem}" for path in (sources.PACKAGE / "kernels").glob("[!_]*.py")]
    modules = [
        "cli.main",
        "report.page.document",
        "tables.build",
        *(f"measurements.{step}.measure" for step in MEASUREMENTS),
        *kernels,
    ]
    read = {path for module in modules for path in sources.closure(f"mfulab.{module}") if path.suffix != ".py"}
    assert read == {path for paths in sources._data_files().values() for path in paths}


def test_data_are_followed_through_names_patterns_and_includes(elsewhere, monkeypatch):
    monkeypatch.setattr(sources, "PACKAGE", elsewhere / "lab")
    texts = {
        "kernel.py": '"""Not a name: words/no.yaml."""\nfrom lab import words\n\nSOURCE = "a.cu"\n',
        "words.py": 'FILES = "words/*.yaml"\n',
        "other.py": 'TABLE = "table.csv"\n',
        "table.csv": "",
        "words/en.yaml": "",
        "words/no.txt": "",
        "cuda/a.cu": '#include <mma.h>\n#include "b.cuh"\n',
        "cuda/b.cuh": '#include "c.cuh"\n',
        "cuda/c.cuh": '#include "b.cuh"\n',
        "cuda/d.cu": "",
    }
    for name, text in texts.items():
        path = elsewhere / "lab" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (elsewhere / "lab/__init__.py").write_text("from lab import other\n")
    assert data("lab.kernel") == {"a.cu", "b.cuh", "c.cuh", "en.yaml"}


def test_a_module_is_not_looked_for_in_a_name_of_another(elsewhere):
    (elsewhere / "cpu.py").write_text("")
    assert sources._file("mfulab.device.cpu.cpu") is None


def test_an_own_model_brings_its_files(own_module):
    assert {path.name for path in sources.target_sources("my_module.build")} == {"my_module.py", "my_layers.py"}
    assert "my_module" not in sys.modules


def test_a_library_brings_none():
    assert sources.target_sources("torch.nn.Linear") == ()


def test_a_missing_module_is_named(own_module):
    with pytest.raises(ConfigurationError, match=r"_target_=my_modul\.build: no module my_modul "):
        sources.locate("my_modul.build")


def test_a_missing_name_is_named_with_the_nearest(own_module):
    with pytest.raises(ConfigurationError, match="Did you mean build"):
        sources.locate("my_module.buid")


def test_a_syntax_error_is_told_with_its_line(elsewhere):
    Path("broken.py").write_text("def build(:\n")
    with pytest.raises(ConfigurationError, match=r"broken\.py:1"):
        sources.locate("broken.build")
