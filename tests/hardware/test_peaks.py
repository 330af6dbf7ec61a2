"""Peaks from device properties against the datasheets, and what unknown devices get."""

import pytest

from mfulab.hardware.cpu import Cpu
from mfulab.hardware.cpu_peaks import cpu_peak
from mfulab.hardware.gpu import GpuProperties
from mfulab.hardware.peaks import UNITS, gpu_peak, memory_peak_gb_s, table

H100 = GpuProperties("NVIDIA H100 80GB HBM3", "9.0", 132, 1980, 2619, 5120)


def properties(sheet: dict[str, str]) -> GpuProperties:
    return GpuProperties(
        sheet["names"].split("|")[0],
        sheet["compute_capability"],
        int(sheet["sms"]),
        float(sheet["boost_mhz"]),
        geforce="GeForce" in sheet["names"],
    )


def printed(sheet: dict[str, str], precision: str) -> float | None:
    if precision == "fp64" and sheet["fp64_tensor_tflops"]:
        return float(sheet["fp64_tensor_tflops"])
    figure = sheet["int8_tops" if precision == "int8" else f"{precision}_tflops"]
    return float(figure) if figure else None


@pytest.mark.parametrize("sheet", table("datasheets.csv"), ids=lambda sheet: sheet["gpu"])
@pytest.mark.parametrize("precision", UNITS)
def test_computed_peak_is_the_datasheets(sheet, precision):
    peak = gpu_peak(properties(sheet), precision)
    if printed(sheet, precision) is None:
        assert peak.spec is None
        assert precision in peak.reason
    else:
        # Datasheets round to two or three digits, those of the L40S and B200 most.
        assert peak.spec == pytest.approx(printed(sheet, precision), rel=0.026)
        assert peak.datasheet == printed(sheet, precision)


def test_the_factors_of_an_h100():
    bf16 = gpu_peak(H100, "bf16")
    assert bf16.spec == pytest.approx(132 * 2048 * 2 * 1830e6 / 1e12)
    assert bf16.max_clock == pytest.approx(132 * 2048 * 2 * 1980e6 / 1e12)
    assert gpu_peak(H100, "fp32").spec == pytest.approx(132 * 128 * 2 * 1980e6 / 1e12), "fp32 is not TF32"
    assert memory_peak_gb_s(H100) == pytest.approx(3352, rel=1e-3)


def test_names_match_exactly():
    l40s = GpuProperties("NVIDIA L40S", "8.9", 142, 2520)
    assert gpu_peak(l40s, "bf16").datasheet == 362, "not the L4's 121"
    assert gpu_peak(GpuProperties("NVIDIA L40S-48Q", "8.9", 142, 2520), "bf16").datasheet is None


def test_geforce_accumulates_at_half_rate():
    workstation = GpuProperties("NVIDIA RTX 6000 Ada Generation", "8.9", 128, 2520)
    geforce = GpuProperties("NVIDIA GeForce RTX 4090", "8.9", 128, 2520, geforce=True)
    assert gpu_peak(workstation, "fp16").spec == pytest.approx(2 * gpu_peak(geforce, "fp16").spec)


def test_an_unknown_device_has_no_peak_but_a_way_to_give_one():
    unknown = GpuProperties("NVIDIA R300", "12.7", 200, 3000)
    peak = gpu_peak(unknown, "bf16")
    assert peak.spec is None
    assert "device.peak_tflop_s.bf16=…" in peak.reason
    assert gpu_peak(unknown, "bf16", {"bf16": 4000.0}).spec == 4000


def test_a_known_architecture_without_a_datasheet_says_which_clock_it_took():
    peak = gpu_peak(GpuProperties("NVIDIA H20", "9.0", 78, 1980), "bf16")
    assert peak.spec == pytest.approx(78 * 2048 * 2 * 1980e6 / 1e12)
    assert peak.datasheet is None
    assert "no datasheet" in peak.source


def test_a_slice_of_a_gpu_has_its_own_peak_and_no_datasheet():
    peak = gpu_peak(GpuProperties("NVIDIA H100 80GB HBM3", "9.0", 16, 1980), "bf16")
    assert peak.spec == pytest.approx(16 * 2048 * 2 * 1830e6 / 1e12)
    assert peak.datasheet is None


def test_a_memory_clock_that_is_not_told_gives_no_bandwidth():
    assert memory_peak_gb_s(GpuProperties("x", "9.0", 132, 1980)) is None


def processor(vendor="AuthenticAMD", family=25, model=17, flags="avx2 avx512f avx512_bf16", clock=2600.0) -> Cpu:
    return Cpu("a CPU", vendor, family, model, frozenset(flags.split()), clock, "test", 32 << 20, True)


@pytest.mark.parametrize(
    ("cpu", "precision", "flops_per_clock"),
    [
        (processor(), "fp32", 2 * 8 * 2),
        (processor(), "fp64", 2 * 4 * 2),
        (processor(), "bf16", 2 * 16 * 2),
        (processor("GenuineIntel", 6, 143, "avx512f amx_bf16"), "fp32", 2 * 16 * 2),
        (processor("GenuineIntel", 6, 143, "avx512f amx_bf16"), "bf16", 512 * 2),
        (processor("GenuineIntel", 6, 143, "avx512f avx512_fp16"), "fp16", 2 * 32 * 2),
        (processor("GenuineIntel", 6, 106, "avx512f avx512_vnni"), "int8", 2 * 64 * 2),
    ],
)
def test_cpu_peak(cpu, precision, flops_per_clock):
    assert cpu_peak(cpu, 4, precision).spec == pytest.approx(4 * 2600e6 * flops_per_clock / 1e12)


@pytest.mark.parametrize(
    ("cpu", "precision", "reason"),
    [
        (processor(), "fp16", "far slower than fp32"),
        (processor(flags="avx2"), "bf16", "slower than fp32"),
        (processor(), "tf32", "GPU format"),
        (processor(vendor="Unheard"), "fp32", "device.peak_tflop_s.fp32=…"),
        (processor(clock=None), "fp32", "clock of a CPU is not told"),
    ],
)
def test_cpu_without_a_peak(cpu, precision, reason):
    peak = cpu_peak(cpu, 4, precision)
    assert peak.spec is None
    assert reason in peak.reason
