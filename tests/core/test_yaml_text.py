"""The one reader of YAML that others wrote."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.bad_yaml import BAD_YAML

from mfulab.core.files import UnreadableError
from mfulab.core.yaml_text import DEEPEST, load_yaml, parse_yaml
from mfulab.mfu.models import read_yaml


@pytest.mark.parametrize("name", BAD_YAML)
def test_what_is_no_plain_yaml_is_an_error_of_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (of several kinds)
        parse_yaml(BAD_YAML[name])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200
    (tmp_path / "file.yaml").write_text(BAD_YAML[name])
    with pytest.raises(UnreadableError, match=r"file\.yaml"):
        load_yaml(tmp_path / "file.yaml")
    assert [path.name for path in tmp_path.iterdir()] == ["file.yaml"]


def test_aliases_within_the_bounds_and_values_of_the_greatest_depth_are_read():
    assert parse_yaml("a: &a [1, 2]\nb: [*a, *a]") == {"a": [1, 2], "b": [[1, 2], [1, 2]]}
    deep = "[" * DEEPEST + "]" * DEEPEST
    assert str(parse_yaml(deep)) == deep


def test_a_line_is_told():
    with pytest.raises(ValueError, match="line 4"):
        parse_yaml("a: 1\nb: 2\nc: [\n")  # the line after it


def test_words_are_numbers_as_hydra_reads_them():
    assert read_yaml("1e5") == 1e5
    assert read_yaml("[1e5, a]") == [1e5, "a"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES)
def test_what_yaml_holds_is_read_as_it_was(value):
    assert parse_yaml(yaml.safe_dump(value)) == value


@given(st.text("[]{}-:&*!?|>'\"# \n\tab1", max_size=60))
def test_any_text_is_read_or_refused(text):
    said = ""
    try:
        parse_yaml(text)
    except ValueError as error:
        said = str(error)
    assert "\n" not in said
