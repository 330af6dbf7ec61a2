"""The files that a run depends on, read from import statements and from the names of data files."""

import os
import shutil
import sys
import textwrap
from pathlib import Path

import pytest

from mfulab.core.errors import ConfigurationError
from mfulab.lab.planning import sources
from mfulab.measurements.registry import MEASUREMENTS


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An empty folder in which modules are looked for, by a user whose caches are empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    remembered = (
        sources.locate,
        sources._reached,
        sources._version,
        sources._module,
        sources._modules_called,
    )
    remembered += (sources._file, sources._is_local, sources._data_files)
    for function in remembered:
        function.cache_clear()
    yield tmp_path
    for function in remembered:
        function.cache_clear()


@pytest.fixture
def own_module(elsewhere):
    (elsewhere / "my_layers.py").write_text("WIDTH = 3\n")
    (elsewhere / "my_module.py").write_text(
        "import torch\nfrom my_layers import WIDTH\n\n\ndef build():\n    pass\n"
    )
    return elsewhere


def data(module):
    """Names of the files that a module depends on and that are no Python."""
    return {path.name for path in sources.closure(module) if path.suffix != ".py"}


def test_a_step_depends_on_its_imports_at_any_depth():
    files = sources.run_sources("bench_matmul", None)
    assert {"measure.py", "base.py", "configs.py", "rows.py"} <= {path.name for path in files}
    assert all(path.is_relative_to(sources.PACKAGE) for path in files)


def test_digests_are_the_same_where_a_library_is_not_installed(lab, monkeypatch):
    (Path.cwd() / "lab/used.py").write_text(
        "import torch\nfrom torch.nn import functional\n\nused = torch.nn, functional\n"
    )
    installed = reached("lab.used.used")
    found = sources._file
    monkeypatch.setattr(
        sources, "_file", lambda module: None if module.startswith("torch") else found(module)
    )
    shutil.rmtree("caches")
    for function in (sources._reached, sources._module, sources._is_local):
        function.cache_clear()
    assert reached("lab.used.used") == installed


def test_what_errors_say_measures_nothing_again():
    assert "errors.py" not in {path.name for path in sources.run_sources("profile_step", None)}
    assert "errors.py" in {
        path.name for path in sources.closure("mfulab.measurements.profile_step.measure")
    }


def test_a_step_does_not_depend_on_other_steps():
    folders = {path.parent.name for path in sources.run_sources("bench_matmul", None)}
    assert folders & set(MEASUREMENTS) == {"bench_matmul"}


CODE = {
    "used.py": """
        import json
        from lab.other import REACHED
        from lab.effects import unused

        def used():
            return REACHED, inner()

        def inner():
            '''Says nothing.'''
            from lab import late
            return late.value  # a remark

        def unreached():
            from lab import elsewhere
            return elsewhere
    """,
    "other.py": """
        from pydantic import BaseModel, Field

        REACHED = 1
        UNREACHED = 2

        class Model(BaseModel):
            name: str = Field("", description="Said.")
    """,
    "groups.py": """
        from pydantic import BaseModel, Field

        class Closed(BaseModel):
            def conflicts(self):
                return ()

        class InnerConfig(Closed):
            size: int = 1

        class TimedConfig(Closed):
            windows: int = Field(2, description="Said.")

            @property
            def is_short(self):
                return self.windows < 3
    """,
    "asked.py": """
        from typing import ClassVar
        from lab import groups

        class AskedConfig(groups.Closed):
            axes: ClassVar[tuple] = ("size",)
            size: int = 1
            inner: groups.InnerConfig = groups.InnerConfig()
            timing: groups.TimedConfig | None = None

        def measured(config: AskedConfig):
            return config.timing.is_short
    """,
    "late.py": "value = 1\n",
    "elsewhere.py": "value = 1\n",
    "effects.py": """
        TABLE = {}

        def registered(function):
            TABLE[function.__name__] = function
            return function

        @registered
        def by_decorator():
            return 1

        TABLE["more"] = 2

        def unused():
            return 1
    """,
    "dynamic.py": """
        from importlib import import_module

        def used(name):
            return import_module(f"lab.parts.{name}.part")
    """,
    "parts/one/part.py": "'Says nothing.'\nvalue = 1\n",
    "parts/one/other.py": "value = 1\n",
}


