"""Traces that no profiler wrote so: read without what cannot be, or refused in one sentence."""

import json
import sqlite3

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.said import keys, numbers
from support.trace_events import TRACE, event, launched, operator, steps, trace, write

from mfulab.cli.main import main
from mfulab.core.said import Said
from mfulab.measurements.read_trace.reader import files, read_file
from mfulab.tracing.chrome import TraceError

SHAPES = [[4096, 4096], [4096, 4096]]


def content():
    """Two steps of 1 ms, each with a matmul of 137 GFLOP of 500 µs."""
    found = []
    for number in (0, 1):
        begin = 1_000_000 + 1000 * number
        found += [
            *steps((begin, begin + 1000), first=number),
            operator("aten::mm", begin, 5, SHAPES, "c10::BFloat16", **{"External id": number + 1}),
            *launched(
                "nvjet_tst_128x256_64x4", begin + 1, begin + 100, 500, number + 1, grid=[128, 1, 1]
            ),
        ]
    return trace(*found, displayTimeUnit="ms")


def rows(tmp_path, whole, capsys):
    path = write(
        tmp_path / "t.json", whole if isinstance(whole, bytes) else json.dumps(whole).encode()
    )
    status = main(["trace", str(path), "--json"])
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    return status, [json.loads(line) for line in told.out.splitlines()]


def of_kind(name):
    return [one for one in content()["traceEvents"] if one["cat"] == name]


# What is put in place of a part of every event of a kind.
HARMS = {
    "beyond 64 bits": ("kernel", ("args", "correlation"), 2**70),
    "time beyond 64 bits": ("kernel", ("ts",), 2**80),
    "shape beyond 64 bits": ("cpu_op", ("args", "Input Dims"), [[2**70, 2], [2, 2]]),
    "negative shape": ("cpu_op", ("args", "Input Dims"), [[-4, 2], [2, 2]]),
    "shape of texts": ("cpu_op", ("args", "Input Dims"), [["4", "4"], {"a": 1}]),
    "args a text": ("kernel", ("args",), "none"),
    "args a list": ("cpu_op", ("args",), [1]),
    "type a mapping": ("cpu_op", ("args", "Input type"), [{"a": 1}, ["b"]]),
    "values of any kind": ("cpu_op", ("args", "Concrete Inputs"), [{}, [], None, 3]),
    "device a list": ("kernel", ("args", "device"), [0]),
    "process a list": ("kernel", ("pid",), [0]),
    "thread a mapping": ("cpu_op", ("tid",), {}),
    "grid of 64 bits": ("kernel", ("args", "grid"), [2**60, 2**60, 9]),
    "name a list": ("kernel", ("name",), ["k"]),
    "name a surrogate": ("cpu_op", ("name",), "aten::\ud800"),
    "escape in a name": ("kernel", ("name",), "k\x1b[31mred\x07"),
    "kind a list": ("cuda_runtime", ("cat",), []),
    "step of many digits": ("user_annotation", ("name",), "ProfilerStep#" + "9" * 5000),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_part_of_another_kind_is_left_out_or_said(tmp_path, capsys, harm):
    kind, path, value = HARMS[harm]
    whole = content()
    for one in whole["traceEvents"]:
        if one["cat"] == kind:
            held = one
            for key in path[:-1]:
                held = held[key]
            held[path[-1]] = value
    status, found = rows(tmp_path, whole, capsys)
    assert found
    for row in found:
        assert status or row["kernel_busy_percent"] in (pytest.approx(50), None, 0)
        assert row["message"] or row["flops"] in (2 * 4096**3, None)
        assert not any(ord(letter) < 32 for letter in json.dumps(row, ensure_ascii=False))


def test_numbers_of_5000_digits_are_said(tmp_path, capsys):
    text = json.dumps(content()).replace(
        '"displayTimeUnit"', f'"x": {"9" * 5000}, "displayTimeUnit"'
    )
    status, (row,) = rows(tmp_path, text.encode(), capsys)
    assert status == 0, "of the head nothing is lost but itself"
    text = json.dumps(content()).replace('"dur": 500', f'"dur": {"9" * 5000}')
    status, (row,) = rows(tmp_path, text.encode(), capsys)
    assert status == 1
    assert "json_invalid_after" in keys(row["message"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            '"grid": [128, 1, 1]',
            '"memory bandwidth (GB/s)": inf, "x": [-inf, nan], "grid": [128, 1, 1]',
        ),
        ("nvjet_tst", "raw\ttab\x07 and\nline nvjet_tst"),
        ("nvjet_tst", "C:\\Users\\me\\nvjet_tst"),
        ('"displayTimeUnit"', '"home": "D:\\new\\u", "displayTimeUnit"'),
    ],
    ids=["infinities", "control characters", "backslashes", "backslashes of the head"],
)
def test_faults_that_torch_makes_are_read(tmp_path, capsys, old, new):
    status, (row,) = rows(tmp_path, json.dumps(content()).replace(old, new).encode(), capsys)
    assert (status, row["flops"], row["kernel_busy_percent"]) == (0, 2 * 4096**3, pytest.approx(50))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text[:-100], "cut_in_the_middle"),
        (lambda text: text.replace('"ph"', '"ph', 9), "json_damaged_at"),
        (lambda text: text.replace('"ts": 1000000', '"ts": "soon"'), "events_without_times"),
        (lambda text: text.replace(', "dur": 500', ""), "events_without_end"),
        (lambda text: text.replace('"cat": "kernel"', '"cat": "npu_task"'), "unknown_kinds_alone"),
        (
            lambda text: text.replace('"cat": "kernel"', '"task type": "AI_CORE", "cat": ""'),
            "unknown_kinds_alone",
        ),
        (lambda text: "\ufeff".encode("utf-16").decode("latin1") + text, "is_utf16"),
        (lambda text: "\x80\x04" + text, "is_pickle"),
    ],
)
def test_each_damage_is_called_what_it_is(tmp_path, change, said):
    path = write(tmp_path / "t.json", change(json.dumps(content())).encode("latin1"))
    with pytest.raises(TraceError) as error:
        read_file(path)
    found = keys(error.value)
    assert said in found
    assert said == "cut_in_the_middle" or "cut_in_the_middle" not in found


