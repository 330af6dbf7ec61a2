"""A trace's time in order: pieces that sum to the window."""

import json

from support.trace_events import TRACE, write

from mfulab.measurements.read_trace.reader import read_file
from mfulab.tracing import timeline


def test_pieces_are_those_of_the_budget_in_order(tmp_path):
    """100 µs of two steps: the first half is matmul from 10 to 40, then relu."""
    (read,) = read_file(write(tmp_path / "a.json", TRACE))
    lengths = {
        kind: int((spans.end - spans.begin).sum())
        for kind, spans in timeline.pieces(read.analysis.told).items()
    }
    assert lengths == read.analysis.spent
    parts = [list(run) for run in json.loads(read.row.timeline)]
    assert sum(count for _, count in parts) == timeline.SLICES
    assert [kind for kind, _ in parts] == ["idle", "uncounted", "others"]
    assert parts[0][1] == timeline.SLICES * 10 // 50