@pytest.fixture
def lab(elsewhere, monkeypatch):
    """A small package, whose digests of what `module.used` reaches are looked at before and after
    an edit."""
    monkeypatch.setattr(sources, "PACKAGE", elsewhere / "lab")
    for name, text in {
        **CODE,
        "__init__.py": "",
        "parts/__init__.py": "",
        "parts/one/__init__.py": "",
    }.items():
        path = elsewhere / "lab" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))

    def changes(file: str, old: str, new: str, root: str = "lab.used.used") -> bool:
        before = reached(root)
        path = elsewhere / "lab" / file
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
        forget()
        return reached(root) != before

    return changes


def forget():
    """Leaves what another process would know."""
    for function in (sources._reached, sources._version, sources._module):
        function.cache_clear()


def reached(root):
    return sources._reached((tuple(root.rsplit(".", 1)),))


@pytest.mark.parametrize(
    ("file", "old", "new", "changes"),
    [
        ("used.py", "Says nothing.", "Says something.", False),
        ("used.py", "# a remark", "# another", False),
        ("used.py", "return elsewhere", "return None", False),
        ("used.py", "import json", "import re", False),
        ("used.py", "late.value", "-late.value", True),
        ("used.py", "import REACHED", "import UNREACHED as REACHED", True),
        ("other.py", "REACHED = 1", "REACHED = 3", True),
        ("other.py", "UNREACHED = 2", "UNREACHED = 3", False),
        ("other.py", "Said.", "Not said.", False),
        ("late.py", "1", "2", True),
        ("elsewhere.py", "1", "2", False),
        ("effects.py", "def unused():\n    return 1", "def unused():\n    return 2", False),
        ("effects.py", '["more"] = 2', '["more"] = 3', True),
        (
            "effects.py",
            "def by_decorator():\n    return 1",
            "def by_decorator():\n    return 2",
            True,
        ),
        ("effects.py", "TABLE[function.__name__]", "TABLE[function]", True),
    ],
)
def test_what_is_reached_by_name_or_done_by_an_import_counts_alone(lab, file, old, new, changes):
    assert lab(file, old, new) is changes


def test_the_description_of_a_field_counts_nowhere_and_its_default_does(lab):
    assert not lab("other.py", "Said.", "Not said.", root="lab.other.Model")
    assert lab("other.py", 'Field(""', 'Field("-"', root="lab.other.Model")


@pytest.mark.parametrize(
    ("file", "old", "new", "changes"),
    [
        ("asked.py", "size: int = 1", "size: int = 1\n    more: bool = False", False),
        ("asked.py", "size: int = 1", "size: int = 2", False),
        ("asked.py", "    size: int = 1\n", "", False),
        ("groups.py", "size: int = 1", "size: int = 1\n    more: list[int] = []", False),
        ("groups.py", "Field(2", "Field(3", False),
        (
            "asked.py",
            "size: int = 1",
            "size: int = 1\n    other: groups.TimedConfig = groups.TimedConfig()",
            False,
        ),
        ("asked.py", '("size",)', '("size", "timing")', True),
        ("groups.py", "self.windows < 3", "self.windows < 4", True),
        ("groups.py", "return ()", "return (1,)", True),
        ("asked.py", "return config.timing.is_short", "return not config.timing.is_short", True),
    ],
)
def test_fields_of_a_config_count_by_their_values_and_its_methods_by_their_code(
    lab, file, old, new, changes
):
    assert lab(file, old, new, root="lab.asked.measured") is changes


