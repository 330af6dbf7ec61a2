"""Rows that cannot be right are found, those that only look odd are not."""

import pandas as pd
import pytest

from mfulab.core.language import Texts
from mfulab.lab.report import figures
from mfulab.lab.tables import consistency

HERE = {"hardware": "here", "recorded": False}


def rows(*each: dict[str, object]) -> pd.DataFrame:
    return pd.DataFrame(
        [HERE | {"run": f"model=net,batch_size={place}"} | row for place, row in enumerate(each)]
    )


@pytest.mark.parametrize(
    ("key", "table", "fails"),
    [
        (
            "phases",
            [{"phases_percent": each} for each in (100.0, 108.0, 403.0, 30.0, float("nan"))],
            [2, 3],
        ),
        (
            "end_to_end",
            [{"time_s": 1.0, "end_to_end_s": each} for each in (2.0, 0.95, 0.7, float("nan"))],
            [2],
        ),
        ("update", [{"optimiser_ms": each} for each in (54.9, 15.0, 10.0)], [0]),
        ("update", [{"optimiser_ms": each} for each in (30.0, float("nan"), 10.0, 54.9)], []),
        ("update", [{"optimiser_ms": None}] * 2, []),
        ("rungs", [{"hfu_percent": 40.0, "mfu_percent": each} for each in (30.0, 44.0, 50.0)], [2]),
        (
            "levels",
            [
                {"pattern": "random", "level": level, "time_per_access_s": time}
                for level, time in (
                    ("L1", 1e-9),
                    ("L2", 90e-9),
                    ("L3", 20e-9),
                    ("memory", 80e-9),
                    ("memory", 95e-9),
                )
            ],
            [1],
        ),
    ],
)
def test_each_check_finds_its_rows(key, table, fails):
    found = consistency.failed(rows(*table))
    assert found[key].to_numpy().nonzero()[0].tolist() == fails
    assert consistency.any_failed(rows(*table)).to_numpy().nonzero()[0].tolist() == fails


def test_columns_that_are_not_there_are_not_judged():
    assert consistency.failed(rows({"time_s": 1.0})) == {}
    assert not consistency.any_failed(rows({"time_s": 1.0})).any()
    assert consistency.any_failed(rows()).empty


def test_a_row_that_fails_carries_no_sentence_while_another_can():
    class Module:
        TOPIC = "why"

        @staticmethod
        def finding(rows: pd.DataFrame, text: object) -> str:
            return " ".join(rows["run"])

    table = rows({"phases_percent": 100.0}, {"phases_percent": 403.0})
    assert figures.finding(Module, table, None) == "model=net,batch_size=0"
    assert figures.finding(Module, table.tail(1), None) == "model=net,batch_size=1"
    text = Texts(section="mfu_versus_utilization")
    told = figures.left_out("mfu_versus_utilization", table, text)
    assert told == text("left_doubtful", count=1)
    assert figures.left_out("mfu_versus_utilization", table.tail(1), text) == ""
