"""Time and FLOPs by module: by hand, of a real backward pass, and of public traces."""

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.trace_events import event, launched, operator, steps, trace, write

from mfulab.cli.main import main
from mfulab.device.samplers.reading import Reading
from mfulab.measurements.profile_step import passes
from mfulab.measurements.read_trace.reader import read_file
from mfulab.mfu.job import link_use
from mfulab.mfu.traced import trace_columns
from mfulab.tracing import events
from mfulab.tracing.analysis import analyse
from mfulab.tracing.operators import modules_of, trace_modules
from mfulab.tracing.window import windows

SHARED = Path(__file__).parents[3] / "shared/traces"
needs_traces = pytest.mark.skipif(not SHARED.is_dir(), reason=f"no traces in {SHARED}")


def modules(path):
    """Of each path of names: calls, µs in kernels, and FLOPs of a window."""
    (read,) = read_file(path)
    found = json.loads(read.row.modules or "[]")
    return {
        "/".join(one["path"]): (one["calls"], one["time_ns"] / 1e3, one["flops"]) for one in found
    }


def module(name, begin, duration):
    return event("python_function", f"nn.Module: {name}", begin, duration, 1)


def test_kernels_belong_to_the_innermost_module_around_their_launch(tmp_path):
    """Two alike layers are one; the kernel launched after them belongs to the model alone, a later
    one to none."""
    shapes = [[4, 8], [8, 16]]
    found = modules(
        write(
            tmp_path / "a.json",
            trace(
                steps((0, 100)),
                module("Net_0", 0, 60), module("Linear_0", 5, 15), module("Linear_1", 25, 15),
                operator("aten::mm", 6, 5, shapes), launched("gemm", 7, 20, 10, 1),
                operator("aten::mm", 26, 5, shapes), launched("gemm", 27, 40, 10, 2),
                launched("relu", 50, 55, 4, 3),
                launched("adam", 70, 75, 6, 4),
            ),
        )
    )  # fmt: skip
    assert found == {"": (0, 30, 2048), "Net": (1, 24, 2048), "Net/Linear": (2, 20, 2048)}


def test_the_backward_pass_belongs_to_the_modules_of_its_forward_operators(tmp_path):
    """It runs on another thread, in calls with the sequence numbers of what they differentiate."""
    forward = {"Sequence number": 7, "Fwd thread id": 0}
    backward = {"Sequence number": 7, "Fwd thread id": 1}
    function = event(
        "cpu_op", "autograd::engine::evaluate_function: MmBackward0", 60, 20, 2, **backward
    )
    product = {**operator("aten::mm", 62, 5, [[4, 16], [16, 8]]), "tid": 2}
    launch, kernel = launched("gemm", 63, 70, 20, 2)
    found = modules(
        write(
            tmp_path / "a.json",
            trace(
                steps((0, 100)), module("Net_0", 0, 40), module("Linear_0", 5, 15),
                operator("aten::mm", 6, 5, [[4, 8], [8, 16]], **forward), launched("gemm", 7, 20, 10, 1),
                function, product, {**launch, "tid": 2}, kernel,
            ),
        )
    )  # fmt: skip
    assert found["Net/Linear"] == (1, 30, 2048)


def test_a_real_training_step_has_three_times_the_forward_flops(tmp_path):
    """Of the first layer, whose input needs no gradient, twice."""
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Bilinear(128, 128, 2), torch.nn.ReLU()
    )
    model = torch.nn.Sequential(model[0], model[1], torch.nn.Conv1d(128, 32, 1))
    x = torch.randn(16, 64)
    with torch.profiler.profile(record_shapes=True, with_stack=True) as profiler:
        hidden = model[1](model[0](x))
        with torch.profiler.record_function("head"):
            model[2](hidden[..., None]).sum().backward()
    profiler.export_chrome_trace(str(tmp_path / "a.json"))
    found = modules(tmp_path / "a.json")
    assert found["Linear"][2] == 2 * 2 * 16 * 64 * 128
    assert found["head/Conv1d"][2] == 3 * 2 * 16 * 128 * 32
    assert {found[name][0] for name in ("Linear", "ReLU", "head/Conv1d")} == {1}
    whole = found[""][1]
    tops = sum(time for name, (_, time, _) in found.items() if name and "/" not in name)
    assert 0 < tops <= whole * (1 + 1e-9)


