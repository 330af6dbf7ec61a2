"""Numbers as people read them."""

import pytest

from mfulab.core.language import Texts
from mfulab.core.language.quantities import (
    at_least,
    change,
    in_percent,
    percent,
    quantity,
    significant,
)


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


@pytest.mark.parametrize("digits", [1, 2, 3, 4])
@pytest.mark.parametrize("value", [1e-9, 0.00314, 0.0999, 1.0, 9.96, 73.4, 999.6, 1234.5, 3e12])
def test_a_negative_number_is_the_positive_one_after_a_minus_sign(value, digits):
    assert significant(-value, digits) == f"−{significant(value, digits)}"
    assert percent(-value) == f"−{percent(value)}"
    assert quantity(-value, "s", digits) == f"−{quantity(value, 's', digits)}"


@pytest.mark.parametrize("language", ["en", "ko"])
def test_a_text_has_a_minus_sign_and_no_hyphen(language):
    row = {"model": "plain_cnn", "points": -1.5, "half": 0.5}
    named = Texts(language, "flops_versus_time")("named", row=row)
    assert "−1.5" in named
    assert "-" not in named


@pytest.mark.parametrize(
    ("language", "words"), [("en", "−3.1 % … 46.4 % of 5 %p"), ("ko", "−3.1% … 46.4% of 5%p")]
)
def test_a_percent_sign_stands_as_the_language_writes_it(language, words):
    assert Texts(language).written("−3.1 % … 46.4 % of 5 %p") == words


def test_a_share_in_a_korean_sentence_is_closed_up():
    said = Texts("ko", "watch")("by_tensor_pipe", share=in_percent(46.4))
    assert said.endswith("46.4%")
