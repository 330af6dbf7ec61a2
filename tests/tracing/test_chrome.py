"""Reading files: in batches as at once, to the nanosecond, one message for what is none."""

import gzip
import json
import pickle
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.said import keys
from support.trace_events import TRACE, event, launched, operator, steps, trace, write

from mfulab.core.said import Said
from mfulab.tracing import chrome
from mfulab.tracing.chrome import Stream, TraceError, nanoseconds
from mfulab.tracing.events import _Intake, read
from mfulab.tracing.recorder import Recorder
from mfulab.tracing.trace import launch_of


def events_of(path):
    stream = Stream(path)
    return [event for batch in stream.batches() for event in batch], stream.metadata


def parsed(text):
    return Stream._parsed(SimpleNamespace(_mends=False), text.encode())


@pytest.mark.parametrize("size", [1 << 24, 97, 400])
@pytest.mark.parametrize("indent", [None, 2])
def test_batches_hold_what_the_file_holds(tmp_path, monkeypatch, size, indent):
    monkeypatch.setattr(chrome, "BATCH_BYTES", size)
    monkeypatch.setattr(chrome, "MOST_BATCHES", 20)
    nested = event("cpu_op", 'odd "}, {\\"ph\\": 1', 0, 1, odd=[{"ph": 1}, {"name": "}"}])
    whole = {
        **trace(nested, *TRACE["traceEvents"], nested),
        "traceName": "t",
        "baseTimeNanoseconds": 5,
    }
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(json.dumps(whole, indent=indent).encode()))
    found, metadata = events_of(path)
    assert found == chrome._events(whole["traceEvents"])
    assert metadata == {name: value for name, value in whole.items() if name != "traceEvents"}


def test_a_bare_list_of_events_is_a_trace(tmp_path):
    path = write(tmp_path / "t.json", TRACE["traceEvents"])
    assert events_of(path)[0] == chrome._events(TRACE["traceEvents"])


# Between lie clocks that count from the start of a machine which is on for 50 to 116 days: they are
# right to 1 ns.
@given(
    st.integers(0, 4 * 10**15) | st.integers(10**16, 2 * 10**18), st.integers(4 * 10**15, 10**16)
)
def test_a_time_keeps_its_nanoseconds(time, between):
    event = parsed(
        f'{{"ts": {between // 1000}.{between % 1000:03}, "dur": {time // 1000}.{time % 1000:03}}}'
    )
    assert abs(nanoseconds(event["ts"]) - between) <= 1
    [event] = parsed(f'[{{"ts": {time // 1000}.{time % 1000:03}}}]')
    assert nanoseconds(event["ts"]) == time
    found = nanoseconds(parsed("9123456789012.0006"))
    assert found == 9123456789012001, "a float of it lies 0.4 ns off, or 1.4"


NUMBERS = st.integers() | st.floats(-1e9, 1e9).map(lambda number: round(number, 3))


@given(
    st.recursive(st.none() | st.booleans() | NUMBERS | st.text(), lambda inner: st.lists(inner)),
    st.booleans(),
)
def test_both_parsers_read_the_same(value, is_ascii):
    text = json.dumps({"args": value, "n": [float("inf"), -0.0, 1e300]}, ensure_ascii=is_ascii)
    assert parsed(text) == json.loads(text)
    found = parsed(text[:-1]).msg
    assert found == chrome._parsed(text[:-1].encode()).msg, "what is wrong is said by one of them"


def test_times_that_are_none():
    assert nanoseconds(7) == 7000
    assert nanoseconds("1700000000000000.123") == 1700000000000000123, "some profilers write texts"
    for none in (None, "7 s", "", float("nan"), [], Decimal("NaN")):
        assert nanoseconds(none) is None


