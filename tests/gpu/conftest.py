"""A kernel that deadlocks ends the process of its test: that one fails, and `-n 8` goes on."""

import faulthandler
import sys

import pytest

LIMIT_S = 120


@pytest.fixture(autouse=True)
def ended_if_it_hangs(request):
    """Ends what a `gpu` test hangs in, be it in C; `limit_s` of its mark is the time that it
    has."""
    mark = request.node.get_closest_marker("gpu")
    if mark is None:
        yield
        return
    faulthandler.dump_traceback_later(
        mark.kwargs.get("limit_s", LIMIT_S), exit=True, file=sys.__stderr__
    )
    yield
    faulthandler.cancel_dump_traceback_later()
