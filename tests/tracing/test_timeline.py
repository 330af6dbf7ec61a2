"""A trace's time in order: pieces that sum to the window, MFU over time, and tracks."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from support.trace_events import TRACE, event, launched, operator, steps, trace, write

from mfulab.cli.main import main
from mfulab.measurements.read_trace.reader import read_file
from mfulab.tracing import timeline

SHARED = Path(__file__).parents[3] / "shared/traces"


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


def test_mfu_over_time_is_that_of_the_window_in_the_mean(tmp_path):
    shapes = [[64, 64], [64, 64]]
    kernels = [launched("gemm", 10 * n, 10 * n + 5, 3 * n, n) for n in (1, 2, 3)]
    calls = [operator("aten::mm", 10 * n - 1, 4, shapes) for n in (1, 2, 3)]
    (read,) = read_file(write(tmp_path / "a.json", trace(steps((0, 60)), calls, *kernels)))
    times, percent = timeline.mfu_over_time(read.analysis.told, read.analysis.call_flops, 1e12)
    assert len(times) == timeline.POINTS
    found = percent.mean()
    assert found == pytest.approx(100 * read.row.flops * read.row.steps / read.row.window_s / 1e12)
    at = np.searchsorted(times, read.analysis.told.window.begin + 16_500) - 1
    seen = percent[at]
    assert seen == pytest.approx(100 * 2 * 64**3 / 3e-6 / 1e12), "the first kernel's own speed"


@pytest.mark.parametrize("name", ["out.json", "out.json.gz"])
def test_tracks_stand_beside_the_traces_own_events_untouched(tmp_path, capsys, name):
    own = trace(
        steps((0, 60)),
        operator("aten::mm", 4, 4, [[64, 64], [64, 64]]),
        launched("gemm", 5, 20, 10, 1),
    )
    path = write(tmp_path / "a.json.gz", own)
    out = tmp_path / name
    assert main(["trace", str(path), "--perfetto", str(out)]) == 0
    text = gzip.decompress(out.read_bytes()) if name.endswith("gz") else out.read_bytes()
    found = json.loads(text)
    assert {key: value for key, value in found.items() if key != "traceEvents"} | {
        "traceEvents": [one for one in found["traceEvents"] if one.get("pid") != timeline.PROCESS]
    } == own
    ours = [one for one in found["traceEvents"] if one.get("pid") == timeline.PROCESS]
    budget = [one for one in ours if one.get("tid") == 1 and one["ph"] == "X"]
    idle = [one for one in ours if one.get("tid") == 2 and one["ph"] == "X"]
    assert sum(one["dur"] for one in budget + idle) == pytest.approx(60)
    assert {one["name"] for one in budget} == {"matmuls, convolutions, attention"}
    assert idle[0]["args"] == {"ended by": "gemm"}
    assert sum(one["ph"] == "C" for one in ours) == timeline.POINTS
    [verdict] = [one for one in ours if one.get("tid") == 0 and one["ph"] == "X"]
    assert verdict["name"].startswith("MFU ")


def test_tracks_are_refused_for_several_files_a_cpu_and_no_place(tmp_path, capsys):
    gpu = write(tmp_path / "a.json", TRACE)
    cpu = write(tmp_path / "b.json", {"traceEvents": [event("cpu_op", "aten::mm", 0, 5)]})
    for words, says in (
        ([gpu, gpu.with_name("b.json"), "--perfetto", tmp_path / "c"], "2 are given"),
        ([cpu, "--perfetto", tmp_path / "c"], "no device's time"),
        ([gpu, "--perfetto", tmp_path / "none" / "c"], "cannot be written"),
    ):
        assert main(["trace", *map(str, words)]) == 2
        assert says in capsys.readouterr().err


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no traces in {SHARED}")
def test_another_format_is_written_with_what_was_read_of_it(tmp_path):
    out = tmp_path / "out.json"
    assert main(["trace", str(SHARED / "nsys_h100_2_gpus.sqlite"), "--perfetto", str(out)]) == 0
    found = json.loads(out.read_text())["traceEvents"]
    seen = {one["pid"] for one in found if one["pid"] >= timeline.PROCESS}
    assert seen == {timeline.PROCESS, timeline.PROCESS + 1}
    assert sum(one["pid"] in (0, 1) for one in found) > 3442, "kernels and copies of two devices"
