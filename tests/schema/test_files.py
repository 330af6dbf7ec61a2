"""Files are written whole or not at all."""

import csv
import json

import pytest

from mfulab.schema import files
from mfulab.schema.errors import ConfigurationError


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "row.csv"
    files.write_csv(path, [{"a": 1}])

    def rows():
        yield {"a": 2}
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        files.write_csv(path, rows())
    assert files.read_csv(path) == [{"a": "1"}]
    assert list(tmp_path.iterdir()) == [path]


def test_cells_are_text_json_or_empty(tmp_path):
    path = tmp_path / "new folder/t.csv"
    files.write_csv(path, [{"a": None, "b": {"x": [1, 2]}, "c": 0.1, "more": 1}], ["a", "b", "c", "absent"])
    assert files.read_csv(path) == [{"a": "", "b": '{"x": [1, 2]}', "c": "0.1", "absent": ""}]


def test_columns_are_those_of_the_first_row(tmp_path):
    files.write_csv(tmp_path / "t.csv", iter([{"b": 1, "a": 2}, {"a": 3}]))
    with (tmp_path / "t.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["b", "a"], ["1", "2"], ["", "3"]]


def test_json_is_written_and_read(tmp_path):
    files.write_json(tmp_path / "t.json", {"이름": [1, None]})
    assert files.read_json(tmp_path / "t.json") == {"이름": [1, None]}
    assert json.loads((tmp_path / "t.json").read_text(encoding="utf-8")) == {"이름": [1, None]}


def test_a_folder_that_cannot_be_made_is_one_message(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        files.write_csv(tmp_path / "file/t.csv", [{"a": 1}])