class Net(torch.nn.Module):
    """Two alike blocks and a head."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU()) for _ in range(2)
        )
        self.head = torch.nn.Linear(32, 8)

    def forward(self, inputs):
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(inputs)


def test_a_step_of_one_s_own_is_told_by_its_classes_and_leaves_no_hook():
    model, inputs = Net(), torch.randn(16, 32)

    def step():
        model(inputs).sum().backward()

    found = {
        "/".join(one.path): one for one in modules_of(trace_modules(step, torch.device("cpu"), 2))
    }
    one = 2 * 16 * 32
    assert {name: (found[name].calls, found[name].flops) for name in found if name} == {
        "Net": (1, 3 * one * 32 + 2 * one * 32 + 3 * one * 8),
        "Net/Sequential": (2, 3 * one * 32 + 2 * one * 32),
        # the first has no gradient of its input
        "Net/Sequential/Linear": (2, 3 * one * 32 + 2 * one * 32),
        "Net/Sequential/ReLU": (2, 0),
        "Net/Linear": (1, 3 * one * 8),
    }
    assert found[""].time_ns >= found["Net"].time_ns > 0
    hooks = torch.nn.modules.module
    assert not hooks._global_forward_pre_hooks
    assert not hooks._global_forward_hooks


def test_a_module_that_raises_ends_its_range(tmp_path):
    def step():
        with contextlib.suppress(RuntimeError):
            torch.nn.Linear(3, 4)(torch.ones(2, 5))
        torch.nn.ReLU()(torch.ones(2))

    found = {one.path for one in modules_of(trace_modules(step, torch.device("cpu"), 1))}
    assert found >= {("Linear",), ("ReLU",)}


@needs_traces
def test_layers_of_a_public_trace_have_the_flops_of_their_weights():
    """Qwen1.5-0.5B on an H100, 16 × 559 tokens: 24 layers of width 1024, MLP of 2816."""
    found = modules(SHARED / "h100_qwen1_5_0_5b_inference.json.gz")
    layer = "Qwen2Model/Qwen2DecoderLayer"
    assert found[f"{layer}/Qwen2Attention/Linear"][::2] == (96, 96 * 2 * 8944 * 1024 * 1024)
    assert found[f"{layer}/Qwen2MLP/Linear"][::2] == (72, 72 * 2 * 8944 * 1024 * 2816)
    (read,) = read_file(SHARED / "h100_qwen1_5_0_5b_inference.json.gz")
    assert found[""][1] == pytest.approx(
        sum(time for kind, time in read.analysis.spent.items() if kind != "idle") / 1e3
    )
    joined = json.loads(trace_columns(read.row.model_dump())["module_times"])
    seen = joined[0]["mfu_percent"]
    assert seen == pytest.approx(100 * read.row.flops / (joined[0]["ms"] * 1e9) / 989.4, rel=1e-3)


@needs_traces
def test_ranges_that_a_user_marked_serve_where_no_module_was_recorded():
    found = modules(SHARED / "v100_nccl_training.json.gz")
    assert found["## forward ##"][0] == 6
    assert found["## forward ##/## forward:bottom_mlp ##"][2] == found["## forward ##"][2] > 0


@given(
    calls=st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 30), st.integers(0, 40)), min_size=1, max_size=8
    ),
    depth=st.integers(1, 5),
)
def test_times_of_parts_sum_to_the_busy_time_within_what_holds_them(tmp_path_factory, calls, depth):
    nested = [module(f"L{level}_0", level, 200 - 2 * level) for level in range(depth)]
    kernels = [
        one
        for n, (at, took, gap) in enumerate(calls, 1)
        for one in launched("k", 2 * at, 20 + gap, took, n)
    ]
    path = write(
        tmp_path_factory.mktemp("trace") / "a.json", trace(steps((0, 300)), nested, kernels)
    )
    (read,) = read_file(path)
    found = json.loads(read.row.modules)
    times = {tuple(one["path"]): one["time_ns"] for one in found}
    assert times[()] == sum(
        time for kind, time in read.analysis.spent.items() if kind not in ("idle", "input_wait")
    )
    for path in times:
        parts = sum(time for other, time in times.items() if other[:-1] == path and other)
        assert parts <= times[path]


def collective(name, begin, duration, number, dtype="Float", elements=1_000_000, processes=4):
    sizes = {
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "Group size": processes,
        "dtype": dtype,
    }
    launch, kernel = launched("ncclDevKernel", begin - 5, begin, duration, number)
    return [launch, {**kernel, "args": kernel["args"] | sizes | {"Collective name": name}}]


def job(folder, rank, *lengths):
    sent = [collective("allreduce", 100 * n, length, n) for n, length in enumerate(lengths, 1)]
    info = {"distributedInfo": {"rank": rank, "world_size": 2}}
    return write(folder / f"rank{rank}.json", trace(steps((0, 1000)), *sent, **info))


def test_bandwidths_of_collectives_are_those_that_nccl_tests_define(tmp_path, capsys):
    """4 MB among four in 40 µs: 100 GB/s; all-reduce sends 1.5 times as much over a link,
    all-gather three quarters."""
    sent = [
        collective(name, 100 * n, 40, n)
        for n, name in enumerate(("allreduce", "_allgather_base", "broadcast"), 1)
    ]
    unknown = collective("allreduce", 600, 40, 9, dtype="ComplexHalf")
    path = write(tmp_path / "a.json", trace(steps((0, 1000)), *sent, unknown))
    assert main(["trace", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["collective_bandwidth"]
    speeds = {
        one["kind"]: (one["bytes"], one["algorithm_gb_s"], one["bus_gb_s"], one["wait_ms"])
        for one in found
    }
    assert speeds == {
        "allreduce": (4_000_000, 100, 150, None),
        "allgatherbase": (4_000_000, 100, 75, None),
        "broadcast": (4_000_000, 100, 100, None),
    }


@pytest.mark.parametrize(
    ("kind", "processes", "factor"),
    [
        ("allreduce", 4, 1.5),
        ("allreduce_coalesced", 8, 1.75),
        ("_allgather_base", 4, 0.75),
        ("reduce_scatter_tensor_coalesced", 2, 0.5),
        ("all_to_allv", 4, 0.75),
        ("broadcast", 4, 1),
        ("send", 2, 1),
        ("allreduce", 1, 0),
    ],
)
def test_bytes_over_a_link_are_nccl_tests_ones_a_step(tmp_path, capsys, kind, processes, factor):
    """Three calls of 2 MB in two steps."""
    sent = [
        collective(kind, begin, 40, number, "BFloat16", processes=processes)
        for number, begin in enumerate((100, 300, 1100), 1)
    ]
    path = write(tmp_path / "a.json", trace(steps((0, 1000), (1000, 2000)), *sent))
    assert main(["trace", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["link_bytes"] == 1.5 * 2_000_000 * factor
    assert main(["trace", str(path)]) == 0
    assert "nccl-tests" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("counted", "expected"), [(None, 1.5 * 2_000_000 * 1.5), (7.0, 7.0)], ids=["NCCL", "gloo"]
)
def test_a_rank_s_bytes_are_those_of_its_traced_collectives_where_no_interface_counts_them(
    tmp_path, counted, expected
):
    """Three calls of 2 MB in two steps; a fourth begins after them."""
    sent = [
        collective("allreduce", begin, 40, number, "BFloat16")
        for number, begin in enumerate((100, 300, 1100, 2100), 1)
    ]
    path = write(tmp_path / "a.json", trace(steps((0, 1000), (1000, 2000)), *sent))
    [read] = events.read(path)
    analysis = analyse(read, windows(read)[0])
    run = SimpleNamespace(
        readings={"sent_bytes": Reading(counted, "B", "loopback")}, traced_steps=2
    )
    passes._fill_bytes_of_collectives(run, analysis)
    assert run.readings["sent_bytes"].value == expected


def test_a_link_s_use_is_that_of_every_size_not_of_the_longest_alone():
    sizes = [["broadcast", size, 4, [1_000_000]] for size in range(1, 31)]
    use = link_use({"collective_sizes": json.dumps(sizes), "steps": 2})
    assert (use.bytes, use.calls, use.busy_s) == (sum(range(1, 31)) / 2, 15, pytest.approx(0.015))


def test_bytes_over_a_link_are_empty_where_sizes_are_not_told(tmp_path, capsys):
    path = write(tmp_path / "a.json", trace(steps((0, 1000)), collective("x", 100, 40, 1, "Odd")))
    assert main(["trace", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["link_bytes"] is None


def test_of_a_job_the_shortest_rank_tells_the_transfer_and_the_rest_is_waiting(tmp_path, capsys):
    paths = [job(tmp_path, 0, 40, 80), job(tmp_path, 1, 60, 40)]
    assert main(["trace", *map(str, paths), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    [one], [other] = (row["collective_bandwidth"] for row in rows)
    assert one == other
    assert (one["calls"], one["ms"], one["algorithm_gb_s"], one["wait_ms"]) == (2, 0.04, 100, 0.02)
    assert main(["trace", *map(str, paths)]) == 0
    assert capsys.readouterr().out.count("Collectives by kind and size") == 1
