"""Equal devices of several participants: which runs are compared, and what the sentence says of
them."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfulab.core.language import Texts
from mfulab.lab.report.figures import equal_devices


def tables(times: dict[str, float], run: str = "model=a,batch_size=4") -> dict[str, pd.DataFrame]:
    """One run's time on each machine."""
    shared = {
        "recorded": False,
        "run": run,
        "status": "ok",
        "started_at": "",
        "commit": "",
        "doubtful": False,
    }
    rows = [{**shared, "hardware": machine, "time_s": time} for machine, time in times.items()]
    table = pd.DataFrame(rows)
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


@pytest.mark.parametrize("language", ["en", "ko"])
@given(times=st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=5))
def test_the_sentence_names_the_slowest_and_the_fastest(language, times):
    rows = equal_devices.rows(
        tables({f"cpu-2c--p{place}": time for place, time in enumerate(times)})
    )
    said = equal_devices.finding(rows, Texts(language, "equal_devices"))
    slow, fast = times.index(max(times)), times.index(min(times))
    assert f"{max(times) / min(times):.2f}" in said
    assert f"p{slow}" in said
    assert f"p{fast}" in said or max(times) == min(times)
