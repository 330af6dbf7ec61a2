"""A file of gigabytes is read in part: steps from its middle, whole ones, and what is said of them."""

import json

import pytest
from support.trace_events import event, launched, operator, steps, trace, write

from mfulab.measurements.read_trace.reader import read_file
from mfulab.mfu.traced import trace_columns
from mfulab.tracing import part
from mfulab.tracing.chrome import Stream

STEP_US = 1000.0
SIDE = 1024


def one_step(number, slow=1.0):
    """A step with a matmul whose kernel ends after the host's mark, as where a device lags."""
    begin = number * STEP_US
    call = operator("aten::mm", begin + 10, 5, [[SIDE, SIDE], [SIDE, SIDE]], "c10::BFloat16")
    kernel = launched("nvjet_tst_128x256_64x4", begin + 11, begin + 700, 400 * slow, number + 1)
    return [call, *kernel]


def written(path, count, marked=True):
    events = [one for number in range(count) for one in one_step(number)]
    spans = [(number * STEP_US, number * STEP_US + 900) for number in range(count)]
    return write(path, trace(*(steps(*spans) if marked else []), *events))


@pytest.fixture
def small_limits(monkeypatch):
    monkeypatch.setattr(part, "LARGE_BYTES", 1)
    monkeypatch.setattr(part, "SAMPLED", 1)
    monkeypatch.setattr(part, "MOST_EVENTS", 42)


def row_of(path):
    (read,) = read_file(path)
    row = read.row.model_dump()
    return row | trace_columns(row)


def test_whole_steps_from_the_middle_are_read_and_the_rest_is_told(tmp_path, small_limits):
    row = row_of(written(tmp_path / "t.json.gz", 100))
    assert row["steps"] == 9, "of four events each"
    assert (row["first_step"], row["last_step"]) == (49, 57), "the middle is 53, counted from 3"
    numbers = json.loads(row["notes"])["part_of_steps"]
    assert (numbers["steps"], numbers["all"]) == (9, 100)
    assert numbers["percent"] == pytest.approx(9.5, abs=1)
    assert row["events"] == 400


def test_a_part_has_the_mfu_of_the_whole(tmp_path, small_limits, monkeypatch):
    path = written(tmp_path / "t.json.gz", 60)
    in_part = row_of(path)
    monkeypatch.setattr(part, "LARGE_BYTES", 1 << 40)
    whole = row_of(path)
    assert (in_part["steps"], whole["steps"]) == (9, 60)
    assert in_part["flops"] == whole["flops"] == 2 * SIDE**3
    assert in_part["mfu_percent"] == pytest.approx(whole["mfu_percent"], rel=0.01)
    assert "part_of_steps" not in json.loads(whole["notes"] or "{}")


def test_without_marks_the_middle_of_the_time_is_read(tmp_path, small_limits):
    row = row_of(written(tmp_path / "t.json.gz", 100, marked=False))
    numbers = json.loads(row["notes"])["part_of_time"]
    assert numbers["percent"] == pytest.approx(14, abs=1)
    assert row["flops"] == 2 * SIDE**3, "what repeats is a step"


def test_a_step_larger_than_the_limit_is_read_whole(tmp_path, small_limits, monkeypatch):
    monkeypatch.setattr(part, "MOST_EVENTS", 2)
    row = row_of(written(tmp_path / "t.json.gz", 20))
    assert (row["steps"], row["flops"]) == (1, 2 * SIDE**3)


def test_a_file_with_few_events_is_read_whole_however_large(tmp_path, small_limits):
    path = written(tmp_path / "t.json", 3)
    assert part.part_of(path) is None
    assert row_of(path)["steps"] == 3


def test_times_as_text_are_times(tmp_path, small_limits):
    events = []
    for number in range(50):
        for one in one_step(number):
            events.append(one | {"ts": f"{one['ts']:.3f}"})
    spans = [(number * STEP_US, number * STEP_US + 900) for number in range(50)]
    path = write(tmp_path / "t.json", trace(steps(*spans), *events))
    assert row_of(path)["steps"] == 9


def test_events_that_are_none_are_counted_and_break_nothing(tmp_path, small_limits):
    odd = [3, {"ph": "M", "name": "process_name"}, event("cpu_op", "aten::mm", "never", 5)]
    spans = [(number * STEP_US, number * STEP_US + 900) for number in range(50)]
    events = [one for number in range(50) for one in one_step(number)]
    path = write(tmp_path / "t.json", trace(*odd, steps(*spans), *events))
    row = row_of(path)
    assert row["steps"] == 9
    assert json.loads(row["notes"])["odd_events"] == {"count": 1}


def test_engines_steps_are_marks_too(tmp_path, small_limits):
    marks = []
    for number in range(50):
        name = "execute_context_0(0)_generation_8(8)"
        marks.append(event("user_annotation", name, number * STEP_US, 900, 1))
    events = [one for number in range(50) for one in one_step(number)]
    row = row_of(write(tmp_path / "t.json", trace(*marks, *events)))
    assert (row["mode"], row["steps"]) == ("decoding", 9)


def test_memory_is_not_asked_for_a_file_that_is_read_in_part(tmp_path, small_limits, monkeypatch):
    path = written(tmp_path / "t.json", 50)
    monkeypatch.setattr(Stream, "_check_memory", lambda self: 1 / 0)
    assert row_of(path)["steps"] == 9
