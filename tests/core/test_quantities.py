"""Numbers as people read them."""

import pytest

from mfulab.core.language.quantities import at_least, change


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        *((1.0, "+0 %"), (0.969, "−3.1 %"), (1.12, "+12 %"), (2.34, "×2.3"), (1 / 250, "÷250")),
        *((1e4, "×10,000"), (2.2e7, "> ×10,000"), (1e-9, "> ÷10,000"), (float("inf"), "> ×10,000")),
    ],
)
def test_a_factor_in_words_and_none_beyond_what_tells_anything(ratio, words):
    assert change(ratio) == words


@pytest.mark.parametrize(
    ("ratio", "words"), [(1.031, "≥ 3.1 %"), (2.34, "≥ ×2.3"), (2.2e7, "> ×10,000")]
)
def test_the_least_that_is_found(ratio, words):
    assert at_least(ratio) == words