@pytest.mark.parametrize(
    ("new", "kinds"),
    [('"cat": "npu_task"', "npu_task (2)"), ('"task type": "A", "cat": ""', "no category (2)")],
)
def test_kinds_that_are_not_read_are_named_and_counted(tmp_path, new, kinds):
    text = json.dumps(content()).replace('"cat": "kernel"', new)
    with pytest.raises(TraceError) as error:
        read_file(write(tmp_path / "t.json", text.encode()))
    assert error.value.why == Said("unknown_kinds_alone", {"kinds": kinds})


def test_unknown_kinds_beside_known_ones_are_noted(tmp_path, capsys):
    whole = content()
    whole["traceEvents"].append(event("npu_task", "k", 1_000_100, 9, stream=3))
    _, (row,) = rows(tmp_path, whole, capsys)
    assert row["notes"] == {"unknown_kinds": {"kinds": "npu_task (1)"}}


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize(
    "odd",
    [
        event("kernel", "k", 0, 0),
        event("kernel", "k", 0, 7),
        launched("k", 1_000_050, 0, 0, 99),
        launched("k", 1_000_050, 500_000, 3, 99),
        event("kernel", "k", 1_615_207_264_505_000, 5),
        event("gpu_memcpy", "Memcpy", 1_000_100, 4e12, 9),
        event("cpu_op", "aten::add", 2e15, 5),
    ],
)
def test_impossible_times_stretch_no_window(tmp_path, capsys, odd, marked):
    whole = content()
    kept = [one for one in whole["traceEvents"] if marked or one["cat"] != "user_annotation"]
    whole["traceEvents"] = kept + (odd if isinstance(odd, list) else [odd])
    _, (row,) = rows(tmp_path, whole, capsys)
    assert row["window_s"] == pytest.approx(2e-3 if marked else 1.5e-3)
    assert row["kernel_busy_percent"] == pytest.approx(50 if marked else 100 / 1.5)
    assert row["notes"] == {"impossible_times": {"count": 1}}


