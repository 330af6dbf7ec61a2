"""Reading files: in batches as at once, exact to the nanosecond, and one clear message for each that is none."""

import gzip
import json
from decimal import Decimal
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.trace_events import TRACE, event, launched, operator, steps, trace, write

from mfulab.tracing import chrome
from mfulab.tracing.chrome import Stream, TraceError, nanoseconds
from mfulab.tracing.events import read
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
    whole = {**trace(nested, *TRACE["traceEvents"], nested), "traceName": "t", "baseTimeNanoseconds": 5}
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(json.dumps(whole, indent=indent).encode()))
    found, metadata = events_of(path)
    assert found == whole["traceEvents"]
    assert metadata == {name: value for name, value in whole.items() if name != "traceEvents"}


def test_a_bare_list_of_events_is_a_trace(tmp_path):
    path = write(tmp_path / "t.json", TRACE["traceEvents"])
    assert events_of(path)[0] == TRACE["traceEvents"]


# Between lie clocks that count from the start of a machine which is on for 50 to 116 days: they are right to 1 ns.
@given(st.integers(0, 4 * 10**15) | st.integers(10**16, 2 * 10**18), st.integers(4 * 10**15, 10**16))
def test_a_time_keeps_its_nanoseconds(time, between):
    event = parsed(f'{{"ts": {between // 1000}.{between % 1000:03}, "dur": {time // 1000}.{time % 1000:03}}}')
    assert abs(nanoseconds(event["ts"]) - between) <= 1
    [event] = parsed(f'[{{"ts": {time // 1000}.{time % 1000:03}}}]')
    assert nanoseconds(event["ts"]) == time
    assert nanoseconds(parsed("9123456789012.0006")) == 9123456789012001, "a float of it lies 0.4 ns off, or 1.4"


NUMBERS = st.integers() | st.floats(-1e9, 1e9).map(lambda number: round(number, 3))


@given(st.recursive(st.none() | st.booleans() | NUMBERS | st.text(), lambda inner: st.lists(inner)), st.booleans())
def test_both_parsers_read_the_same(value, is_ascii):
    text = json.dumps({"args": value, "n": [float("inf"), -0.0, 1e300]}, ensure_ascii=is_ascii)
    assert parsed(text) == json.loads(text)
    assert parsed(text[:-1]).msg == chrome._parsed(text[:-1].encode()).msg, "what is wrong is said by one of them"


def test_times_that_are_none():
    assert nanoseconds(7) == 7000
    assert nanoseconds("1700000000000000.123") == 1700000000000000123, "some profilers write texts"
    for none in (None, "7 s", "", float("nan"), [], Decimal("NaN")):
        assert nanoseconds(none) is None


BAD = {
    "empty": (b"", "the file is empty"),
    "text": (b"hello world", "not JSON: it begins with b'hello world'"),
    "zeros": (bytes(1000), "not JSON"),
    "other": (b'{"a": [1, 2]}', "JSON without traceEvents"),
    "invalid": (b'{"a": [1, 2', "not valid JSON"),
    "cut": (json.dumps(TRACE).encode()[:-60], "cut in the middle"),
    "none": (b'{"traceEvents": []}', "holds no events"),
    "jax": (
        json.dumps({"traceEvents": [{"ph": "M", "args": {"name": "/device:GPU:0"}}]}).encode(),
        "profiles of JAX (*.xplane.pb)",
    ),
    "nsight": (json.dumps([{"Type": 80, "CudaEvent": {}}]).encode(), "exports of Nsight Systems (*.sqlite)"),
    "foreign": (json.dumps(trace(event("blink", "a", 1, 2))).encode(), "another program"),
    "unended": (
        json.dumps(trace({"ph": "X", "cat": "kernel", "name": "k", "ts": 5, "pid": 0, "tid": 0})).encode(),
        "no usable `dur`",
    ),
    "no_gpu": (json.dumps(trace(operator("aten::mm", 0, 5))).encode(), "no GPU events, though the trace names 'NVIDIA"),
    "clocks": (
        json.dumps(trace(launched("k", 9e6, 0, 1, 8), launched("k", 9e6, 5, 1, 9))).encode(),
        "overlapping clocks",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_one_message_says_what_is_wrong_with_the_file(tmp_path, name):
    content, message = BAD[name]
    path = write(tmp_path / f"{name}.json", content)
    with pytest.raises(TraceError) as caught:
        read(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_report_of_nsight_is_known_by_its_name(tmp_path):
    with pytest.raises(TraceError, match="Nsight Systems report"):
        read(write(tmp_path / "a.nsys-rep", b"\x01binary"))


def test_a_gzip_that_ends_early_or_unpacks_without_end(tmp_path, monkeypatch):
    packed = gzip.compress(json.dumps(TRACE).encode())
    (tmp_path / "cut.json.gz").write_bytes(packed[:-20])
    with pytest.raises(TraceError, match="cut in the middle"):
        read(tmp_path / "cut.json.gz")
    monkeypatch.setattr(chrome, "SMALL_BYTES", 1 << 20)
    (tmp_path / "bomb.json.gz").write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (64 << 20)))
    with pytest.raises(TraceError, match="no trace packs so well"):
        read(tmp_path / "bomb.json.gz")
    (tmp_path / "odd.json.gz").write_bytes(packed[:10] + b"\x00\x01" + packed[12:])
    with pytest.raises(TraceError, match=r"cannot be unpacked|cut in the middle"):
        read(tmp_path / "odd.json.gz")


def test_what_does_not_fit_into_memory_is_said_before_it_is_read(tmp_path, monkeypatch):
    for name in ("t.json", "t.json.gz"):
        path = write(tmp_path / name, TRACE)
        assert chrome.unpacked_size(path, path.stat().st_size) == len(json.dumps(TRACE, indent=1))
        monkeypatch.setattr(chrome, "free_memory_bytes", lambda: 10**12)
        assert read(path)[0].events
        monkeypatch.setattr(chrome, "free_memory_bytes", lambda: 10**8)
        monkeypatch.setattr(chrome, "BATCH_BYTES", None)  # reading would fail otherwise
        with pytest.raises(TraceError, match=r"GB of JSON need about 0\.3 GB of memory and 0\.1 GB are free"):
            read(path)
        monkeypatch.undo()


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(TraceError, match="no such file"):
        read(tmp_path / "none.json")


def test_launches_are_linked_by_correlation(tmp_path):
    path = write(tmp_path / "t.json", trace(launched("a", 10, 15, 5, 3), launched("b", 11, 30, 5, 4), steps((0, 50))))
    recording = read(path)[0]
    delays = recording.activities.begin - recording.launches.begin[launch_of(recording)]
    assert sorted(delays.tolist()) == [5_000, 19_000]
