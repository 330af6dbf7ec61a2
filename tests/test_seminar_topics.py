"""The list of the seminar's topics names only what is there, and every experiment that measures."""

import re
from pathlib import Path

import pytest
import yaml

from mfulab.lab.report import figures
from mfulab.lab.tables.columns import columns
from mfulab.measurements.registry import TABLES

ROOT = Path(__file__).parents[1]
LISTED = (ROOT / "docs" / "seminar.md").read_text(encoding="utf-8").partition("\n## Lab\n")[2]
TOPICS = LISTED.partition("What PyCUDA's calls become")[0]  # these are of other packages
EXPERIMENTS = {path.stem for path in (ROOT / "config" / "experiment").glob("*.yaml")}
# Of this project itself: what is first tried, what needs hours or a card, and whether numbers repeat.
OWN = {"quickstart", "quickstart_gpu", "miniature", "recorded", "gpu_record", "validity", "utilization"}
OWN |= {"traces", "repeat"}


def known() -> set[str]:
    names = EXPERIMENTS | set(figures.modules()) | set(TABLES) | {"seminar", "failed", "no_grad", "profile_step"}
    names |= {column for table in TABLES for column in columns(table)}
    for path in (ROOT / "config").glob("*.yaml"):
        names |= set(yaml.safe_load(path.read_text(encoding="utf-8")))
    names |= {path.stem for path in (ROOT / "config").glob("*/*.yaml")}
    return names | {path.stem for path in (ROOT / "src/mfulab/kernels").glob("*.py")}


def test_each_name_is_of_something_that_is_there():
    named = set(re.findall(r"`(\w+)`", TOPICS))
    assert len(named) > 80
    assert named - known() == set()


@pytest.mark.parametrize("experiment", sorted(EXPERIMENTS - OWN))
def test_each_experiment_has_its_topic(experiment):
    assert f"`{experiment}`" in TOPICS