def test_most_kernels_without_a_time_leave_the_others(tmp_path, capsys):
    whole = content()
    whole["traceEvents"] += [
        one for number in range(9) for one in launched("k", 1_000_050, 0, 0, 90 + number)
    ]
    _, (row,) = rows(tmp_path, whole, capsys)
    assert (row["time_s"], row["flops"]) == (pytest.approx(1e-3), 2 * 4096**3)


def merged(name, apart_us=0, device=None):
    """Content of two ranks in one file; the second's matmul is an eighth of the first's, its clock
    `apart_us` later."""
    found = []
    for rank, size in ((0, 4096), (1, 2048)):
        for one in content()["traceEvents"]:
            args = dict(one.get("args", {}))
            if "Input Dims" in args:
                args["Input Dims"] = [[size, size]] * 2
            if one["cat"] == "kernel":
                args["device"] = rank if device is None else device
            pid = name(rank, one["cat"] == "kernel")
            found.append({**one, "args": args, "pid": pid, "ts": one["ts"] + rank * apart_us})
    return trace(*found)


NAMES = {
    "a prefix": lambda rank, of_device: f"[TP0{rank}] {rank if of_device else 4000 + rank}",
    "a prefix, alike": lambda rank, of_device: f"[TP0{rank}-EP0] {0 if of_device else 4000}",
    "the rank": lambda rank, _: rank,
    "a text of the rank": lambda rank, _: f"rank {rank}",
    "numbers alone": lambda rank, of_device: rank if of_device else 4000 + rank,
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("apart_us", "device"), [(0, None), (300, None), (130, 0)])
def test_ranks_merged_into_one_file_are_read_apart(tmp_path, capsys, name, apart_us, device):
    if name == "numbers alone" and device == 0:
        apart_us = 0
    _, found = rows(tmp_path, merged(NAMES[name], apart_us, device), capsys)
    assert [row["rank"] for row in found] == [0, 1]
    assert [row["flops"] for row in found] == [2 * 4096**3, 2 * 2048**3]
    assert [(row["steps"], row["time_s"]) for row in found] == [(2, pytest.approx(1e-3))] * 2
    assert {row["job_ranks"] for row in found} == {2}


def test_one_bad_file_costs_its_own_row_and_a_folder_s_copies_none(tmp_path, capsys):
    write(tmp_path / "a.json", json.dumps(content()).encode())
    write(tmp_path / "b.json", json.dumps({"traceEvents": [[]] * 3}).encode())
    write(tmp_path / "c.json", json.dumps(content()).encode())
    assert main(["trace", str(tmp_path), "--json"]) == 1
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["status"] for row in found] == ["ok", "unsupported", "ok"]
    assert numbers(found[1]["message"], "all_are_no_events") == {"odd": 3, "count": 3}
    assert "3" in found[1]["message_sentence"]
    for name in ("h.xplane.pb", "h.trace.json.gz", "perfetto_trace.json.gz", "other.trace.json.gz"):
        (tmp_path / "jax").mkdir(exist_ok=True)
        write(tmp_path / "jax" / name, b"x")
    seen = [path.name for path in files([str(tmp_path / "jax")])]
    assert seen == ["h.xplane.pb", "other.trace.json.gz"]


