"""Equal cards side by side: which is named as slow, and which is not."""

import pytest

from mfulab.lab.tables import cards


def rows(times, recorded=False):
    """A row of each card's time of each run, as processes measured them."""
    return {
        "profile": [
            {
                "hardware": "nvidia-h200",
                "run": f"model={model},replicate={place}",
                "recorded": recorded,
                "device_uuid": card,
                "time_s": time_s,
            }
            for model, by_card in enumerate(times)
            for place, (card, time_s) in enumerate(by_card.items(), 1)
        ]
    }


USUAL = {"GPU-a": 1.0, "GPU-b": 1.01, "GPU-c": 0.99}


def test_a_card_that_is_slower_in_most_runs_is_named():
    told = list(cards.slow(rows([{**USUAL, "GPU-d": 1.2}] * 3)))
    [found] = told
    assert found.key == "card_slower"
    assert (found.numbers["card"], found.numbers["count"], found.numbers["runs"]) == ("GPU-d", 4, 3)
    assert found.numbers["factor"] == pytest.approx(1.19, abs=0.005)


@pytest.mark.parametrize(
    "found",
    [
        rows([USUAL] * 5),
        rows([{**USUAL, "GPU-d": 1.2}] * 2),
        rows([{**USUAL, "GPU-d": 1.2}] * 3, recorded=True),
        rows([{"GPU-a": 1.0, "GPU-a GPU-b": 2.0}] * 3),
        rows([{"": 1.0}, {"": 2.0}, {"": 3.0}]),
        rows([{"GPU-a": 1.0}, {"GPU-b": 2.0}, {"GPU-b": 3.0}]),
    ],
    ids=["equal", "too few runs", "recorded", "a job of two", "a CPU", "each run once"],
)
def test_nobody_is_blamed_for_what_was_not_compared(found):
    assert list(cards.slow(found)) == []
