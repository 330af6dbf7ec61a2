"""Of measured loops: none starts a process for each window, but where it asks for it."""

import pytest

from mfulab.device.samplers.series import Series


@pytest.fixture
def polled() -> None:
    """Asks for the time series of a window, which a process of its own polls."""


@pytest.fixture(autouse=True)
def without_a_poller(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process for each window would take a third of these tests' time; its own tests start it."""
    if "polled" not in request.fixturenames:
        monkeypatch.setattr(Series, "open", lambda series: series)
