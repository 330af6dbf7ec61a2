"""Ceilings on this CPU, in miniature, and what cannot be measured."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from support.said import refused

from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import PrecisionConfig
from mfulab.core.language import verdicts
from mfulab.measurements.ceilings import CeilingsConfig
from mfulab.measurements.ceilings import measure as ceilings
from mfulab.timing import best_matmul

CPU = torch.device("cpu")


@pytest.fixture
def quick(monkeypatch):
    shapes = [(64, 64, 128), (128, 64, 256)]  # attention takes such; a busy machine leaves none out
    monkeypatch.setitem(best_matmul.CAREFUL, "cpu", best_matmul.Search(shapes, math.inf, 0.01))
    monkeypatch.setattr(best_matmul, "MIDDLE", {"cpu": (128, 128, 128)})
    monkeypatch.setattr(best_matmul, "triad_length", lambda device: 1 << 16)


def test_best_product(quick, tmp_path):
    config = CeilingsConfig(ceiling="fp32", precision=PrecisionConfig(name="fp32", dtype="float32"))
    measured = ceilings.measure(config, tmp_path)
    products_timed = {(sample["library"], sample["shape"]) for sample in measured.samples}
    fastest = {way for way, _ in products_timed}
    assert len(fastest) == best_matmul.CAREFUL["cpu"].ways
    assert products_timed == set(itertools.product(fastest, ["64x64x128", "128x64x256"]))
    rates = {timed: [] for timed in products_timed}
    for sample in measured.samples:
        m, n, k = map(int, str(sample["shape"]).split("x"))
        assert sample["tflop_s"] == pytest.approx(2 * m * n * k / sample["time_s"] / 1e12)
        rates[sample["library"], sample["shape"]].append(sample["tflop_s"])
    found = measured.row.measured_tflop_s
    assert found == max(rates[measured.row.measured_with, measured.row.measured_shape])
    assert measured.row.measured_tflop_s == max(itertools.chain(*rates.values()))
    assert measured.row.measured_gb_s is None


def test_triad(quick, tmp_path):
    measured = ceilings.measure(CeilingsConfig(ceiling="memory"), tmp_path)
    assert measured.row.measured_gb_s > 0
    found = measured.samples[0]["gb_s"]
    assert found == pytest.approx(3 * 4 * (1 << 16) / measured.samples[0]["time_s"] / 1e9)
    assert measured.row.measured_tflop_s is None


def test_triad_is_larger_than_the_cache():
    assert best_matmul.triad_length(CPU) * 4 >= 64 << 20


def test_tf32_is_no_cpu_format(tmp_path):
    config = CeilingsConfig(
        ceiling="tf32", precision=PrecisionConfig(name="tf32", dtype="float32", tf32=True)
    )
    with pytest.raises(UnsupportedError, match=r"compute capability 8\.0"):
        ceilings.measure(config, tmp_path)


def test_a_format_without_products_is_unsupported(monkeypatch):
    def refuse(*arguments, **keywords):
        raise RuntimeError("_scaled_mm is not for this device\nmore")

    monkeypatch.setattr(torch, "_scaled_mm", refuse)
    with refused(
        UnsupportedError,
        "matmuls_refused",
        precision="fp8",
        error="_scaled_mm is not for this device",
    ):
        best_matmul.matmul_of("fp8", 16, 16, 16, CPU)


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
def test_numpy_multiplies_in_the_format_asked_for(precision):
    result = best_matmul.numpy_matmul(precision, 32, 16, 64, CPU)()
    assert result.shape == (32, 16)
    assert result.dtype == {"fp64": "float64", "fp32": "float32"}[precision]


def test_onednn_multiplies_the_same_shapes(monkeypatch):
    drawn = []
    monkeypatch.setattr(
        torch, "randn", lambda *sides, device: drawn.append(torch.rand(*sides)) or drawn[-1]
    )
    result = best_matmul.onednn_matmul("fp32", 32, 16, 64, CPU)()
    left, right = drawn
    torch.testing.assert_close(result.to_dense(), left @ right.T)
    assert result.shape == (32, 16)


@pytest.mark.parametrize(
    "way", ["torch", "torch_nt", "torch_tn", "cast", "convolution", "attention", "numpy", "onednn"]
)
def test_every_way_computes_as_many_flops(way):
    """FLOPs by torch's own counter, of those that it sees: 2·m·n·k, attention 4·heads·m·n·64."""
    from torch.utils.flop_counter import FlopCounterMode

    m, n, k = 256, 128, 384
    action = best_matmul.WAYS[way]("bf16" if way == "cast" else "fp32", m, n, k, CPU)
    with FlopCounterMode(display=False) as counter:
        action()
    counted = counter.get_total_flops()
    assert (
        counted == 2 * m * n * k
        if way not in ("numpy", "onednn", "attention")
        else counted in (0, 2 * m * n * k)
    )


