"""Peaks: each datasheet against its formula, lookups by name and PCI id, unknown devices."""

import contextlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.said import keys

from mfulab.core.groups import DeviceConfig
from mfulab.core.said import as_told
from mfulab.device import local_peak
from mfulab.device.cpu import Cpu
from mfulab.device.datasheets import (
    UnknownDeviceError,
    datasheets,
    find,
    normalised,
    typed_names,
)
from mfulab.device.local_peak import cpu_peak
from mfulab.device.peaks import UNITS, gpu_peak, memory_peak_gb_s, peak
from mfulab.device.vendors import GpuProperties
from mfulab.peaks.facts import checked_by, table
from mfulab.peaks.rates import agrees, computed, printed

H100 = GpuProperties("NVIDIA H100 80GB HBM3", 132, 1980, 2619, 5120)
ALL = pytest.mark.parametrize("sheet", datasheets(), ids=lambda sheet: sheet.device)
KINDS = sorted({unit for units in UNITS.values() for unit in units})


@ALL
def test_the_formula_gives_the_printed_figures_or_the_row_says_why_not(sheet):
    assert sheet.source
    if all(computed(sheet, unit) is None for unit in KINDS) and sheet.figures:
        assert sheet.note or sheet.rate != "printed", (
            "figures that follow from no formula need a reason"
        )
    for unit in KINDS:
        if not agrees(sheet, unit):
            assert unit.removesuffix("_tensor") in sheet.note, (
                f"{unit}: printed {printed(sheet, unit)}, computed {computed(sheet, unit)}"
            )


def test_what_was_checked_is_said_and_counted():
    texts = table("checked_texts.csv")
    found = {key for sheet in datasheets() for key in sheet.checked}
    assert found == {text["key"] for text in texts}
    assert all(text["url"].startswith("http") and text["read"] and text["states"] for text in texts)
    assert {text["by"] for text in texts} == {"vendor", "third party"}
    first_hand = sum(checked_by(sheet) == "vendor" for sheet in datasheets())
    checked = sum(bool(sheet.checked) for sheet in datasheets())
    page = (Path(__file__).parents[2] / "docs/peaks.md").read_text(encoding="utf-8")
    assert f"{checked} of {len(datasheets())} products are checked" in page
    assert f"{first_hand} of them by a vendor's own text" in " ".join(page.split())
    assert f"other {len(datasheets()) - checked} say `unchecked`" in page
    assert peak("TPU v5p", "bf16").texts.endswith(
        "https://docs.cloud.google.com/tpu/docs/tpu7x (vendor, read 2026-11-21)"
    )
    assert peak("NVIDIA A10G", "bf16").texts == ""


@ALL
def test_every_row_has_a_peak_within_its_rounding_or_says_why_not(sheet):
    peaks = [peak(sheet.device, precision, sheet.units) for precision in UNITS]
    assert all(found.spec or sheet.device in str(found.reason) for found in peaks)
    assert any(found.spec for found in peaks) or sheet.note
    for found in peaks:
        if found.datasheet is not None:
            # Figures of one digit round by more than the formula is held to.
            assert found.spec == pytest.approx(found.datasheet, rel=0.026)


def test_every_rate_belongs_to_a_device_and_every_device_to_a_rate():
    rates = {(row["architecture"], row["rate"]) for row in table("fma_per_clock_per_unit.csv")}
    used = {(sheet.architecture, sheet.rate) for sheet in datasheets() if sheet.rate != "printed"}
    assert rates == used


@pytest.mark.parametrize(
    ("device", "precision", "tflop_s"),
    [
        ("NVIDIA H20", "bf16", 148),
        ("NVIDIA L40", "bf16", 181),
        ("NVIDIA A10G", "bf16", 70),
        ("NVIDIA RTX A6000", "bf16", 154.8),
        ("NVIDIA RTX 6000 Ada Generation", "bf16", 364),
        ("NVIDIA H100 NVL", "bf16", 835),
        ("NVIDIA H200 NVL", "fp8", 1671),
        ("NVIDIA GH200 480GB", "bf16", 990),
        ("NVIDIA H800", "fp64", 1),
        ("NVIDIA L4", "bf16", 121),
        ("NVIDIA GeForce RTX 2080 Ti", "fp16", 53.8),
        ("AMD Instinct MI300X", "bf16", 1307),
        ("AMD Instinct MI250X", "bf16", 191.5),
        ("AMD Instinct MI355X", "fp4", 10066),
        ("NVIDIA GB300", "fp4", 15000),
        ("TPU v4", "bf16", 275),
        ("Gaudi 3", "fp8", 1835),
    ],
)
def test_known_peaks(device, precision, tflop_s):
    assert peak(device, precision).spec == pytest.approx(tflop_s, rel=0.005)


