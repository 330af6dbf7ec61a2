"""The recipes of docs/goodput.md as they stand, and Grafana's dashboard against the exporter."""

import importlib
import json
import os
import re

import pytest
from support.slow import few
from support.workflow_copy import ROOT

from mfulab.cli.export import Latest
from mfulab.loop.goodput.engines import COLUMNS
from mfulab.loop.goodput.ladder import RUNGS, job_of

RECIPES = {
    re.search(r"runs/(\w+)", code)[1]: code
    for code in re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/goodput.md").read_text(), re.DOTALL
    )
}
NEEDS = {"huggingface": "accelerate", "lightning": "pytorch_lightning"}
DASHBOARD = json.loads((ROOT / "examples/grafana.json").read_text())


@pytest.mark.parametrize(
    "name", few(sorted(RECIPES, key=NEEDS.__contains__), len(RECIPES) - len(NEEDS))
)
def test_a_recipe_writes_a_journal(name, tmp_path, monkeypatch):
    if name in NEEDS and not os.environ.get("MFULAB_CI"):
        pytest.importorskip(NEEDS[name])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "mfulab.loop.interactive.peaks._measure",
        lambda *_: importlib.import_module("mfulab.loop.interactive.peaks").Ceiling(0.1),
    )
    exec(compile(RECIPES[name], name, "exec"), {"__name__": name})
    job = job_of(tmp_path / "runs" / name)
    row = job.row()
    assert row["kept_steps"] == 8
    expected = {"import", "setup" if name != "loop" else "restore", "first_step", "step", "loader"}
    assert expected <= set(+job.spans)
    assert (row["mfu_percent"] is None) is (name == "plain")
    assert (job.spans["checkpoint"] > 0) is (name in ("huggingface", "lightning", "loop"))


def exported():
    """Every metric of the pages: of a device and its processes, a job and an engine."""
    device = dict.fromkeys(("name", "utilization_percent", "expected_mfu_percent"), 1)
    spans = ("down", "lost", "checkpoint", "loader", "evaluation")
    rungs = (f"{name}_percent" for name in (*RUNGS, "mfu_of_steps"))
    job = dict.fromkeys(f"goodput_{name}" for name in (*rungs, *(f"{span}_s" for span in spans)))
    engine = dict.fromkeys(COLUMNS, 1.0)
    latest = Latest()
    latest.sample = {
        **device,
        **dict.fromkeys(job, 1.0),
        "processes": [{"mfu_spec_percent": 1.0}],
        "engines": [engine],
    }
    return {gauge.name for gauge in latest.collect()}


def test_the_dashboard_is_one_that_grafana_imports():
    assert {"title", "uid", "schemaVersion", "templating", "time", "panels"} <= DASHBOARD.keys()
    [source] = DASHBOARD["templating"]["list"]
    assert (source["type"], source["query"]) == ("datasource", "prometheus")
    places = set()
    for number, panel in enumerate(DASHBOARD["panels"], start=1):
        assert panel["id"] == number
        assert panel["datasource"] == {"type": "prometheus", "uid": f"${{{source['name']}}}"}
        grid = panel["gridPos"]
        cells = {(grid["x"] + x, grid["y"] + y) for x in range(grid["w"]) for y in range(grid["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & places
        places |= cells
        found = [target["refId"] for target in panel["targets"]]
        assert found == [*"ABCDE"][: len(panel["targets"])]


def test_the_dashboard_shows_only_what_is_exported():
    asked = {target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]}
    assert asked - exported() == set()