def test_only_the_fastest_ways_are_swept(monkeypatch):
    asked = []

    def way(name, seconds):
        def make(precision, m, n, k, device):
            if seconds is None:
                raise UnsupportedError(name)
            return lambda: asked.append(name)

        return make

    monkeypatch.setattr(best_matmul, "WAYS", {name: way(name, s) for name, s in TIMES.items()})
    monkeypatch.setattr(best_matmul, "MIDDLE", {"cpu": (8, 8, 8)})
    monkeypatch.setattr(
        best_matmul,
        "_repeat",
        lambda action, *_: action() or [best_matmul.Sample(TIMES[asked[-1]], None)] * 2,
    )
    assert best_matmul._fastest_ways("fp32", CPU)[:2] == ["numpy", "torch_nt"]
    monkeypatch.setattr(best_matmul, "WAYS", {"torch": way("torch", None)})
    with pytest.raises(UnsupportedError, match="torch"):
        best_matmul._fastest_ways("fp8", CPU)


TIMES = {"torch": 3.0, "torch_nt": 2.0, "cast": None, "numpy": 1.0}


class FallingClock:
    """A GPU of 1,000 MFLOP a second and MHz, whose clock falls from 2,000 to 1,500 MHz after 0.3 s
    of work."""

    def __init__(self):
        self.now, self.marks = 0.0, []

    def mhz(self):
        return 2000.0 if self.now < 0.3 else 1500.0

    def work(self):
        self.now += 1e-3 * 2000 / self.mhz()

    def synchronise(self):
        pass

    def mark(self):
        self.marks.append(self.now)

    def intervals(self):
        (began, ended), self.marks = self.marks, []
        return [ended - began]


def test_a_gpu_s_ceiling_is_what_it_holds_and_its_burst_is_told_apart(monkeypatch):
    clock, gpu = FallingClock(), SimpleNamespace(type="cuda")
    monkeypatch.setattr(best_matmul, "clock_for", lambda device: clock)
    monkeypatch.setattr(best_matmul, "clock_reader", lambda device: clock.mhz)
    monkeypatch.setattr(best_matmul.time, "perf_counter", lambda: clock.now)
    monkeypatch.setitem(best_matmul.WAYS, "torch", lambda *_: clock.work)
    search = best_matmul.Search([(1024, 1024, 1024)], 15, 0.2, settle_s=0.5)
    samples = best_matmul._sweep("torch", "bf16", gpu, search)
    flops = 2 * 1024**3
    found = [(one["burst"], one["clock_mhz"]) for one in samples]
    assert found == [(True, 2000), *[(False, 1500)] * 4]
    best = best_matmul.fastest_matmul(samples, gpu)
    assert best.tflop_s == pytest.approx(flops / (1e-3 * 2000 / 1500) / 1e12)
    assert best.burst_tflop_s == pytest.approx(flops / 1e-3 / 1e12)
    on_cpu = [{"library": "torch", "shape": "1x1x1", "tflop_s": 1.0}]
    assert best_matmul.fastest_matmul(on_cpu, CPU).burst_tflop_s is None


def test_an_emulated_format_is_not_swept(monkeypatch, tmp_path):
    monkeypatch.setattr(ceilings, "emulated", lambda name, device: f"this CPU has no {name} units")
    monkeypatch.setattr(ceilings, "sweep_matmuls", None)
    config = CeilingsConfig(
        ceiling="amp_bf16", precision=PrecisionConfig(name="amp_bf16", dtype="bfloat16")
    )
    measured = ceilings.measure(config, tmp_path)
    assert measured.row.emulated
    assert measured.row.measured_tflop_s is measured.row.computed_tflop_s is None
    assert verdicts.message(measured.row.message).startswith("this CPU has no bf16 units")
    assert list(measured.samples) == []


@pytest.mark.parametrize("precision", ["fp64", "fp32", "fp16", "bf16", "int8"])
def test_products_use_the_format_asked_for(precision):
    result = best_matmul.matmul_of(precision, 32, 16, 64, CPU)()
    assert result.shape == (32, 16)
    assert result.dtype == {
        "fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.int32
    }[precision]  # fmt: skip


def test_shapes_that_do_not_fit_the_time_are_left_out(monkeypatch):
    monkeypatch.setattr(best_matmul, "MIDDLE", {"cpu": (64, 64, 64)})
    search = best_matmul.Search([(64, 64, 64), (65536, 65536, 65536)], 0.1, 0.001)
    found = {sample["shape"] for sample in best_matmul.sweep_matmuls("fp32", CPU, search)}
    assert found == {"64x64x64"}
