"""Parts of a step sum to it exactly, and differences of two to the difference of their steps."""

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.trace_events import launched, operator, steps, trace, write

from mfulab.cli.main import main
from mfulab.measurements.read_trace.reader import read_file
from mfulab.tracing.analysis import analyse
from mfulab.tracing.difference import difference
from mfulab.tracing.recorder import Recorder
from mfulab.tracing.shares import SPENT
from mfulab.tracing.trace import Call
from mfulab.tracing.window import windows

SHAPES = ([8, 8], [8, 8])
KERNELS = ("gemm", "relu", "ncclDevKernel_AllReduce")
CALLS = ("aten::mm", "aten::relu", "enumerate(DataLoader)#x", "cudaStreamSynchronize")


@st.composite
def analyses(draw):
    """Any kernels on any streams, calls, launches and waits, linked or not."""
    recorder = Recorder(Path("t.json"))
    times, lengths = st.integers(0, 400), st.integers(1, 80)
    for number in range(draw(st.integers(1, 12))):
        begin, length, kind = draw(times), draw(lengths), draw(st.integers(0, 2))
        linked = draw(st.sampled_from((-1, number + 1)))
        name, stream = draw(st.sampled_from(KERNELS)), draw(st.integers(1, 3))
        recorder.activity((begin, begin + length), kind, name, (1, 0), stream, linked, -1, 0)
        asked = draw(st.integers(0, begin))
        recorder.launch(
            (asked, asked + 1),
            (1, 1),
            number + 1,
            draw(st.sampled_from(("cudaLaunchKernel", "cudaGraphLaunch"))),
        )
    for name in draw(st.lists(st.sampled_from(CALLS), max_size=6)):
        begin = draw(times)
        span = begin, begin + draw(lengths)
        if name.startswith("cuda"):
            recorder.launch(span, (1, 1), 0, name)
        else:
            call = Call(name, SHAPES, ("float", "float"), ()) if name == "aten::mm" else None
            recorder.host_call(span, name, (1, 1), -1, False, "::" not in name, call)
    (recording,) = recorder.done({}, 1)
    return analyse(recording, windows(recording, draw(st.integers(1, 3)))[0])


@given(analyses())
def test_parts_sum_to_the_window_and_to_each_kind_of_time(found):
    assert sum(found.parts.values()) == sum(found.spent.values()) == found.window.length
    for kind in SPENT:
        seen = sum(time for part, time in found.parts.items() if part[0] == kind)
        assert seen == found.spent[kind], kind
    assert sum(found.idle_causes.values()) == found.spent["idle"]


@given(analyses(), analyses())
def test_differences_sum_to_the_difference_of_the_steps(before, after):
    found = difference(before, after)
    whole = Fraction(after.window.length, after.window.steps) - Fraction(
        before.window.length, before.window.steps
    )
    assert sum(part.difference for part in found.parts) == whole == found.after - found.before
    assert sum(part.difference for part in found.kinds()) == whole
    back = difference(after, before)
    seen = {(one.kind, one.operator, one.shapes): one.difference for one in found.parts}
    assert seen == {(one.kind, one.operator, one.shapes): -one.difference for one in back.parts}


def recorded(path, kernel=20, spread=0):
    """Three steps of 100 µs and one matmul each; the second is longer by `spread`."""
    spans = [(0, 100), (100, 200 + spread), (200 + spread, 300 + spread)]
    events = [
        [
            operator("aten::mm", begin, 5, SHAPES),
            *launched("gemm", begin + 2, begin + 10, kernel, number),
        ]
        for number, (begin, _) in enumerate(spans, 1)
    ]
    return write(path, trace(steps(*spans), *events))


def test_the_noise_is_the_spread_of_the_steps(tmp_path):
    one, two = (
        read_file(recorded(tmp_path / f"{spread}.json", spread=spread))[0].analysis
        for spread in (0, 6)
    )
    found = difference(one, two)
    assert found.change == pytest.approx(0.02)
    seen = found.noise
    assert seen == pytest.approx(2 * (12 / 3) ** 0.5 / 100), "variance of 100, 106, 100 is 12"
    assert (found.verdict, difference(one, one).verdict) == ("same", "same")


@pytest.mark.parametrize(
    ("gate", "status"),
    [((), 0), (("--gate", "5%"), 1), (("--gate", "0.3"), 0)],
    ids=["none", "5", "30"],
)
@pytest.mark.parametrize("command", [("trace", "--compare"), ("compare",)], ids="-".join)
def test_the_gate_is_the_status(tmp_path, capsys, command, gate, status):
    old = write(
        tmp_path / "old.json", trace(launched("gemm", 0, 5, 80, 1), launched("nccl", 1, 90, 15, 2))
    )
    new = write(
        tmp_path / "new.json",
        trace(launched("gemm", 0, 5, 100, 1), launched("relu", 1, 110, 15, 2)),
    )
    code = main([*command, str(old), str(new), "--json", *gate])
    found = json.loads(capsys.readouterr().out)
    assert code == status
    assert (found["before_ms"], found["after_ms"], found["verdict"]) == (0.1, 0.12, "slower")
    assert found["noise_percent"] is None
    rows = {(one["kind"], one["operator"]): one["difference_ms"] for one in found["parts"]}
    assert rows["communication", "nccl"] == pytest.approx(-0.015)
    assert rows["others", "relu"] == pytest.approx(0.015)
    assert sum(rows.values()) == pytest.approx(0.02)


def test_the_table_names_what_is_new_and_what_is_gone(tmp_path, capsys):
    old = write(
        tmp_path / "old.json", trace(launched("gemm", 0, 5, 80, 1), launched("nccl", 1, 90, 15, 2))
    )
    new = write(
        tmp_path / "new.json",
        trace(launched("gemm", 0, 5, 100, 1), launched("relu", 1, 110, 15, 2)),
    )
    assert main(["trace", "--compare", str(old), str(new)]) == 0
    told = capsys.readouterr().out
    for words in ("Slower", "new)", "gone)", "+20.00 %", "noise is not"):
        assert words in " ".join(told.split()), words


def test_the_devices_of_two_traces_are_named(tmp_path, capsys):
    events = launched("gemm", 0, 5, 80, 1)
    old = write(tmp_path / "old.json", trace(events))
    new = write(
        tmp_path / "new.json", trace(events, deviceProperties=[{"id": 0, "name": "Odd X1"}])
    )
    said = {old: "Both on NVIDIA H100", new: "Before on NVIDIA H100"}
    for other, words in said.items():
        assert main(["trace", "--compare", str(old), str(other)]) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert words in told
        assert ("after on Odd X1" in told) == (other == new)
    assert main(["trace", "--compare", str(old), str(new), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["devices"][1] == "Odd X1"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("trace", "--compare", "{old}"), "give two traces"),
        (("trace", "--compare", "{old}", "{old}", "--gate", "fast"), "'fast' is no share"),
        (("trace", "--compare", "{old}", "{bad}"), "not JSON"),
        (("compare", "{old}", "{bad}"), "not JSON"),
        (("compare", "{old}", "{old}", "--out", "{old}"), "it holds the runs"),
        (("compare", "{old}", "{old}.gone"), "no results here"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(tmp_path, capsys, words, said):
    old, bad = recorded(tmp_path / "old.json"), write(tmp_path / "bad.json", b"\xff\xff")
    assert main([word.format(old=old, bad=bad) for word in words]) == 2
    assert said in capsys.readouterr().err
