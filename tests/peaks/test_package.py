"""The package of peaks by itself: what each device string gets, and what stands beside a number."""

import csv
import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from jsonschema import validate

from mfulab.peaks import (
    NoPeakError,
    UnknownDeviceError,
    as_json,
    datasheets,
    detect,
    detection,
    find,
    names,
    peak,
)
from mfulab.peaks.command import main
from mfulab.peaks.lookup import known

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "packages/peaks"
with (HERE / "device_strings.csv").open(encoding="utf-8") as file:
    STRINGS = list(csv.DictReader(file))


def test_there_are_enough_strings():
    assert len({(row["name"], row["dtype"]) for row in STRINGS}) == len(STRINGS) >= 160


@pytest.mark.parametrize("row", STRINGS, ids=lambda row: f"{row['name']} {row['dtype']}")
def test_a_string_gets_its_vendors_figure_or_a_refusal(row):
    if row["tflop_s"]:
        found = peak(row["name"], row["dtype"])
        assert found.tflop_s == pytest.approx(float(row["tflop_s"]), rel=0.02)
        assert found.basis
        assert found.source
    else:
        with pytest.raises(LookupError) as refused:
            peak(row["name"], row["dtype"])
        assert str(refused.value)


def test_a_refusal_lists_the_choices():
    with pytest.raises(UnknownDeviceError) as refused:
        peak("H100", "bf16")
    found = [sheet.device for sheet in refused.value.choices]
    assert found == ["H100 NVL", "H100 PCIe", "H100 SXM5 80GB"]
    with pytest.raises(NoPeakError, match="it has fp64, fp32, fp16"):
        peak("Tesla V100-SXM2-16GB", "bf16")
    with pytest.raises(NoPeakError, match="fp64, fp32, tf32, fp16, bf16, fp8, fp4, int8"):
        peak("NVIDIA H200", "int4")


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("H100-PCIe-80GB", "H100 PCIe"),
        ("NVIDIA H100 80GB HBM2e", "H100 SXM5 80GB"),
        ("Tesla V100-SXM2-32GB-LS", "V100 SXM2 32GB"),
        ("2 x Tesla T4", "T4"),
        ("AMD Radeon RX 7900 GRE", "Radeon RX 7900 XT"),
        ("gfx90a:sramecc+:xnack-", "Instinct MI210"),
    ],
)
def test_the_first_choice_is_of_the_model_that_was_named(name, first):
    with pytest.raises(UnknownDeviceError) as refused:
        find(name)
    assert refused.value.choices[0].device == first


@pytest.mark.parametrize("name", ["cuda:0", "Tesla K80", "p5.48xlarge"])
def test_a_refusal_without_a_similar_product_says_where_all_are_listed(name):
    with pytest.raises(UnknownDeviceError) as refused:
        find(name)
    assert refused.value.choices == ()
    assert names.LISTS in str(refused.value)


@pytest.mark.parametrize("name", ["Tesla M4", "GeForce M2", "AMD A100-SXM4-80GB", "Intel L4"])
def test_a_name_of_another_vendor_is_no_product(name):
    with pytest.raises(UnknownDeviceError):
        find(name)


def test_a_name_of_two_modules_lists_both():
    with pytest.raises(UnknownDeviceError) as refused:
        find("Jetson AGX Orin")
    assert [sheet.units for sheet in refused.value.choices] == [16, 14]


def test_sparse_is_twice_dense_where_the_hardware_has_it():
    dense = peak("NVIDIA H200", "bf16")
    sparse = peak("NVIDIA H200", "bf16", sparse=True)
    assert sparse.value == 2 * dense.value
    assert ("sparse" in sparse.basis, "sparse" in dense.basis) == (True, False)
    for name, dtype in (
        ("Tesla T4", "fp16"),
        ("AMD Instinct MI250X", "bf16"),
        ("H200 NVL", "fp32"),
    ):
        with pytest.raises(NoPeakError):
            peak(name, dtype, sparse=True)


@pytest.mark.parametrize(
    ("dtype", "plain"),
    [("bfloat16", "bf16"), ("torch.float32", "fp32"), ("half", "fp16"), ("float8_e4m3fn", "fp8")],
)
def test_a_dtype_of_a_framework_is_understood(dtype, plain):
    assert peak("NVIDIA H200", dtype).dtype == plain