def test_the_factors_of_an_h100():
    bf16 = gpu_peak(H100, "bf16")
    assert bf16.spec == pytest.approx(132 * 2048 * 2 * 1830e6 / 1e12)
    assert bf16.max_clock == pytest.approx(132 * 2048 * 2 * 1980e6 / 1e12)
    found = gpu_peak(H100, "fp32").spec
    assert found == pytest.approx(132 * 128 * 2 * 1980e6 / 1e12), "fp32 is not TF32"
    assert memory_peak_gb_s(H100) == pytest.approx(3352, rel=1e-3)
    assert memory_peak_gb_s(replace(H100, name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", sms=16)) is None
    assert memory_peak_gb_s(GpuProperties("x", 132, 1980)) is None, "its memory clock is not told"


def test_a_printed_peak_has_no_clock_to_scale_it_by():
    h20 = gpu_peak(GpuProperties("NVIDIA H20", 78, 1980), "bf16")
    assert (h20.spec, h20.max_clock, h20.spec_clock_mhz) == (148, None, None)
    assert "as printed" in h20.formula


@pytest.mark.parametrize(
    "name", ["nvidia h100 80gb hbm3", "H100-80GB-HBM3", "NVIDIA H100-SXM5-80GB", "10de:2330"]
)
def test_one_product_under_several_names(name):
    assert find(name).device == "H100 SXM5 80GB"


@pytest.mark.parametrize(
    "name",
    ["NVIDIA L40S-48Q", "NVIDIA H100", "NVIDIA R300", "NVIDIA GeForce GTX 1650", "", "ffff:0000"],
)
def test_an_unknown_device_has_no_peak_but_a_way_to_give_one(name, monkeypatch):
    gpu = GpuProperties(name, 64, 3000)
    assert gpu_peak(gpu, "bf16").spec is None
    told = gpu_peak(gpu, "bf16").reason
    assert (told.key, told.numbers["precision"]) == ("peak_to_be_given", "bf16")
    monkeypatch.setattr(local_peak, "properties_of", lambda device: gpu)
    for device in (torch.device("cuda"), torch.device("cpu")):
        stated = local_peak.peak_of(device, 1, "bf16", DeviceConfig(peak_tflop_s={"bf16": 4000.0}))
        assert (stated.spec, stated.source) == (4000, "device.peak_tflop_s")
    assert local_peak.peak_of(torch.device("cuda"), 1, "bf16", DeviceConfig()).spec is None


def test_every_name_that_is_offered_means_its_product():
    offered = dict(zip(typed_names(), datasheets(), strict=True))
    assert len(offered) == len(datasheets())
    assert not any(" " in name for name in offered)
    # each of two products of one name, which are told apart by their units
    several = {"RTX-2060", "RTX-3080"}
    found = [name for name, sheet in offered.items() if name not in several and find(name) != sheet]
    assert found == []


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("4090", "GeForce RTX 4090"),
        ("A6000", "RTX A6000"),
        ("M2", "Apple M2"),
        ("a100 sxm 80gb", "A100 SXM4 80GB"),
    ],
)
def test_a_bare_number_is_the_one_line_that_has_it(name, product):
    assert find(name).device == product


@pytest.mark.parametrize("name", ["H100", "A100", "4091", "rtx", "apple"])
def test_a_bare_name_of_none_or_several_products_is_none(name):
    with pytest.raises(UnknownDeviceError):
        find(name)


def test_part_of_a_name_brings_the_choices():
    with pytest.raises(UnknownDeviceError) as refused:
        find("NVIDIA H100")
    for choice in ("H100 NVL (835.3", "H100 PCIe (756.4", "H100 SXM5 80GB (989.4"):
        assert choice in str(refused.value)


