"""Ends of an interval beside its number."""

import re

import pytest

from mfulab.core.language import LANGUAGES
from mfulab.core.language.intervals import WIDE, ends_in_words
from mfulab.core.language.quantities import quantity


def of_seconds(seconds: float) -> str:
    return quantity(seconds, "s", 2)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_wide_interval_is_told_and_a_common_unit_only_by_its_number(language):
    told = ends_in_words(0.0188, 0.0146, 0.0242, of_seconds, language)
    assert re.findall(r"[\d.]+", told) == ["15", "24"]
    assert "ms" not in told
    apart = ends_in_words(0.9, 0.5, 1.5, of_seconds, language)
    assert re.findall(r"[\d.]+ m?s", apart) == ["500 ms", "1.5 s"]


@pytest.mark.parametrize(
    ("low", "high"),
    [(None, None), (1.0, None), (1 - 0.9 * WIDE, 1 + 0.9 * WIDE), (1.0, 1.0)],
)
def test_a_narrow_or_unknown_interval_is_not_told(low, high):
    assert ends_in_words(1.0, low, high, of_seconds) == ""
    assert ends_in_words(1.0, 1.0, 1 + 1.1 * WIDE, of_seconds)
    assert ends_in_words(0.0, 0.0, 1.0, of_seconds) == ""