def test_torch_s_own_dtypes_are_understood():
    torch = pytest.importorskip("torch")
    assert peak("NVIDIA H200", torch.bfloat16).dtype == "bf16"
    assert peak("NVIDIA H200", torch.float8_e5m2).dtype == "fp8"


def test_fewer_units_are_a_share_and_more_are_another_product():
    whole = peak("NVIDIA H100 80GB HBM3", "bf16")
    part = peak("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16", units=16)
    assert part.value == pytest.approx(whole.value * 16 / 132)
    with pytest.raises(NoPeakError, match="another product"):
        peak("NVIDIA H100 80GB HBM3", "bf16", units=144)


def test_every_product_has_a_peak_or_a_note_that_says_why_not():
    for sheet in datasheets():
        assert known(sheet) or sheet.note
        assert sheet.source


def test_the_document_of_all_peaks_is_current_and_fits_its_schema():
    text = as_json()
    assert (PACKAGE / "peaks.json").read_text(encoding="utf-8") == text, "make peaks"
    schema = json.loads((PACKAGE / "peaks.schema.json").read_text(encoding="utf-8"))
    document = json.loads(text)
    validate(document, schema)
    devices = {each["device"]: each for each in document["devices"]}
    assert devices["H100 SXM5 80GB"]["peaks"]["bf16"]["value"] == pytest.approx(989.4e12, rel=1e-3)
    assert devices["L2"]["peaks"] == {}
    assert devices["L2"]["reason"]