def test_products_of_one_name_are_told_apart_or_listed():
    assert find("NVIDIA GeForce RTX 3080", units=70).device == "GeForce RTX 3080 12GB"
    assert find("NVIDIA GeForce RTX 3050", pci_id="10de:2584").device == "GeForce RTX 3050 6GB"
    with pytest.raises(
        UnknownDeviceError, match=r"RTX 3080 12GB \(70 units, .*\), GeForce RTX 3080 \(68 units, "
    ):
        find("NVIDIA GeForce RTX 3080")


@given(st.text(max_size=30))
def test_no_text_gets_anothers_peak(text):
    with contextlib.suppress(UnknownDeviceError):
        sheet = find(text)
        assert text.lower().strip() in sheet.pci_ids or normalised(text) in {
            normalised(name) for name in (sheet.device, *sheet.names)
        }


def test_a_slice_of_a_gpu_has_its_own_peak_and_no_datasheet():
    found = gpu_peak(GpuProperties("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 16, 1980), "bf16")
    assert found.spec == pytest.approx(16 * 2048 * 2 * 1830e6 / 1e12)
    assert found.datasheet is None
    assert gpu_peak(GpuProperties("NVIDIA H20", 39, 1980), "bf16").spec == 74
    assert "slice" in str(peak("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16").reason)


def test_more_sms_than_the_datasheets_are_another_product():
    found = gpu_peak(GpuProperties("NVIDIA A10", 84, 1695), "bf16")
    assert found.spec is None
    assert "another product" in str(found.reason)


def test_the_lookup_imports_no_torch():
    code = (
        "import sys; from mfulab.device.peaks import peak; peak('NVIDIA L40S', 'bf16');"
        " print('torch' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert found == "False\n"


def processor(
    vendor="AuthenticAMD", family=25, model=17, flags="avx2 avx512f avx512_bf16", clock=2600.0
) -> Cpu:
    return Cpu(
        "a CPU", vendor, family, model, frozenset(flags.split()), clock, "test", 32 << 20, True
    )


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
        (processor(), "fp16", "converts"),
        (processor(flags="avx2"), "bf16", "converts"),
        (processor(), "tf32", "format_of_gpus"),
        (processor(vendor="Unheard"), "fp32", "no_vector_units_of"),
        (processor(clock=None), "fp32", "no_clock_of"),
    ],
)
def test_cpu_without_a_peak(cpu, precision, reason):
    peak = cpu_peak(cpu, 4, precision)
    assert peak.spec is None
    assert reason in keys(peak.reason)
    is_to_be_given = reason in ("no_vector_units_of", "no_clock_of")
    assert (peak.reason.key == "peak_to_be_given") == is_to_be_given


def test_a_peak_is_a_number_with_a_source():
    found = peak("NVIDIA H100 80GB HBM3", "bf16")
    assert float(found) == found.tflop_s == found.spec
    assert found.source
    with pytest.raises(TypeError, match=r"no peak: .*choose one of fp64, fp32, tf32"):
        float(peak("NVIDIA H100 80GB HBM3", "fp5"))


def test_a_virtual_function_is_the_device_whose_units_it_has():
    whole, virtual = peak("AMD Instinct MI300X", "bf16"), peak("AMD Instinct MI300X VF", "bf16")
    assert virtual.spec == whole.spec == pytest.approx(1307.4, rel=0.001)
    assert peak("AMD Instinct MI300X VF", "bf16", units=38).spec == pytest.approx(whole.spec / 8)


def test_a_format_without_a_figure_is_told_from_one_that_the_device_lacks():
    assert peak("Tesla V100-SXM2-16GB", "bf16").spec is None
    devices = ("NVIDIA GB10", "Tesla V100-SXM2-16GB")
    unprinted, lacking = (peak(device, "bf16").reason for device in devices)
    assert unprinted.key == "peak_to_be_given"
    assert unprinted.numbers["precision"] == "bf16"
    assert lacking == as_told(
        "neither the datasheet of V100 SXM2 16GB nor its architecture has bf16;"
        " it has fp64, fp32, fp16"
    )
    for sheet in datasheets():  # of a product with figures alone none is said to lack a format
        if sheet.rate == "printed":
            assert not any(
                "nor its architecture" in str(peak(sheet.device, precision).reason)
                for precision in UNITS
            )
