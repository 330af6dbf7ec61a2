"""Equal cards of one machine: which runs are compared, and what the sentence says of the cards."""

import json

import pandas as pd
import pytest
from support.said import heard

from mfulab.lab.report import selection
from mfulab.lab.report.figures import equal_cards

USUAL = {"GPU-a-1": 1.0, "GPU-b-1": 1.01, "GPU-c-1": 0.99}


def tables(
    *runs: dict[str, float], hardware: str = "nvidia-h200", **columns: object
) -> dict[str, pd.DataFrame]:
    """Merged rows of runs, each with a time by card; a card of several GPUs stands with spaces."""
    here = {"hardware": hardware, "recorded": False}
    sound = {"experiment": "record", "status": "ok", "started_at": "", "commit": ""}
    sound |= {"doubtful": False, "doubts": 0}
    rows = []
    for number, times in enumerate(runs):
        is_alone = all(times) and not any(" " in card for card in times)
        cards = json.dumps([*times]) if is_alone else ""
        row = {"run": f"model=a,batch_size={number}", "time_s": min(times.values())}
        row |= {"device_uuid": " ".join(times), "process_cards": cards}
        row |= {"process_times_s": json.dumps([*times.values()])}
        rows.append({**here, **sound, **row, **columns})
    table = pd.DataFrame(rows)
    environment = pd.DataFrame([here | {"device": "cuda", "device_name": "H200"}])
    return {"profile": table, "matmul": table.iloc[:0], "environment": environment}


def told(*runs: dict[str, float]) -> dict[str, list[dict[str, object]]]:
    return heard(equal_cards, tables(*runs))


@pytest.mark.parametrize("factor", [1.06, 1.2, 1e5])
def test_the_sentence_names_the_slow_card_with_factor_and_runs(factor):
    [said] = told(*[{**USUAL, "GPU-d-1": factor}] * 4)["finding"]
    assert (said["card"], said["count"], said["runs"]) == ("GPU-d", 4, 4)
    assert said["factor"] == pytest.approx(factor)


def test_of_several_slow_cards_the_slowest_is_named_and_all_are_counted():
    slow = {"GPU-d-1": 1.2, "GPU-e-1": 1.3}
    [said] = told(*[{**USUAL, **slow, "GPU-f-1": 1.0}] * 3)["finding_several"]
    assert (said["card"], said["slow"], said["count"]) == ("GPU-e", 2, 6)


@pytest.mark.parametrize(
    ("times", "percent"),
    [
        (USUAL, 1.0),
        (dict.fromkeys(USUAL, 1.0), 0.0),
        ({"GPU-a-1": 1.0, "GPU-b-1": 1.03}, 3.0),
        ({"GPU-a-1": 1.0, "GPU-b-1": 1.0, "GPU-c-1": 0.8}, 20.0),
    ],
    ids=["usual", "equal", "two", "a fast one"],
)
def test_cards_none_of_which_is_slow_are_said_to_be_within_a_percentage(times, percent):
    [said] = told(*[times] * 3)["finding_alike"]
    assert (said["count"], said["runs"]) == (len(times), 3)
    assert said["furthest_percent"] == pytest.approx(percent, abs=0.001)


@pytest.mark.parametrize(
    "runs",
    [
        [USUAL] * 2,
        [{"GPU-a-1": 1.0}] * 5,
        [{"GPU-a-1": 1.0}, {"GPU-b-1": 2.0}, {"GPU-c-1": 2.0}],
        [{"GPU-a-1 GPU-b-1": 1.0, "GPU-c-1 GPU-d-1": 2.0}] * 3,
        [{"": 1.0}] * 3,
    ],
    ids=["two runs", "one card", "each card another run", "jobs of two", "a CPU"],
)
def test_nothing_is_drawn_where_cards_share_no_three_runs(runs):
    assert equal_cards.rows(tables(*runs)).empty


def test_a_card_with_two_of_four_shared_runs_is_not_drawn():
    rows = equal_cards.rows(tables(*[{**USUAL, "GPU-d-1": 1.5}] * 2, *[USUAL] * 2))
    assert set(rows["card"]) == set(USUAL)


def test_recorded_tables_without_cards_draw_nothing():
    assert equal_cards.rows(tables(*[USUAL] * 3, process_cards="")).empty


def test_no_sentence_rests_on_unsure_runs_alone():
    measured = tables(*[{**USUAL, "GPU-d-1": 1.2}] * 4)
    measured["profile"] = measured["profile"].assign(doubts=[0, 1, 1, 1])
    drawn = selection.drawable(equal_cards, measured)
    chosen = selection.of_module(equal_cards, drawn).told
    assert len(drawn) == 16
    assert equal_cards.finding(chosen, None) == ""
