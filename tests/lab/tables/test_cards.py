"""Equal cards side by side: which is named as slow, and which is not."""

import json

import pytest

from mfulab.lab.tables import cards, replicates


def rows(times, recorded=False):
    """A row of each card's time of each run, as processes measured them."""
    return {
        "profile": [
            {
                "hardware": "nvidia-h200",
                "run": f"model={model},replicate={place}",
                "recorded": recorded,
                "status": "ok",
                "device_uuid": card,
                "time_s": time_s,
            }
            for model, by_card in enumerate(times)
            for place, (card, time_s) in enumerate(by_card.items(), 1)
        ]
    }


def merged(found):
    """The same rows as the tables hold them: one for each run."""
    return {"profile": replicates.merge_rows(found["profile"])}


USUAL = {"GPU-a": 1.0, "GPU-b": 1.01, "GPU-c": 0.99}


@pytest.mark.parametrize("held", [dict, merged], ids=["single processes", "merged rows"])
def test_a_card_that_is_slower_in_most_runs_is_named(held):
    told = list(cards.slow(held(rows([{**USUAL, "GPU-d": 1.2}] * 3))))
    [found] = told
    assert found.key == "card_slower"
    assert (found.numbers["card"], found.numbers["count"], found.numbers["runs"]) == ("GPU-d", 4, 3)
    assert found.numbers["factor"] == pytest.approx(1.2)


def test_of_two_cards_the_slower_is_held_against_the_other():
    [found] = cards.slow(rows([{"GPU-a": 1.0, "GPU-b": 1.3}] * 3))
    assert (found.numbers["card"], found.numbers["factor"]) == ("GPU-b", 1.3)


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
@pytest.mark.parametrize("held", [dict, merged], ids=["single processes", "merged rows"])
def test_nobody_is_blamed_for_what_was_not_compared(held, found):
    assert list(cards.slow(held(found))) == []


@pytest.mark.parametrize(
    ("by_card", "kept"),
    [
        ({"GPU-b": 1.0, "GPU-a": 1.2}, ["GPU-b", "GPU-a"]),
        ({"GPU-a": 1.0}, ["GPU-a"]),
        ({"GPU-a GPU-b": 1.0, "GPU-c GPU-d": 1.1}, None),
        ({"": 1.0}, None),
    ],
    ids=["two cards", "one", "a job of two", "a CPU"],
)
def test_a_merged_row_keeps_which_process_ran_on_which_card(by_card, kept):
    [row] = merged(rows([by_card]))["profile"]
    assert json.loads(row["process_cards"] or "null") == kept
    if kept:
        assert len(replicates.times_of(row)) == len(kept)


@pytest.mark.parametrize("cell", ["[1, 2]", "{", '["GPU-a"]', "7", None])
def test_cards_that_cannot_be_read_or_are_too_few_compare_nothing(cell):
    broken = merged(rows([{**USUAL, "GPU-d": 1.2}] * 3))
    for row in broken["profile"]:
        row["process_cards"] = cell
    assert cards.compared(broken["profile"]) == []


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["GPU-5c8f-01", "GPU-77aa-01"], ["GPU-5c8f", "GPU-77aa"]),
        (["GPU-0000-01", "GPU-0000-02"], ["…01", "…02"]),
        (["GPU-0-a-1", "GPU-0-b-1"], ["GPU-0-a-1", "GPU-0-b-1"]),
    ],
    ids=["beginnings", "ends", "neither"],
)
def test_labels_of_cards_are_short_and_never_alike(names, labels):
    assert list(cards.short_names(names).values()) == labels
