"""Peaks that may stand under an MFU, by their keys and numbers."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from mfulab.core.errors import ConfigurationError
from mfulab.core.language import Texts
from mfulab.core.language.sentences import sentence
from mfulab.core.said import Said
from mfulab.mfu.conventions import CONVENTIONS
from mfulab.mfu.explain import (
    FALLBACK_TFLOP_S,
    Candidate,
    Explanation,
    _wrapped,
    denominators_of,
    tolerance_of,
)


def told(device, precision="bf16", **words):
    return denominators_of(device, precision, **words)[1]


def keys(denominators):
    return [one.said.key for one in denominators]


@pytest.mark.parametrize(
    ("device", "is_added"), [("NVIDIA H100 80GB HBM3", True), ("NVIDIA A100-SXM4-80GB", False)]
)
def test_the_peak_that_tools_fall_back_to_is_told_once(device, is_added):
    denominators = told(device)
    assert ("peak_fallback" in keys(denominators)) == is_added
    near = [one for one in denominators if abs(one.tflop_s / FALLBACK_TFLOP_S - 1) < 0.01]
    assert len(near) == 1


def test_the_first_is_the_dense_peak_and_sparsity_doubles_it():
    dense, sparse = told("NVIDIA H100 80GB HBM3")[:2]
    assert (dense.said.key, sparse.said.key) == ("peak_dense", "peaks_alike")
    assert sparse.tflop_s == 2 * dense.tflop_s
    assert {type(said) for said in sparse.said.numbers.values()} == {Said}
    peaks = [round(one.tflop_s, 3) for one in told("NVIDIA H100 80GB HBM3")]
    assert len(peaks) == len(set(peaks))


@pytest.mark.parametrize(("devices", "counts"), [(1, [2, 4, 8, 16]), (3, [2, 3, 4, 8, 16])])
def test_a_given_peak_may_be_of_several_devices(devices, counts):
    name, (own, *several) = denominators_of("mine", "bf16", 120.0, devices)
    assert (name, own.said.key, own.tflop_s) == ("mine", "peak_given", 120.0)
    assert [one.said.numbers["count"] for one in several[::2]] == counts
    assert [one.tflop_s for one in several[::2]] == [120 / count for count in counts]
    assert [one.tflop_s for one in several[1::2]] == [120 * count for count in counts]
    assert keys(several[:2]) == ["peak_divided", "peak_multiplied"]


@pytest.mark.parametrize("given", [0.0, -1.0, math.inf])
def test_a_given_peak_is_a_number_above_0(given):
    with pytest.raises(ConfigurationError, match="peak_tflop_s="):
        told("mine", given=given)
    with pytest.raises(ConfigurationError, match="precision=bf17"):
        told("mine", "bf17", given=1.0)


@pytest.mark.parametrize(
    ("reported", "points"), [(10.0, 0.3), (50.0, 0.3), (60.0, 0.4), (100.0, 0.6)]
)
def test_larger_numbers_are_printed_less_exactly(reported, points):
    assert tolerance_of(reported) == points


@given(st.lists(st.text("ab가나", min_size=1, max_size=60), min_size=1), st.integers(1, 12))
def test_words_are_wrapped_at_80_columns_and_none_is_lost(words, indent):
    lines = [line.text for line in _wrapped(" ".join(words), indent)]
    assert " ".join(line.strip() for line in lines).split() == words
    for line in lines:
        assert cell_len(line) <= 80 or len(line.split()) == 1
    for before, line in pairwise(lines):
        assert line.startswith(" " * indent)
        assert cell_len(f"{before} {line.split()[0]}") > 80


def explained(matches, **about):
    row = Candidate("mfulab", "a peak", 100.0, 1.0, 50.0, {"experts": 0.04, "peak": -0.05})
    return Explanation("m", "d", row, 50.0, [], [], [row] * matches, reported=50.0, **about)


def test_of_many_combinations_five_are_listed_and_the_rest_counted():
    text = Texts("en", "explain")
    lines = [line.text for line in explained(7, tried=9).lines()]
    assert f"  {text('further', count=2)}" in lines
    assert text("tried", count=9, reported=50.0, tolerance=0.3) in lines
    few = [line.text for line in explained(5).lines()]
    assert len(lines) - len(few) == 1
    none = [line.text for line in explained(0).lines()]
    assert text("none", reported=50.0, tolerance=0.3) in none


@pytest.mark.parametrize("language", ["en", "ko"])
def test_a_peak_is_told_by_its_key_or_else_by_its_name(language):
    said = Said("peak_dense", {"precision": "bf16"})
    words = sentence(said.key, said.numbers, language)
    for peaks, told_by in (({"a peak": said}, words), ({}, "a peak")):
        told_lines = [line.text for line in explained(0, peaks=peaks).lines(language)]
        assert told_by in told_lines[1]


@pytest.mark.parametrize("language", ["en", "ko"])
def test_a_convention_is_told_by_its_name_or_by_its_choices(language):
    text = Texts(language, "explain")
    kaplan = next(one.name for one in CONVENTIONS if one.name.startswith("Kaplan"))
    choices = "experts=total, attention=none"
    told_by = {
        kaplan: text.name("convention", kaplan),
        choices: ", ".join(text.name("choice", choice) for choice in choices.split(", ")),
    }
    for name, words in told_by.items():
        known = explained(0)
        row = replace(known.ours, convention=name)
        lines = [line.text for line in replace(known, conventions=[row]).lines(language)]
        assert any(line.endswith(f"  {words}") for line in lines)


def test_a_choice_that_changes_the_number_visibly_is_a_change():
    assert explained(0).ours.changes == 1


@pytest.mark.parametrize(
    ("matches", "chance", "may_be"),
    [(1, 10.0, True), (1, 9.9, False), (0, 50.0, False), (1, None, False)],
)
def test_a_match_may_be_chance_from_a_tenth_of_the_numbers_on(matches, chance, may_be):
    assert explained(matches, chance_percent=chance).may_be_chance == may_be