@pytest.mark.parametrize(
    ("words", "units"),
    [
        (["NVIDIA H200", "bf16"], ["TFLOP/s"]),
        (["NVIDIA A100-SXM4-80GB"], ["TFLOP/s"] * 5 + ["TOP/s"]),
        (["NVIDIA L2"], [""]),
        (["H100", "bf16"], [""]),
    ],
)
def test_json_has_the_answer_of_every_other_command(words, units, capsys):
    schema = json.loads((HERE.parents[1] / "docs/answer.schema.json").read_text(encoding="utf-8"))
    main([*words, "--json"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for line in lines:
        validate(line, schema)
        assert (line["answer"]["value"] is None) == (line["answer"]["reason"] is not None)
    assert [line["answer"]["unit"] for line in lines] == units


def test_no_answer_never_parses_as_a_number(capsys):
    assert main(["NVIDIA L2", "bf16", "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert answer["peaks"] == {}
    assert answer["reason"]
    assert main(["NVIDIA H200", "bf16", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["reason"] is None
    assert answer["peaks"]["bf16"]["value"] == pytest.approx(989.4e12, rel=1e-3)


def test_a_slice_has_a_peak_where_its_units_are_told(capsys):
    name = "NVIDIA A100-SXM4-80GB MIG 3g.40gb"
    with pytest.raises(NoPeakError, match="108"):
        peak(name, "bf16")
    assert main([name, "bf16", "--units", "42", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    whole = peak("NVIDIA A100-SXM4-80GB", "bf16").value
    assert answer["peaks"]["bf16"]["value"] == pytest.approx(whole * 42 / 108)


def test_the_command_shows_every_format_and_lists_every_product(capsys):
    assert main(["10de:2330"]) == 0
    shown = capsys.readouterr().out
    assert "989.4 TFLOP/s" in shown
    assert "3350 GB/s" in shown
    assert main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(datasheets())


def pretend(monkeypatch, **modules):
    for name in ("torch", "pynvml"):
        monkeypatch.setitem(sys.modules, name, modules.get(name))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def test_devices_are_told_by_nvml(monkeypatch):
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: b"NVIDIA GeForce RTX 3050",
        nvmlDeviceGetPciInfo=lambda handle: SimpleNamespace(pciDeviceId=0x258410DE),
    )
    pretend(monkeypatch, pynvml=nvml)
    monkeypatch.delitem(sys.modules, "torch")
    found = detect()
    assert [device.pci_id for device in found] == ["10de:2584"] * 2
    assert found[0].peak("bf16").device == "GeForce RTX 3050 6GB"


def test_devices_are_told_by_torch_where_it_is_imported(monkeypatch):
    h200 = SimpleNamespace(name="NVIDIA H200", multi_processor_count=132)
    cuda = SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 1, get_device_properties=lambda index: h200
    )
    pretend(monkeypatch, torch=SimpleNamespace(cuda=cuda))
    [device] = detect()
    assert (device.found_by, device.units) == ("torch", 132)
    assert device.peak("bf16").tflop_s == pytest.approx(989.4, rel=1e-3)


def test_devices_are_told_by_sysfs(tmp_path, monkeypatch):
    slots = {"0": ("0x1002", "0x74a1", "0x120000"), "1": ("0x1a03", "0x2000", "0x030000")}
    for slot, texts in slots.items():
        (tmp_path / slot).mkdir()
        for name, text in zip(("vendor", "device", "class"), texts, strict=True):
            (tmp_path / slot / name).write_text(f"{text}\n")
    [device] = detection._by_sysfs(str(tmp_path))
    assert find(device.name).device == "Instinct MI300X"


def test_the_cores_of_apples_gpu_are_told(monkeypatch):
    told = {"sysctl": "Apple M1 Max\n", "ioreg": '      "gpu-core-count" = 24\n'}

    def run(command, **_):
        return SimpleNamespace(stdout=told[Path(command[0]).name])

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    [device] = detection._by_apple()
    assert (device.name, device.units) == ("Apple M1 Max", 24)
    assert device.peak("fp32").tflop_s == pytest.approx(10.4 * 24 / 32)
    told["ioreg"] = ""
    [device] = detection._by_apple()
    assert device.units is None


def test_nothing_is_told_where_nothing_is(monkeypatch):
    pretend(monkeypatch)
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(detection, "_PCI", "/nonexistent")
    monkeypatch.setattr(detection._by_sysfs, "__defaults__", ("/nonexistent",))
    assert detect() == []


@pytest.mark.slow
@pytest.mark.workflow
def test_the_wheel_is_small_and_works_alone(tmp_path):
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, PACKAGE]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.stat().st_size < 100_000
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        assert any(name.endswith("/mfulab_peaks/datasheets.csv") for name in archive.getnames())
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "alone")
        metadata = next(name for name in archive.namelist() if name.endswith("METADATA"))
        assert "Requires-Dist" not in archive.read(metadata).decode()
    code = "from mfulab_peaks import peak; print(peak('NVIDIA H200', 'bf16').tflop_s)"
    said = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, 'alone'); {code}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(said.stdout) == pytest.approx(989.4, rel=1e-3)


def test_lightning_takes_the_number_as_the_readme_says(monkeypatch):
    monitor = pytest.importorskip("pytorch_lightning.callbacks.throughput_monitor")
    throughput = pytest.importorskip("lightning_fabric.utilities.throughput")
    assert callable(monitor.get_available_flops)
    value = peak("NVIDIA H200", "bf16").value
    assert throughput.Throughput(available_flops=value).available_flops == value


@pytest.mark.parametrize(
    "words",
    [
        ["\x1b[2J"],
        ["H100 SXM5 80GB", "\x1b[2J"],
        ["H100 SXM5 80GB", "bf16", "\x1b[2J"],
        ["--\x1b[2J"],
        ["\udcff", "--json"],
        ["한", "--json"],
        ["x" * 100_000],
        ["H100 SXM5 80GB", "x" * 100_000],
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_no_word_costs_a_traceback_or_commands_a_terminal(words, encoding):
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE.parents[1] / "src"),
        "PYTHONIOENCODING": encoding,
    }
    done = subprocess.run(
        [sys.executable, "-m", "mfulab.peaks", *words], env=environment, capture_output=True
    )
    printed = (done.stdout + done.stderr).decode(encoding)
    assert done.returncode == 2
    assert "Traceback" not in printed
    assert "\x1b" not in printed
    assert len(printed) < 2000
    if "--json" in words:
        assert json.loads(done.stdout)["device"] == words[0]


def test_a_number_of_units_below_none_is_refused():
    with pytest.raises(NoPeakError, match="-1 SMs"):
        peak("NVIDIA H100 80GB HBM3", "bf16", units=-1)
