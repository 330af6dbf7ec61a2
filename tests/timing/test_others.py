"""CPU time of other programs, by clocks that tick apart."""

import pytest

from mfulab.device.cpu import SystemSeconds
from mfulab.timing import others
from mfulab.timing.others import Others


@pytest.mark.parametrize(
    ("total", "busy", "own", "percent"),
    [
        (4.0, 3.0, 1.0, 50.0),
        (4.0, 4.0 + 1e-9, 0.0, 100.0),  # rounding of a machine that is busy all the time
        (4.0, 1.0, 1.01, 0.0),  # own time ticks before the system's
        (0.0, 0.0, 0.0, None),
    ],
)
def test_a_share_is_a_share_whatever_the_clocks_tick(total, busy, own, percent, monkeypatch):
    system = iter([SystemSeconds(10.0, None, 20.0), SystemSeconds(10.0 + busy, None, 20.0 + total)])
    process = iter([5.0, 5.0 + own])
    monkeypatch.setattr(others, "system_seconds", lambda: next(system))
    monkeypatch.setattr(others, "_own_s", lambda: next(process))
    told = Others().percent()
    assert told == (None if percent is None else pytest.approx(percent))
    assert told is None or 0 <= told <= 100
