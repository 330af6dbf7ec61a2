"""Equal devices of several participants: which runs are compared, and the sentence."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.drawn import repeatable
from support.said import heard

from mfulab.lab.report.figures import equal_devices


def tables(times: dict[str, float], run: str = "model=a,batch_size=4") -> dict[str, pd.DataFrame]:
    """One run's time on each machine."""
    shared = {"recorded": False, "run": run, "status": "ok", "started_at": "", "commit": ""}
    shared |= {"doubtful": False, "doubts": 0, "reach": 1.0}
    rows = [{**shared, "hardware": machine, "time_s": time} for machine, time in times.items()]
    table = pd.DataFrame(map(repeatable, rows))
    return {"profile": table, "matmul": table.iloc[:0]}


def test_only_participants_of_one_kind_of_device_are_compared():
    rows = equal_devices.rows(
        tables({"cpu-2c": 1.0, "cpu-2c--ann": 2.0, "cpu-2c--bob": 4.0, "gpu--ann": 0.1})
    )
    assert set(rows["who"]) == {"ann", "bob"}
    assert set(rows["kind"]) == {"cpu-2c"}
    assert sorted(rows["relative"]) == pytest.approx([2 / 3, 4 / 3])


def test_without_participants_nothing_is_drawn():
    assert equal_devices.rows(tables({"cpu-2c": 1.0, "gpu": 2.0})).empty


@given(times=st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=5, unique=True))
def test_the_sentence_names_the_slowest_and_the_fastest(times):
    measured = tables({f"cpu-2c--p{place}": time for place, time in enumerate(times)})
    [told] = heard(equal_devices, measured)["finding"]
    slow, fast = times.index(max(times)), times.index(min(times))
    assert (told["slow"]["who"], told["fast"]["who"]) == (f"p{slow}", f"p{fast}")
    assert told["slow"]["range"] == pytest.approx(max(times) / min(times))


@pytest.mark.parametrize("column", ["doubts", "time_ci_high_s"])
def test_times_that_may_be_alike_are_not_ranked(column):
    measured = tables({"cpu-2c--ann": 1.0, "cpu-2c--bob": 1.2})
    wide = {"time_ci_low_s": 0.5, "time_ci_high_s": 2.0, "doubts": 0, "reach": 1.0}
    if column == "doubts":
        wide = {"doubts": 1, "reach": 1.5}
    measured["profile"] = measured["profile"].assign(**wide)
    assert heard(equal_devices, measured).keys() == {"finding_alike"}
