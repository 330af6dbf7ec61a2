"""Each column of each table is declared once, described, and written."""

import csv
import importlib.util
import json
import math

import pytest
from support.words import faults
from support.workflow_copy import ROOT

from mfulab.core.columns import BudgetColumns
from mfulab.lab.report import frames
from mfulab.lab.tables import build, columns, compare
from mfulab.measurements.registry import TABLES
from mfulab.mfu import headroom, job, join, traced

GIVEN = {
    "profile": {*join.profile_columns({}, {}, {}, {}, None)},
    "matmul": {*join.matmul_columns({}, {}, None)},
    "readings": {*join.reading_columns({}, {}, None)},
    "traces": {
        *traced.trace_columns({}),
        *job.COLUMNS,
        "collective_bandwidth",
        "link_bytes",
        "job_verdict",
    },
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The tables of all shipped recordings."""
    folder = tmp_path_factory.mktemp("tables")
    build.write(build.collect(reference=ROOT / "results/reference"), folder)
    return folder


def test_every_column_of_every_table_is_described(written):
    with (written / "columns.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    described = {(line["table"], line["column"]): line for line in lines}
    assert len(described) == len(lines)
    assert not [name for name, line in described.items() if len(line["description"]) < 3]
    for path in written.glob("*.csv"):
        header = next(csv.reader(path.open(newline="", encoding="utf-8")))
        assert [(path.stem, name) for name in header if (path.stem, name) not in described] == []
    for table, header in {"comparison": compare.COLUMNS, "seminar": [*columns.SEMINAR]}.items():
        assert header == [name for of, name in described if of == table]
    assert described["profile", "loader_persistent"] == {
        "table": "profile",
        "column": "loader_persistent",
        "type": "true or false",
        "unit": "",
        "source": "config workload.loader_persistent",
        "description": "Keep the workers from one epoch to the next.",
    }
    assert described["profile", "time_s"]["unit"] == "s"


def test_every_description_of_a_column_stands_alone():
    spoken = {(each.table, each.column): faults(each.description) for each in columns.dictionary()}
    assert len(spoken) > 500
    assert {column: said for column, said in spoken.items() if said} == {}


def of_scripts(name):
    """A module of scripts/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"scripts/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("table", TABLES)
def test_no_figure_or_command_reads_a_counter(table):
    unread_columns = of_scripts("unread_columns")
    counters = columns.counters(table)
    assert [name for name in counters if unread_columns.is_read(name)] == []
    assert not counters.keys() & {*columns.fields(table)}
    assert not unread_columns.is_read("no_such_column")
    assert unread_columns.is_read("mfu_percent")


@pytest.mark.parametrize("table", TABLES)
def test_every_column_of_its_own_is_read_or_kept_for_a_reason(table):
    assert of_scripts("unread_columns").unread(table) == []


def test_a_column_that_is_kept_for_a_reason_exists_and_has_no_other():
    unread_columns = of_scripts("unread_columns")
    declared = {name for table in TABLES for name in columns.fields(table)}
    read = {name for name in unread_columns.KEPT if unread_columns.is_read(name)}
    assert (unread_columns.KEPT.keys() - declared, read) == (set(), set())


def test_counters_are_one_column_and_come_back_as_they_were():
    row = {"run": "a", "warm_up_s": 0.0, "copy_percent": 2.5, "throttled_percent": math.nan}
    [cells] = columns.written("profile", [row])
    assert json.loads(cells[columns.COUNTERS]) == {"warm_up_s": 0.0, "copy_percent": 2.5}
    read = columns.with_counters({"run": "a", "counters": cells[columns.COUNTERS]})
    assert read["warm_up_s"] == "0.0"
    assert read["copy_percent"] == "2.5"
    assert columns.with_counters({"warm_up_s": "3"})["warm_up_s"] == "3", "an older table"
    with pytest.raises(ValueError, match="counters"):
        columns.with_counters({"counters": "[1]"})
    [none] = columns.written("profile", [{"run": "a"}])
    assert none[columns.COUNTERS] is None


@pytest.mark.parametrize("table", TABLES)
def test_what_the_join_gives_is_what_is_declared(table):
    assert GIVEN.get(table, set()) == {*columns.computed(TABLES[table])}


def test_a_column_of_the_config_has_the_type_of_its_key():
    for measurement in TABLES.values():
        for name, field in columns.kept(measurement).items():
            if path := columns.marked(field, "config"):
                group, _, key = path.partition(".")
                asked = measurement.config.model_fields[group].annotation.model_fields[key]
                assert columns.kind(asked) == columns.kind(field), name


def test_parts_of_a_step_and_cells_of_the_page_follow_the_declarations():
    found = [name for name in BudgetColumns.model_fields if name.endswith("_ms")]
    assert found == [f"{part}_ms" for part in headroom.PARTS]
    kinds = dict(frames.kinds("profile"))
    assert (kinds["checkpointing"], kinds["verdict"], kinds["processes"]) == (bool, str, float)