def test_a_module_imported_by_a_name_made_at_run_time_counts_whole_but_for_its_docstring(lab):
    assert lab("parts/one/part.py", "1", "2", root="lab.dynamic.used")
    assert not lab("parts/one/part.py", "Says nothing.", "Says something.", root="lab.dynamic.used")
    assert not lab("parts/one/other.py", "1", "2", root="lab.dynamic.used")


def test_what_was_found_is_remembered_for_this_text_of_the_package_alone(lab, monkeypatch):
    found, walk = reached("lab.used.used"), sources._walk
    monkeypatch.setattr(sources, "_walk", None)
    forget()
    assert reached("lab.used.used") == found
    monkeypatch.setattr(sources, "_walk", walk)
    for version in range(3):
        assert lab("effects.py", 'TABLE["more"] =', f'TABLE["more"] = {version} +')
    assert len(list(Path("caches/lab/sources").iterdir())) == 1


def test_a_users_own_files_are_read_each_time_and_no_cache_is_needed(own_module, monkeypatch):
    (own_module / "caches").write_text("A file where a folder would be.")
    before = sources.run_sources("count_flops", "my_module.build")
    (own_module / "my_layers.py").write_text("WIDTH = 4\n")
    forget()
    after = sources.run_sources("count_flops", "my_module.build")
    assert {path.name for path in before if before[path] != after[path]} == {"my_layers.py"}


def test_the_digests_file_is_as_old_as_the_last_change_that_counts(elsewhere):
    file, path = elsewhere / "code.py", elsewhere / "sources.txt"
    file.write_text("")
    os.utime(file, (100, 100))
    sources.write_digests(path, {file: "1" * 16})
    os.utime(file, (200, 200))  # a comment
    sources.write_digests(path, {file: "1" * 16})
    assert sources.changed_at(path, {file: "1" * 16}) == path.stat().st_mtime == 100
    assert sources.changed_at(path, {file: "2" * 16}) == 200
    sources.write_digests(path, {file: "2" * 16})
    assert path.stat().st_mtime == 200


@pytest.mark.parametrize(
    ("kernel", "files"),
    [
        ("cuda_hopper", {"hopper.cu", "hopper_tiles.cuh", "hopper.cuh"}),
        (
            "cuda_grouped",
            {"prefetched.cu", "async_tiles.cuh", "async.cuh", "lanes.cuh", "quads.cuh"},
        ),
        ("cuda_vectorised", {"lanes.cuh", "vectorised.cu", "quads.cuh"}),
        ("cuda_naive", {"naive.cu"}),
        ("cuda_tiled", set()),
        ("numba_cuda_naive", set()),
    ],
)
def test_a_kernel_brings_its_own_cuda_c_and_no_other(kernel, files):
    assert data(f"mfulab.kernels.{kernel}") == files


@pytest.mark.slow
def test_the_tables_of_peaks_decide_what_holds_peaks_alone():
    folders = (sources.PACKAGE / "device", sources.PACKAGE / "peaks")
    tables = {path.name for folder in folders for path in folder.glob("*.csv")}
    assert {
        step for step in MEASUREMENTS if data(f"mfulab.measurements.{step}.measure") & tables
    } == {
        "ceilings",
        "published",
        "read_trace",  # whose rank.json holds the rank's MFU
    }
    assert data("mfulab.measurements.ceilings.measure") == tables
    # A measured run's peak is in its ceiling's row; that of a trace is looked up when its row is
    # joined.
    peaks = {"checked_texts.csv", "datasheets.csv", "fma_per_clock_per_unit.csv"}
    # Beside: whatever measuring reads, since the tables say where a recording's code has changed.
    measuring = set().union(*(data(f"mfulab.measurements.{step}.measure") for step in MEASUREMENTS))
    assert data("mfulab.lab.tables.build") == peaks | {"other_columns.csv"} | measuring


def test_texts_decide_figures_and_page_and_no_table_or_measurement():
    catalogues = {path.name for path in (sources.PACKAGE / "core/language/catalogue").iterdir()}
    assert [
        step for step in MEASUREMENTS if data(f"mfulab.measurements.{step}.measure") & catalogues
    ] == []
    assert data("mfulab.lab.tables.build") & catalogues == set()
    found = data("mfulab.lab.report.figures.ceilings") - data("mfulab.lab.tables.build")
    assert found == catalogues


