"""The seminar's list of topics names only what is there, and what works there has rows, or says why it has none."""

import re
from pathlib import Path

import pytest
import yaml

from mfulab.cli.main import main
from mfulab.lab.planning import keys
from mfulab.lab.report import figures, frames
from mfulab.lab.tables.columns import columns
from mfulab.measurements.registry import TABLES

ROOT = Path(__file__).parents[1]
LISTED = (ROOT / "docs" / "seminar.md").read_text(encoding="utf-8").partition("\n## State\n")[2]
TOPICS = LISTED.partition("What PyCUDA's calls become")[0]  # these are of other packages
TEXTS = yaml.safe_load((ROOT / "docs" / "seminar.yaml").read_text(encoding="utf-8"))
ITEMS = [item for items in TEXTS.values() for item in items]
STATES = {"works", "gpu", "partly", "missing"}
EXPERIMENTS = {path.stem for path in (ROOT / "config" / "experiment").glob("*.yaml")}
KERNELS, MODELS = (set(keys.choices(ROOT / "config", group)) for group in ("kernel", "model"))
# Of this project itself: what is first tried, what needs hours or a card, and whether numbers repeat.
OWN = {"quickstart", "quickstart_gpu", "miniature", "recorded", "gpu_record", "validity", "utilization"}
OWN |= {"traces", "repeat"}
MEASURED = ("profile", "matmul", "readings", "memory", "counters", "formats", "quality", "flops", "traces", "published")


RUNS = ("experiment", "kernel", "model", "workload", "execution")  # columns whose values an item may name
CHOICES = {
    "experiment": EXPERIMENTS,
    "kernel": KERNELS,
    "model": MODELS,
    **{group: set(keys.choices(ROOT / "config", group)) for group in RUNS[3:]},
}


def known() -> set[str]:
    names = EXPERIMENTS | set(figures.modules()) | set(TABLES) | {"seminar", "failed", "no_grad", "profile_step"}
    names |= {column for table in TABLES for column in columns(table)}
    for path in (ROOT / "config").glob("*.yaml"):
        names |= set(yaml.safe_load(path.read_text(encoding="utf-8")))
    names |= {path.stem for path in (ROOT / "config").glob("*/*.yaml")}
    return names | {path.stem for path in (ROOT / "src/mfulab/kernels").glob("*.py")}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> frames.Tables:
    """The tables of the recordings that the project ships."""
    out = tmp_path_factory.mktemp("tables")
    main(["tables", "--reference", str(ROOT / "results/reference"), "--out", str(out)])
    main(["seminar", "--out", str(out / "seminar.csv")])
    return frames.read(out)[0]


def named(item: dict[str, str]) -> set[str]:
    return set(re.findall(r"`(\w+)`", item["where"]))


def without_rows(item: dict[str, str], tables: frames.Tables) -> set[str]:
    """What an item names (experiments to executions, columns, tables, figures) of which no recording has a row."""
    measured = [frames.ok(tables[name]) for name in MEASURED]
    names, missing = named(item), set()
    for column, choices in CHOICES.items():
        held = {name for rows in measured if column in rows for name in rows[column].dropna()}
        missing |= (names & choices) - held
    asked = re.findall(r"columns? ((?:`\w+`(?:, )?)+)", item["where"])
    for column in re.findall(r"\w+", " ".join(asked)):
        filled = (tables[name][column].replace("", None).notna().any() for name in TABLES if column in tables[name])
        missing |= set() if any(filled) else {column}
    missing |= {name for name in names & {*TABLES} if tables[name].empty}
    return missing | {name for name in names & {*figures.modules()} if figures.modules()[name].rows(tables).empty}


def test_each_name_is_of_something_that_is_there():
    names = set(re.findall(r"`(\w+)`", TOPICS))
    assert len(names) > 80
    assert names - known() == set()


@pytest.mark.parametrize("experiment", sorted(EXPERIMENTS - OWN))
def test_each_experiment_has_its_topic(experiment):
    assert f"`{experiment}`" in TOPICS


def test_each_item_has_a_state_and_a_reason_unless_it_works():
    for item in ITEMS:
        state, _, reason = item["state"].partition(":")
        assert set(item) == {"topic", "where", "state"}, item
        assert state in STATES, item
        assert bool(reason.strip()) is (state != "works"), item
    assert len({item["topic"] for item in ITEMS}) == len(ITEMS)


def test_what_works_has_rows_in_a_recording(recorded):
    assert {
        item["topic"]: missing
        for item in ITEMS
        if item["state"] == "works" and (missing := without_rows(item, recorded))
    } == {}


def test_what_waits_for_a_gpu_has_no_row_of_one(recorded):
    for item in ITEMS:
        if re.fullmatch("gpu: no recording has (its|their) rows?", item["state"]) and (
            kernels := named(item) & KERNELS
        ):
            assert kernels <= without_rows(item, recorded), item


@pytest.mark.parametrize("name", ["transfers", "cutile", "equal_devices", "compile_max_autotune"])
def test_a_name_without_rows_is_found(recorded, name):
    assert without_rows({"where": f"`{name}`"}, recorded) == {name}


def test_a_column_without_a_value_is_found(recorded):
    where = {"where": "columns `host_to_device_pinned_s`, `time_s`; model `gpt2`"}
    emptied = recorded | {"matmul": recorded["matmul"].assign(host_to_device_pinned_s=float("nan"))}
    assert without_rows(where, emptied) == {"host_to_device_pinned_s"}


def test_each_number_that_a_text_prints_is_an_item():
    lines = yaml.safe_load((ROOT / "src/mfulab/lab/tables/seminar.yaml").read_text(encoding="utf-8"))
    cases = {line["case"] for line in lines if line["source"] != "ours"}
    assert len(cases) > 50
    assert {case for case in cases if f"| {case} | table `seminar`: " not in LISTED} == set()
