"""Every column is declared once, with a description; what is written is what is declared."""

import csv
from pathlib import Path

import pytest

from mfulab.measurements.registry import TABLES
from mfulab.tables import build, compare
from mfulab.tables.columns import config_paths, dictionary, fields, linked
from mfulab.tables.records import Collected, from_config
from mfulab.tables.seminar import Recomputed

REFERENCE = Path(__file__).parents[2] / "results/reference"
PROFILE = TABLES["profile"]


@pytest.fixture(scope="module")
def collected() -> Collected:
    return build.collect(reference=REFERENCE)


@pytest.fixture(scope="module")
def written(collected, tmp_path_factory) -> dict[str, list[str]]:
    """Columns of each table that the shipped recordings make."""
    folder = tmp_path_factory.mktemp("tables")
    build.write(collected, folder)
    found = {}
    for path in folder.glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            found[path.stem] = next(csv.reader(file))
    return found


@pytest.fixture(scope="module")
def declared() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in dictionary():
        found.setdefault(line["table"], []).append(line["column"])
    return found


def test_written_columns_are_the_declared_ones(written, declared):
    assert set(written) <= set(declared)
    for table, columns in written.items():
        if table == "series":  # whose quantities depend on the device
            assert set(columns) <= set(declared[table])
        else:
            assert columns == declared[table], table
    assert declared["comparison"] == compare.COLUMNS
    assert declared["seminar"] == [*Recomputed.__dataclass_fields__]


def test_every_column_has_a_description():
    assert not [(line["table"], line["column"]) for line in dictionary() if not line["description"].strip()]


def test_what_the_join_gives_is_declared(collected):
    for table, rows in collected.records.items():
        given = {name for row in rows for name in row}
        assert given <= set(fields(table)) | {"emulates", "raised_by", "swept_tflop_s"}, table
        missing = set(TABLES[table].joined.model_fields) - given
        assert not rows or not missing, (table, missing)


def test_a_config_column_stands_in_its_config_and_its_joined_model():
    assert config_paths("profile")["loader_persistent"] == "workload.loader_persistent"
    described = fields("profile")["loader_persistent"].description
    workload = PROFILE.config.model_fields["workload"].annotation
    assert described == workload.model_fields["loader_persistent"].description


@pytest.mark.parametrize(
    ("value", "kept"), [(True, True), (False, False), ("yes", None), (1, None), ([], None), (None, None)]
)
def test_values_of_another_type_are_left_out(value, kept):
    found = from_config("profile", {"workload": {"loader_persistent": value}}, {})
    assert found["loader_persistent"] is kept
    assert [*found] == linked("profile")
