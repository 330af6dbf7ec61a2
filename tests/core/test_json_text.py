"""The one reader of JSON that others wrote."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfulab.core import json_text
from mfulab.core.json_text import DEEPEST, load_object, parse_json


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
@pytest.mark.parametrize("times", [DEEPEST + 1, 900, 200_000])
@pytest.mark.parametrize("is_closed", [True, False])
def test_brackets_without_end_are_an_error_and_no_recursion(opening, times, is_closed):
    closing = {"[": "]", '{"a":': "}", '[{"a":': "}]"}[opening]
    text = opening * times + "1" + closing * times * is_closed
    for given_text in (text, text.encode()):
        with pytest.raises(ValueError):  # noqa: PT011 (of two kinds, each in words of its own)
            parse_json(given_text)


def test_wide_values_and_those_of_the_greatest_depth_are_read():
    wide = [[[]]] * 1000
    assert parse_json(json.dumps(wide)) == wide
    deep = "[" * DEEPEST + "]" * DEEPEST
    assert json.dumps(parse_json(deep)) == deep


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "-Infinity", "1e999", "1" * 5000, "1" * 400])
def test_numbers_that_json_lacks_are_an_error(text):
    with pytest.raises(ValueError):  # noqa: PT011 (Python's own words for digits)
        parse_json(text)


def test_a_text_beyond_the_bound_is_an_error():
    with pytest.raises(ValueError, match="longer"):
        parse_json("[" + " " * 100 + "]", longest=100)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)  # fmt: skip


@given(VALUES)
def test_what_json_holds_is_read_as_it_was(value):
    assert parse_json(json.dumps(value)) == value


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_only_a_regular_file_is_loaded(tmp_path, make):
    make(tmp_path / "file")
    with pytest.raises((OSError, ValueError)):
        load_object(str(tmp_path / "file"))


def test_a_file_is_loaded_up_to_a_bound_and_holds_an_object(tmp_path):
    path = tmp_path / "file"
    path.write_text('{"a": [1]}')
    assert load_object(str(path)) == {"a": [1]}
    with pytest.raises(ValueError, match="larger"):
        load_object(str(path), most=5)
    path.write_text("[1]")
    with pytest.raises(ValueError, match="list"):
        load_object(str(path))


def test_the_reader_brings_the_standard_library_alone():
    assert json_text.__doc__
    names = {name for name, value in vars(json_text).items() if hasattr(value, "__spec__")}
    assert names == {"json", "math", "os", "stat"}