def test_templates_decide_the_page_alone():
    templates = {path.name for path in (sources.PACKAGE / "lab/report/page/templates").iterdir()}
    page = data("mfulab.lab.report.page.document")
    # The page explains columns, which the data dictionary describes, and conventions.
    assert page - templates == data("mfulab.lab.report.figures") | {
        "conventions.yaml",
        "other_columns.csv",
        "seminar.ko.yaml",
    }
    assert page & templates == templates


def test_every_data_file_of_the_package_decides_something():
    kernels = [f"kernels.{path.stem}" for path in (sources.PACKAGE / "kernels").glob("[!_]*.py")]
    modules = [
        "cli.main",
        "loop.goodput.engines",
        "lab.report.page.document",
        "lab.tables.build",
        "lab.tables.seminar",
        *(f"measurements.{step}.measure" for step in MEASUREMENTS),
        *kernels,
    ]
    read = {
        path
        for module in modules
        for path in sources.closure(f"mfulab.{module}")
        if path.suffix != ".py"
    }
    assert read == {path for paths in sources._data_files().values() for path in paths}


def test_data_are_followed_through_names_patterns_and_includes(elsewhere, monkeypatch):
    monkeypatch.setattr(sources, "PACKAGE", elsewhere / "lab")
    texts = {
        "kernel.py": '"""No name: words/no.yaml."""\nfrom lab import words\n\nSOURCE = "a.cu"\nTEXTS = words.FILES\n',
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
    own = set(sources.run_sources("count_flops", "my_module.build")) - set(
        sources.run_sources("count_flops", None)
    )
    assert {path.name for path in own} == {"my_module.py", "my_layers.py"}
    assert "my_module" not in sys.modules


def test_a_library_brings_none():
    alone = sources.run_sources("count_flops", None)
    assert sources.run_sources("count_flops", "torch.nn.Linear") == alone


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("my_modul.build", r"_target_=my_modul\.build: no module my_modul "),
        ("my_module.buid", "Did you mean build"),
        ("broken.build", r"broken\.py:1"),
    ],
)
def test_what_cannot_be_found_is_named(own_module, target, says):
    Path("broken.py").write_text("def build(:\n")
    with pytest.raises(ConfigurationError, match=says):
        sources.locate(target)


def counted(statement):
    """What counts of a statement, as text."""
    Path("read.py").write_text(statement)
    return sources._Module("read", Path("read.py")).text(0)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def f(a): x, y = a; return x - y", "def f(a): x, y = a; return y - x"),
        ("def f(a): x = 1; return x", "def f(a): x = 2; return x"),
        ("def f(a): x = 1; return x", "def f(a): y = 1; return y"),
        ("def f(a): x = a; return [x for y in a]", "def f(a): x = a; return [y for y in a]"),
        ("def f(a): x = a; return lambda y: x", "def f(a): x = a; return lambda y: y"),
        ("def f(a): x = a; y = a; return x", "def f(a): x = a; x = a; return x"),
        ("def f(a): x = a; return lambda x=x: x", "def f(a): y = a; return lambda x=x: x"),
        (
            "def f(a): b((x := c) for c in a); return x",
            "def f(a): b((y := c) for c in a); return x",
        ),
        ("def f(a):\n global x\n x = a", "def f(a):\n global x\n y = a"),
        (
            "def f(a):\n x = a\n class A:\n  x = 1\n  def g(self): return x",
            "def f(a):\n y = a\n class A:\n  x = 1\n  def g(self): return x",
        ),
        ("def f(a):\n try: a()\n except E: a()", "def f(a):\n try: a()\n except E as x: a()"),
    ],
)
def test_another_variable_counts(elsewhere, old, new):
    assert counted(old) != counted(new)