BAD = {
    "empty": (b"", "file_empty"),
    "text": (b"hello world", "no_json"),
    "zeros": (bytes(1000), "no_json"),
    "other": (b'{"a": [1, 2]}', "no_trace_events"),
    "invalid": (b'{"a": [1, 2', "json_invalid"),
    "cut": (json.dumps(TRACE).encode()[:-60], "ends_after"),
    "none": (b'{"traceEvents": []}', "no_events"),
    "jax": (
        json.dumps({"traceEvents": [{"ph": "M", "args": {"name": "/device:GPU:0"}}]}).encode(),
        "reads_formats",
    ),
    "nsight": (json.dumps([{"Type": 80, "CudaEvent": {}}]).encode(), "foreign_trace"),
    "foreign": (json.dumps(trace(event("blink", "a", 1, 2))).encode(), "foreign_trace"),
    "unended": (
        json.dumps(trace({"ph": "X", "cat": "kernel", "name": "k", "ts": 5, "pid": 0, "tid": 0})).encode(),
        "events_without_end",
    ),
    "no_gpu": (json.dumps(trace(operator("aten::mm", 0, 5))).encode(), "no_gpu_events"),
    "clocks": (
        json.dumps(trace(launched("k", 9e6, 0, 1, 8), launched("k", 9e6, 5, 1, 9))).encode(),
        "clocks_apart",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_one_message_says_what_is_wrong_with_the_file(tmp_path, name):
    content, key = BAD[name]
    path = write(tmp_path / f"{name}.json", content)
    with pytest.raises(TraceError) as caught:
        read(path)
    assert key in keys(caught.value)
    assert caught.value.said.numbers["source"] == str(path)
    assert "\n" not in str(caught.value)


def test_a_report_of_nsight_is_known_by_its_name(tmp_path):
    with pytest.raises(TraceError) as caught:
        read(write(tmp_path / "a.nsys-rep", b"\x01binary"))
    assert "is_nsys_report" in keys(caught.value)


def test_a_gzip_that_ends_early_or_unpacks_without_end(tmp_path, monkeypatch):
    packed = gzip.compress(json.dumps(TRACE).encode())
    (tmp_path / "cut.json.gz").write_bytes(packed[:-20])
    with pytest.raises(TraceError) as caught:
        read(tmp_path / "cut.json.gz")
    assert "gzip_ends_early" in keys(caught.value)
    monkeypatch.setattr(chrome, "SMALL_BYTES", 1 << 20)
    (tmp_path / "bomb.json.gz").write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (64 << 20)))
    with pytest.raises(TraceError) as caught:
        read(tmp_path / "bomb.json.gz")
    assert caught.value.why.key == "unpacks_without_end"
    assert caught.value.why.numbers["unpacked"] > 1 << 20
    (tmp_path / "odd.json.gz").write_bytes(packed[:10] + b"\x00\x01" + packed[12:])
    with pytest.raises(TraceError) as caught:
        read(tmp_path / "odd.json.gz")
    assert caught.value.why.key in ("cannot_be_unpacked", "cut_in_the_middle")


def test_what_does_not_fit_into_memory_is_said_before_it_is_read(tmp_path, monkeypatch):
    for name in ("t.json", "t.json.gz"):
        path = write(tmp_path / name, TRACE)
        assert chrome.unpacked_size(path, path.stat().st_size) == len(json.dumps(TRACE, indent=1))
        monkeypatch.setattr(chrome, "free_memory_bytes", lambda: 10**12)
        assert read(path)[0].events
        monkeypatch.setattr(chrome, "UNCHECKED_BYTES", 0)
        monkeypatch.setattr(chrome, "free_memory_bytes", lambda: 10**8)
        monkeypatch.setattr(chrome, "BATCH_BYTES", None)  # reading would fail otherwise
        with pytest.raises(TraceError) as caught:
            read(path)
        size = len(json.dumps(TRACE, indent=1))
        need = chrome.BASE_BYTES + chrome.MEMORY_PER_BYTE * size
        found = caught.value.why
        assert found == Said("json_needs_memory", {"size": size, "need": need, "free": 10**8})
        monkeypatch.undo()


def test_a_file_that_is_not_there(tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "none.json")
    for name, key in (("none.json", "no_such_file"), ("link.json", "link_leads_nowhere")):
        with pytest.raises(TraceError) as caught:
            read(tmp_path / name)
        assert caught.value.why == Said(key)
    with pytest.raises(TraceError) as caught:
        read(tmp_path)
    assert str(caught.value).count(str(tmp_path)) == 1


def test_an_error_crosses_processes_whole():
    error = TraceError("t.json", Said("file_empty"))
    copied = pickle.loads(pickle.dumps(error))
    assert (copied.path, copied.why, copied.said) == ("t.json", error.why, error.said)


def test_launches_are_linked_by_correlation(tmp_path):
    path = write(
        tmp_path / "t.json",
        trace(launched("a", 10, 15, 5, 3), launched("b", 11, 30, 5, 4), steps((0, 50))),
    )
    recording = read(path)[0]
    delays = recording.activities.begin - recording.launches.begin[launch_of(recording)]
    assert sorted(delays.tolist()) == [5_000, 19_000]


ANYTHING = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3)
)
ANYTHING |= st.lists(ANYTHING, max_size=2)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "ph": st.just("X"),
                "cat": st.sampled_from(["cpu_op", "kernel", "cuda_runtime", "odd"]),
            },
            optional={
                "name": st.sampled_from(["aten::mm", "k", "ProfilerStep#1"]) | ANYTHING,
                "ts": st.integers(0, 10**6) | st.floats(0, 10**6) | ANYTHING,
                "dur": st.integers(0, 10**3) | st.floats(0, 10**3) | ANYTHING,
                "args": st.dictionaries(st.sampled_from([*chrome.NAMES, "other"]), ANYTHING)
                | ANYTHING,
            },
        ),
        max_size=6,
    )
)
def test_events_read_by_columns_are_those_read_one_by_one(events):
    def taken(batches):
        whole = _Intake(Recorder(Path("t.json")))
        for batch in batches:
            whole.batch(batch)
        recorder = whole.recorder
        columns = [recorder._activities, recorder._host, recorder._launches]
        widths = 9, 8, 6
        rows = [
            sorted(zip(*[iter(held)] * width, strict=True))
            for held, width in zip(columns, widths, strict=True)
        ]
        return [
            *map(len, rows),
            whole.odd,
            whole.endless,
            whole.timeless,
            sum(whole.unknown.values()),
        ]

    read_events = chrome._events(events)
    assert taken([read_events]) == taken([[one] for one in read_events])
