"""Commands in a folder without a workflow, as whoever installed a wheel has it."""

from pathlib import Path

import pytest
from support import report_rows

from mfulab.cli.main import main
from mfulab.lab.planning.naming import MEASURE

ALONE = "mfulab run"  # what measures there


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (["slides", "lab"], "docs/seminar.yaml"),
        (["topics"], "docs/seminar.yaml"),
        (["schema", "--check"], "config/config.yaml"),
        (["schema", "--fix"], "config/config.yaml"),
    ],
)
def test_what_needs_the_checkout_names_its_file_and_how_to_get_it(words, path, capsys):
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert path in said
    assert "checkout" in said


@pytest.mark.parametrize("words", [["refine", "here"], ["record", "here"], ["summary"]])
@pytest.mark.parametrize("has_workflow", [False, True])
def test_what_measures_first_is_what_the_folder_has(words, has_workflow, capsys):
    if has_workflow:
        Path("workflow").mkdir()
        Path("workflow/Snakefile").touch()
    assert main(words) in (1, 2)
    said = "".join(capsys.readouterr())
    assert (MEASURE in said, ALONE in said) == (has_workflow, not has_workflow)


def test_runs_that_no_table_shows_ask_for_no_workflow_that_is_not_there(capsys):
    report_rows.lay_out(Path(), models=("resnet18",))
    assert main(["summary"]) == 0
    said = capsys.readouterr().out
    assert MEASURE not in said
    assert "workflow" in said
