"""Sentences about transfers: of one machine, at both ends of its sizes."""

import re

import pandas as pd

from mfulab.core.language import Texts
from mfulab.lab.report.figures import transfers

TEXT = Texts("en", "transfers")


def rows(machine: str, sizes: dict[int, float], copies: float | None = None) -> pd.DataFrame:
    """Products that take 1 s beside so many seconds for their memory."""
    lines = []
    for n, memory in sizes.items():
        line = {"machine": machine, "precision": "fp32", "n": float(n), "time_s": 1.0}
        line |= dict.fromkeys(("host_to_device_s", "device_to_host_s"), copies)
        lines.append(line | {"allocation_s": memory})
    return pd.DataFrame(lines).astype(
        {name: float for name in lines[0] if name not in ("machine", "precision")}
    )


def test_of_two_machines_one_is_told_of():
    """The smallest and the largest size are another machine's than the one with the most sizes."""
    few = rows("few", {64: 9.0, 8192: 3.0})
    most = rows("most", {128: 4.0, 256: 3.0, 512: 1.0})
    for both in (pd.concat([few, most]), pd.concat([most, few])):
        told = transfers.finding(both.reset_index(drop=True), TEXT)
        assert told.startswith("On most at 128³")
        assert re.findall(r"[\d.]+ %", told) == ["80 %", "20 %", "50 %"]


def test_a_gpu_is_told_of_before_a_cpu():
    cpu = rows("cpu", dict.fromkeys((64, 128, 256), 1.0))
    gpu = rows("gpu", {64: 1.0, 128: 1.0}, copies=1.0)
    assert transfers.finding(pd.concat([cpu, gpu], ignore_index=True), TEXT).startswith(
        "On gpu at 64³"
    )


def test_the_parts_of_the_whole_are_named_with_copies_only_where_there_are_some():
    for copies, key in ((None, "without_copies"), (1.0, "with_copies")):
        whole = TEXT(key)
        assert whole in transfers.finding(rows("here", {64: 1.0, 128: 1.0}, copies), TEXT)
    with_copies = transfers.finding(rows("here", {64: 2.0}, copies=1.0), TEXT)
    assert re.findall(r"[\d.]+ %", with_copies) == ["40 %", "20 %"]


def test_sizes_are_compared_in_one_precision():
    """A bf16 matmul is the fastest of its size, and stands beside no fp32 one."""
    products = [
        ("numpy", "fp32", 64, 2.0),
        ("numpy", "fp32", 128, 3.0),
        ("torch", "bf16", 128, 1.0),
    ]
    here = {"hardware": "cpu", "recorded": False}
    common = here | {"status": "ok", "family": "CPU", "batch": 1}
    common |= {"allocation_s": 1.0, "host_to_device_s": None}
    lines = []
    for kernel, precision, n, time in products:
        line = {"kernel": kernel, "precision": precision, "size": str(n), "time_s": time}
        lines.append(common | line | dict.fromkeys("mnk", float(n)))
    environment = pd.DataFrame([here | {"device_name": "CPU", "device": "cpu"}])
    chosen = transfers.rows({"matmul": pd.DataFrame(lines), "environment": environment})
    found = list(zip(chosen["n"], chosen["precision"], chosen["time_s"], strict=True))
    assert found == [(64.0, "fp32", 2.0), (128.0, "fp32", 3.0)]
