"""What ended a run from outside: keys and numbers, and words for each."""

import re

import pytest

from mfulab.core.language import verdicts
from mfulab.lab.runtime import client, endings

BUDGET = {"budget_min": 3, "command": "make report"}
ENDINGS = [
    endings.ending(endings.LEFT_OUT, needed_s=4.0, left_s=1.0, **BUDGET),
    endings.ending(endings.STOPPED, after_s=9.0, **BUDGET),
    endings.ending(endings.UNSUPERVISED),
    endings.ending(endings.LATE, limit_s=600.0),
    client._failure(-9, False),
    client._failure(-9, True),
    client._failure(-2, False),
    client._failure(3, False),
]


@pytest.mark.parametrize("ended_by", ENDINGS, ids=endings.key_of)
def test_each_ending_has_words_in_both_languages(ended_by):
    english = verdicts.flags(ended_by)
    korean = verdicts.flags(ended_by, "ko")
    assert english not in ("", endings.key_of(ended_by))
    assert re.search("[가-힣]", korean)
    for name, number in endings.numbers_of(ended_by).items():
        if name == "left_s":
            continue  # kept in the row alone: "0 s were left" explains nothing
        shown = f"{number:g}" if isinstance(number, float) else str(number)
        assert shown in english
        assert shown in korean


def test_a_signal_may_meet_one_process_of_several_and_lack_of_memory_meets_all():
    keys = [endings.key_of(client._failure(-9, is_memory)) for is_memory in (False, True)]
    assert [key in endings.BY_CHANCE for key in keys] == [True, False]


@pytest.mark.parametrize(
    "cell",
    [None, "", "budget_min=3: no time", "[3]", '{"left_out_for_budget": [3]}', "{",
     '{"left_out_for_budget": {"budget_min": "3"}}', '{"ended_by_signal": {"budget_min": 3}}'],
)  # fmt: skip
def test_what_is_no_ending_for_a_budget_names_none(cell):
    assert endings.budget_min(cell) is None
