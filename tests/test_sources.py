"""Which files a run depends on, read from import statements."""

import sys
from pathlib import Path

import pytest

from mfulab.errors import ConfigurationError
from mfulab.planning import sources


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "my_layers.py").write_text("WIDTH = 3\n")
    (tmp_path / "my_module.py").write_text("import torch\nfrom my_layers import WIDTH\n\n\ndef build():\n    pass\n")
    monkeypatch.chdir(tmp_path)
    for function in (sources.locate, sources.target_sources, sources.closure, sources._file, sources._is_local):
        function.cache_clear()
    yield tmp_path
    for function in (sources.locate, sources.target_sources, sources.closure, sources._file, sources._is_local):
        function.cache_clear()


def test_a_step_depends_on_its_imports_at_any_depth():
    names = {path.name for path in sources.step_sources("bench_matmul")}
    assert {"bench_matmul.py", "base.py", "configs.py", "rows.py"} <= names
    assert all(path.is_relative_to(sources.PACKAGE) for path in sources.step_sources("bench_matmul"))


def test_a_step_does_not_depend_on_other_steps():
    assert "profile_step.py" not in {path.name for path in sources.step_sources("bench_matmul")}


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


def test_a_syntax_error_is_told_with_its_line(own_module):
    Path("broken.py").write_text("def build(:\n")
    with pytest.raises(ConfigurationError, match=r"broken\.py:1"):
        sources.locate("broken.build")
