"""Kernels of replayed graphs get the operators of their capture; the others are counted."""

import json
from pathlib import Path

import pytest
from support.trace_events import event, launched, operator, trace, write

from mfulab.measurements.read_trace.reader import read_file
from mfulab.tracing import graphs

FOLDER = Path(__file__).parents[3] / "shared/traces"
SHAPES = [[64, 32], [32, 16]]
GEMM, RELU = "sm90_xmma_gemm_bf16bf16_tilesize64x64x8", "relu"


def captured(*kernels, named=True):
    """Two graphs: a matmul and an element-wise operator each, whose launches executed nothing."""
    found = []
    for place, kernel in enumerate(kernels):
        begin = 100 * place
        name = "aten::mm" if kernel == GEMM else "aten::relu"
        held = {"kernel": kernel} if named else {}
        found.append(operator(name, begin, 50, SHAPES if kernel == GEMM else (), "c10::BFloat16"))
        found.append(
            event(
                "cuda_runtime", "cudaLaunchKernel", begin + 5, 1, 1, correlation=50 + place, **held
            )
        )
        if place % 2:
            found.append(
                event(
                    "cuda_runtime", "cudaStreamEndCapture", begin + 60, 1, 1, correlation=90 + place
                )
            )
    return trace(*found, launched("seed", 1000, 1001, 1, 99))


def replayed(*kernels):
    first, *rest = launched(kernels[0], 10, 20, 10, 7, "cudaGraphLaunch")
    later = [event("kernel", name, 30 + 10 * place, 10, 7, correlation=7, device=0, stream=7)
             for place, name in enumerate(kernels[1:])]  # fmt: skip
    return trace(first, rest, later)


@pytest.mark.parametrize("named", [True, False])
def test_each_replayed_kernel_gets_its_operator(tmp_path, named):
    write(tmp_path / "c.json", captured(GEMM, RELU, RELU, RELU, named=named))
    path = write(tmp_path / "r.json", replayed(GEMM, RELU))
    alone, (found,) = read_file(path)[0].row, read_file(path, capture=tmp_path / "c.json")
    assert (alone.flops, json.loads(alone.spent)["graph"]) == (None, 20_000)
    assert found.row.flops == 2 * 64 * 32 * 16
    spent = json.loads(found.row.spent)
    assert (spent["products"], spent["others"], spent["graph"]) == (10_000, 10_000, 0)
    assert sum(spent.values()) == 20_000
    seen = json.loads(found.row.notes)["graph_joined"]
    assert seen == {"matched": 2, "count": 2, "replays": 1, "file": "c.json"}
    assert found.analysis.others == {"aten::relu": 10_000}


def test_what_does_not_match_is_counted_and_stays_the_graph_s(tmp_path):
    write(tmp_path / "c.json", captured(GEMM, RELU))
    (found,) = read_file(
        write(tmp_path / "r.json", replayed(GEMM, "fused", RELU)), capture=tmp_path / "c.json"
    )
    assert json.loads(found.row.notes)["graph_joined"]["matched"] == 2
    assert json.loads(found.row.spent)["graph"] == 10_000
    unnamed = write(tmp_path / "u.json", captured(RELU, GEMM, named=False))
    (found,) = read_file(tmp_path / "r.json", capture=unnamed)
    assert json.loads(found.row.notes)["graph_joined"]["matched"] == 0, "numbers differ"
    (found,) = read_file(write(tmp_path / "s.json", replayed(GEMM, RELU)), capture=unnamed)
    assert json.loads(found.row.notes)["graph_joined"]["matched"] == 0, "a matmul meets none"


def test_a_capture_beside_the_replays_is_found(tmp_path):
    for capture, replay in (
        ("a_capture.json.gz", "a.json.gz"),
        ("b_capture.json", "b_execution.json"),
    ):
        (tmp_path / capture).touch()
        assert graphs.beside(tmp_path / replay) == tmp_path / capture
        assert graphs.beside(tmp_path / capture) is None


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no traces in {FOLDER}")
@pytest.mark.parametrize(
    ("name", "kernels", "eager", "in_graphs", "pairs"),
    [
        ("graph_launched_decode", 421, 37_064_540_160, 40_910_192_640, 55_086),
        ("graph_piecewise_execution", 361, 53_280_276_480, 10_473_009_315_840, 7_705_799),
    ],
)
def test_full_and_piecewise_graphs_of_a_real_server(name, kernels, eager, in_graphs, pairs):
    """Every kernel finds its operator. The FLOPs are the eager ones, those of the capture, and of
    attention in 24 layers with 64 heads of 64."""
    (found,) = read_file(FOLDER / f"{name}.json.gz")
    told = json.loads(found.row.notes)["graph_joined"]
    assert told["matched"] == told["count"] == kernels
    assert found.row.flops == eager + in_graphs + 24 * 4 * 64 * 64 * pairs
    assert not json.loads(found.row.spent).get("graph")
