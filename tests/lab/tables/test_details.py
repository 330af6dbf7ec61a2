"""Shares of a run's operators, which are of the whole traced pass."""

import json
from pathlib import Path

import pytest

from mfulab.core.files import write_csv
from mfulab.lab.tables import details

MS = 10**6  # ns
# A pass of 10 ms: 5 ms multiply, 1 ms is in other operators, 4 ms are in none.
SPENT = {"products": 5 * MS, "others": 1 * MS, "idle": 4 * MS}
OPERATORS = {"aten::addmm": 3.0, "aten::mkldnn_convolution": 2.0, "aten::relu": 1.0}


def line(name: str, host_ms: float, device_ms: float = 0.0) -> dict[str, str]:
    return {
        "operator": name,
        "self_cpu_time_s": str(host_ms / 1e3),
        "self_device_time_s": str(device_ms / 1e3),
    }


def shares(found: list[dict[str, str]]) -> dict[str, float]:
    return {each["operator"]: float(each["share_percent"]) for each in found}


def test_operators_are_shares_of_the_pass_not_of_their_sum():
    lines = [line(name, ms) for name, ms in OPERATORS.items()]
    found, outside = details.longest(lines, SPENT)
    expected = {"aten::addmm": 30, "aten::mkldnn_convolution": 20, "aten::relu": 10}
    assert shares(found) == pytest.approx(expected)
    assert outside == pytest.approx({"idle": 40})


def test_operators_that_are_not_shown_are_not_between_operators():
    lines = [line(f"aten::{place}", 0.5) for place in range(details.OPERATORS + 4)]
    found, outside = details.longest(lines, {"others": 8 * MS, "idle": 2 * MS})
    assert len(found) == details.OPERATORS
    assert outside == pytest.approx({"idle": 20})
    assert sum(shares(found).values()) == pytest.approx(5 * details.OPERATORS)


def test_ranges_are_no_operators_their_own_time_is_between_operators():
    ranges = ["Optimizer.step#Adam.step", "autograd::engine::evaluate_function: MulBackward0"]
    lines = [line(name, 1.5) for name in ranges] + [line("aten::mm", 5), line("aten::add", 1)]
    found, outside = details.longest(lines, SPENT)
    assert shares(found) == pytest.approx({"aten::mm": 50, "aten::add": 10})
    assert outside == pytest.approx({"idle": 40})


def test_a_pass_with_no_time_in_operators_places_none():
    found, outside = details.longest([line("aten::mm", 1)], {"idle": MS})
    assert (found[0]["share_percent"], outside) == ("", {})


def test_without_the_pass_s_length_no_share_is_told():
    found, outside = details.longest([line("aten::mm", 3)], {})
    assert (found[0]["time_s"], found[0]["share_percent"]) == ("0.003", "")
    assert outside == {}


def test_operators_that_overlap_share_the_time_in_operators():
    lines = [line("aten::mm", 15), line("aten::add", 5)]
    found, outside = details.longest(lines, SPENT)
    assert shares(found) == pytest.approx({"aten::mm": 45, "aten::add": 15})
    assert outside == pytest.approx({"idle": 40})


def test_on_a_device_neither_launches_nor_kernels_are_operators():
    lines = [
        line("aten::mm", 1, device_ms=6),
        line("aten::add", 1, device_ms=1),
        line("cudaLaunchKernel", 50),
        line("sm90_gemm", 0, device_ms=6),
    ]
    found, outside = details.longest(lines, {"products": 6 * MS, "others": MS, "idle": 3 * MS})
    assert shares(found) == pytest.approx({"aten::mm": 60, "aten::add": 10})
    assert outside == pytest.approx({"idle": 30})


def test_a_graph_s_kernels_are_in_no_operator():
    spent = {"products": 2 * MS, "graph": 7 * MS, "idle": MS}
    found, outside = details.longest([line("aten::mm", 1, device_ms=2)], spent)
    assert shares(found) == pytest.approx({"aten::mm": 20})
    assert outside == pytest.approx({"graph": 70, "idle": 10})


@pytest.mark.parametrize("cell", ["", "[1]", "{", '{"idle": -1}', '{"idle": "long"}'])
def test_a_faulty_row_leaves_operators_without_shares(tmp_path: Path, cell: str):
    folder = laid_out(tmp_path, cell)
    described = details.describe(folder, [])
    assert [each["share_percent"] for each in described["operators"]] == ["", "", ""]
    assert "outside_operators" not in described


def test_a_run_s_row_tells_the_length_of_its_traced_pass(tmp_path: Path):
    described = details.describe(laid_out(tmp_path, json.dumps(SPENT)), [])
    assert sum(shares(described["operators"]).values()) == pytest.approx(60)
    assert described["outside_operators"] == pytest.approx({"idle": 40})


def laid_out(root: Path, spent: str) -> Path:
    """A run's folder in `root`, with its operators and a row."""
    folder = root / "hardware/profile_step/run"
    folder.mkdir(parents=True)
    lines = [line(name, ms) for name, ms in OPERATORS.items()]
    write_csv(folder / "operators.csv", lines, list(lines[0]))
    write_csv(folder / "row.csv", [{"spent": spent}], ["spent"])
    return folder
