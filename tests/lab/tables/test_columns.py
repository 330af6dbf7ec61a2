"""Each column of each table is declared once, described, and written."""

import csv

import pytest
from support.words import faults
from support.workflow_copy import ROOT

from mfulab.core.columns import Headroom
from mfulab.lab.report import frames
from mfulab.lab.tables import build, columns, compare, seminar
from mfulab.measurements.registry import TABLES
from mfulab.mfu import headroom, job, join

GIVEN = {
    "profile": {*join.profile_columns({}, {}, {}, {}, None)},
    "matmul": {*join.matmul_columns({}, {}, None)},
    "readings": {*join.reading_columns({}, {}, None)},
    "traces": {*join.trace_columns({}), *job.COLUMNS, "collective_bandwidth"},
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
    for table, header in {"comparison": compare.COLUMNS, "seminar": [*seminar.COLUMNS]}.items():
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
    assert [name for name in Headroom.model_fields if name.endswith("_ms")] == [f"{part}_ms" for part in headroom.PARTS]
    kinds = dict(frames.kinds("profile"))
    assert (kinds["checkpointing"], kinds["verdict"], kinds["processes"]) == (bool, str, float)