def test_a_database_s_views_are_not_computed_and_rocpd_is_named(tmp_path):
    endless = (
        "WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM n)"
        " SELECT start, start AS end FROM n"
    )
    for name, statement, said in (
        (
            "view.sqlite",
            f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {endless}",
            "foreign_database",
        ),
        (
            "x_results.db",
            "CREATE TABLE rocpd_kernel_dispatch_1 (id INTEGER)",
            "is_rocpd",
        ),
    ):
        with sqlite3.connect(tmp_path / name) as database:
            database.execute(statement)
        database.close()
        with pytest.raises(TraceError) as error:
            read_file(tmp_path / name)
        assert error.value.why == Said(said)
    assert [path.name for path in files([str(tmp_path)])] == ["view.sqlite", "x_results.db"]


def test_a_name_without_end_in_a_database_is_not_read(tmp_path):
    with sqlite3.connect(tmp_path / "x.sqlite") as database:
        database.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        database.execute("INSERT INTO StringIds VALUES (1, CAST(hex(zeroblob(20000000)) AS TEXT))")
        database.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL"
            " (start, end, deviceId, streamId, demangledName, shortName)"
        )
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 9, 0, 7, 1, 1)")
    database.close()
    with pytest.raises(TraceError) as refused:
        read_file(tmp_path / "x.sqlite")
    assert refused.value.why.key == "damaged_export"
    assert "too big" in refused.value.why.numbers["error"]
    assert "\n" not in str(refused.value)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


def harm(draw, value):
    """A copy in which one part, at any depth, is any other value."""
    if isinstance(value, dict) and value and draw(st.integers(0, 9)):
        key = draw(st.sampled_from(sorted(value)))
        return {**value, key: harm(draw, value[key])}
    if isinstance(value, list) and value and draw(st.integers(0, 9)):
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], harm(draw, value[place]), *value[place + 1 :]]
    return draw(ANY)


def look(tmp_path, text):
    path = write(tmp_path / "t.json", text)
    try:
        for one in read_file(path):
            one.row.model_dump_json().encode()
    except TraceError as error:
        assert error.why.key != "damaged_or_unknown"  # noqa: PT017 (it need not be refused)


FEW = settings(
    max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
MANY = settings(FEW, max_examples=2000)


@st.composite
def harmed(draw):
    whole = draw(st.sampled_from((content(), TRACE, merged(NAMES["a prefix"]))))
    for _ in range(draw(st.integers(1, 3))):
        whole = harm(draw, whole)
    return json.dumps(whole).encode()


@st.composite
def torn(draw):
    text = bytearray(json.dumps(content()).encode())
    for place, byte in draw(
        st.lists(st.tuples(st.integers(0, len(text) - 1), st.integers(0, 255)), max_size=4)
    ):
        text[place] = byte
    return bytes(text[: draw(st.integers(1, len(text)))])


@FEW
@given(harmed() | torn())
def test_any_harm_is_a_row_or_one_sentence(tmp_path, text):
    look(tmp_path, text)


@pytest.mark.slow
@MANY
@given(harmed() | torn())
def test_any_of_two_thousand_harms_is_a_row_or_one_sentence(tmp_path, text):
    look(tmp_path, text)


@pytest.mark.parametrize(
    "shape",
    [[[], 4096], [4096, []], [[2], 3], [[[4, []]], 1], [True, -1], [False, 4096]],
)
def test_sides_and_lists_in_one_shape_are_no_shape(tmp_path, shape):
    call = operator("aten::mm", 0, 5, [shape, [4096, 4096]], "c10::BFloat16")
    content = trace(steps((0, 1000)), call, launched("nvjet_tst_128x256_64x4", 1, 100, 500, 1))
    (found,) = read_file(write(tmp_path / "t.json", content))
    assert found.row.flops is None
    assert json.loads(found.row.reasons)["flops"]


def test_a_matmul_with_an_empty_side_has_no_ratio_of_tiles(tmp_path):
    call = operator("aten::mm", 0, 5, [[0, 4096], [4096, 4096]], "c10::BFloat16")
    content = trace(steps((0, 1000)), call, launched("nvjet_tst_128x256_64x4", 1, 100, 500, 1))
    (found,) = read_file(write(tmp_path / "t.json", content))
    assert found.row.status == "ok"
    assert found.row.executed_ratio is None
