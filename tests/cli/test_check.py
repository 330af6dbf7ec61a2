"""`mfulab check`: what is low against a recording, a datasheet, a baseline or other nodes, on a stand-in for a GPU."""

import csv
import io
import json

import pytest
import torch
from support.nvml_stand_in import Gpu, StandIn
from support.workflow_copy import ROOT

from mfulab.cli import check
from mfulab.cli.main import main
from mfulab.device import compute, identity, vendors
from mfulab.device.vendors import nvidia
from mfulab.timing import best_matmul, node

H100 = {"fp32": 54.1, "tf32": 360.5, "bf16": 691.4, "fp16": 690.0, "fp8": 1200.0}


@pytest.fixture
def gpu(monkeypatch):
    """A check of a stand-in for an H100, whose products are as fast as `speeds` says."""
    monkeypatch.chdir(ROOT)
    library = StandIn(Gpu(capped_share=0.0)).install(monkeypatch)
    uuid = library.gpus[0].uuid
    device, speeds = torch.device("cuda"), {"memory": 3000.0, "copies": 54.8} | H100
    monkeypatch.setattr(compute, "prepare", lambda config: (device, 1))
    monkeypatch.setattr(check.identity, "hardware_slug", lambda kind: "nvidia-h100-80gb-hbm3")
    monkeypatch.setattr(node, "emulated", lambda name, device: "")
    monkeypatch.setattr(node, "samplers_for", lambda device: vendors.of(uuid).samplers(uuid, []))

    def sweep(name, device, search):
        library.now += 0.5
        sample = {"library": "torch", "shape": "8192x8192x8192", "tflop_s": speeds[name], "clock_mhz": 1500.0}
        return [sample | {"burst": False}] * 3

    monkeypatch.setattr(node, "sweep_matmuls", sweep)
    monkeypatch.setattr(node, "sweep_triad", lambda device, search, limit_s: [{"gb_s": speeds["memory"]}] * 3)

    def transfers(inputs, output):
        return {f"{way}_pinned_s": count * output.nbytes / speeds["copies"] / 1e9
                for way, count in (("host_to_device", 2), ("device_to_host", 1))}  # fmt: skip

    monkeypatch.setattr(node, "time_transfers", transfers)
    made = torch.randn
    monkeypatch.setattr(node.torch, "randn", lambda *sides, dtype, device: made(64, 64, dtype=dtype))
    return speeds


def told(capsys):
    return json.loads(capsys.readouterr().out)


def test_a_gpu_as_fast_as_its_recording_is_healthy(gpu, capsys):
    assert main(["check", "--json"]) == 0
    line = told(capsys)
    assert (line["device"], line["state"]) == ("NVIDIA H100 80GB HBM3", "healthy")
    sources = {name: held["source"] for name, held in line["values"].items()}
    assert (sources["bf16_tflop_s"], sources["fp8_tflop_s"]) == ("recording", "datasheet")
    assert line["values"]["power_capped_percent"]["state"] == "unknown"  # where a GPU is to work
    assert line["values"]["hardware_thermal_percent"]["state"] == "healthy"


@pytest.mark.parametrize(
    ("slower", "says"),
    [
        ({"bf16": 430.0}, "bf16_tflop_s −38 % (recording)"),
        ({"memory": 2000.0}, "memory_gb_s −34 % (recording)"),
        ({"copies": 12.0}, "host_to_device_gb_s −78 % (recording), device_to_host_gb_s −78 % (recording)"),
        ({"fp8": 600.0}, "fp8_tflop_s −70 % (datasheet)"),
    ],
)
def test_what_is_low_is_named_with_how_much(slower, says, gpu, capsys):
    gpu |= slower
    assert main(["check"]) == 1
    assert f"NVIDIA H100 80GB HBM3: low: {says}\n" in capsys.readouterr().out


def test_prometheus_reads_the_values(gpu, capsys):
    gpu["bf16"] = 430.0
    assert main(["check", "--prometheus"]) == 1
    parser = pytest.importorskip("prometheus_client.parser")
    families = {each.name: each for each in parser.text_string_to_metric_families(capsys.readouterr().out)}
    (healthy,) = families["mfulab_check_healthy"].samples
    assert (healthy.value, healthy.labels["device"]) == (0, "NVIDIA H100 80GB HBM3")
    shares = {each.labels["check"]: each.value for each in families["mfulab_check_share"].samples}
    assert shares["bf16_tflop_s"] == pytest.approx(430 / 691.4, rel=1e-3)


def test_many_nodes_are_one_table(gpu, capsys, monkeypatch):
    lines = []
    for name, speed in (("n1", 691.0), ("n2", 430.0), ("n3", 690.0)):
        monkeypatch.setattr(check.socket, "gethostname", lambda name=name: name)
        gpu["bf16"] = speed
        main(["check", "--json"])
        lines.append(capsys.readouterr().out)
    monkeypatch.setattr(check.sys, "stdin", io.StringIO("0: " + "srun: job started\n".join(lines)))
    assert main(["check", "--table", "-"]) == 1
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip().startswith("n")][1:]
    assert [row[:2] for row in rows] == [["n2", "low"], ["n1", "healthy"], ["n3", "healthy"]]


@pytest.mark.parametrize("command", [["check"], ["watch", "--count", "1"]])
def test_a_device_that_is_not_there_is_one_sentence(command, monkeypatch, capsys):
    monkeypatch.setattr(identity, "why_not", lambda kind: "no driver answers")
    assert main([*command, "--device", "cuda"]) == 2
    assert capsys.readouterr().err == "mfulab: device=cuda: no driver answers; choose device=cpu or device=auto\n"


def line_of(name, value, **more):
    values = {"bf16_tflop_s": {"value": value, "unit": "TFLOP/s", "reason": ""}, **more}
    return {"node": name, "device": "Some CPU (2 cores)", "kind": "cpu", "values": values}


def test_nodes_of_an_unknown_device_are_judged_by_their_median():
    unknown = [check.judged(line_of(f"n{number}", value), {}) for number, value in enumerate((1.0, 1.1, 0.4))]
    assert {line["state"] for line in unknown} == {"unknown"}
    assert [line["state"] for line in check._among(unknown)] == ["healthy", "healthy", "low"]
    assert {line["state"] for line in check._among(unknown[1:])} == {"unknown"}


def test_heat_is_low_without_any_reference_and_a_power_limit_never_is():
    hot = {name: {"value": 30.0, "unit": "%", "reason": ""} for name in node.THROTTLES}
    hot["other_processes_percent"] = {"value": 90.0, "unit": "%", "reason": ""}
    judged = check.judged(line_of("n", None, **hot), {})
    assert judged["state"] == "low"
    assert "power_capped_percent" not in check.low(judged)
    assert "other_processes_percent" not in check.low(judged)


# What others report of two cards limited to 70 and 72 W: far below their boost clocks, and nothing is wrong.
LIMITED = [("Tesla T4", {"fp16": 24.0, "fp32": 4.3}, 645.0), ("NVIDIA L4", {"bf16": 54.9, "fp32": 10.7}, 1000.0)]


@pytest.mark.parametrize(("name", "rates", "clock"), LIMITED)
@pytest.mark.parametrize(("capped", "share", "state"), [(97.0, 1, "healthy"), (97.0, 0.5, "low"), (0.0, 1, "low")])
def test_rates_of_a_card_that_its_power_limit_holds_are_judged_at_its_clock(
    name, rates, clock, capped, share, state, monkeypatch
):
    StandIn(Gpu(name=name)).install(monkeypatch)
    told = {f"{form}_tflop_s": (share * rate, "TFLOP/s") for form, rate in rates.items()}
    told |= {"clock_mhz": (clock, "MHz"), "power_capped_percent": (capped, "%"), "memory_gb_s": (250.0, "GB/s")}
    values = {key: {"value": value, "unit": unit, "reason": ""} for key, (value, unit) in told.items()}
    line = check.judged({"node": "n", "device": name, "kind": "cuda", "values": values}, check.printed(values))
    assert line["state"] == state, check.low(line)
    assert ("MHz" in line["values"]["fp32_tflop_s"]["source"]) == (capped > 50)


@pytest.mark.parametrize("sms", [16, 132])
def test_a_slice_of_a_gpu_is_compared_with_its_share_of_the_datasheet(sms, monkeypatch):
    StandIn(Gpu()).install(monkeypatch)
    properties = vendors.of("GPU-").properties
    monkeypatch.setattr(nvidia.Nvidia, "properties", lambda self, uuid, name, given=None: properties(uuid, name, sms))
    values = {"bf16_tflop_s": {"value": 90.0, "unit": "TFLOP/s", "reason": ""}}
    peak, source = check.printed(values)["bf16_tflop_s"]
    assert (peak, source) == (pytest.approx(989.4 * sms / 132, rel=1e-3), "datasheet")


@pytest.fixture
def quick(monkeypatch):
    search = best_matmul.Search([(64, 64, 64), (128, 128, 128)], 0.1, 0.001, triads=3)
    monkeypatch.setattr(node, "SEARCH", {"cpu": search})
    monkeypatch.setattr(best_matmul, "MIDDLE", {"cpu": (128, 128, 128)})
    monkeypatch.setattr(best_matmul, "triad_length", lambda device: 1 << 16)


def test_a_cpu_of_which_nothing_is_known_is_compared_with_an_earlier_check(quick, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # without recordings
    assert main(["check", "--device", "cpu"]) == 3
    said = capsys.readouterr().out
    assert "nothing is known of this device here; keep what --json prints" in said
    assert "fp32_tflop_s" in said
    assert main(["check", "--device", "cpu", "--json"]) == 3
    line = told(capsys)
    for held in line["values"].values():
        held["value"] = held["value"] and 1000 * held["value"]  # whatever others take of the cores meanwhile
    assert line["values"]["other_processes_percent"]["state"] == "unknown"
    (tmp_path / "before.json").write_text(json.dumps(line))
    assert main(["check", "--device", "cpu", "--baseline", "before.json"]) == 1
    assert "(baseline)" in capsys.readouterr().out
    (tmp_path / "other.json").write_text(json.dumps(line | {"device": "Another CPU"}))
    assert main(["check", "--device", "cpu", "--baseline", "other.json"]) == 2
    assert "--baseline=other.json: of Another CPU, and this is " in capsys.readouterr().err


def test_a_recording_of_a_cpu_counts_for_equal_instructions_alone(monkeypatch):
    folder = ROOT / "results/reference/amd-epyc-2c"
    with (folder / "environment.csv").open() as file:
        flags, *_ = (row["cpu_vector_flags"] for row in csv.DictReader(file))
    monkeypatch.setattr(check.cpu, "vector_flags", lambda _: tuple(flags.split()))
    assert {name: round(value, 2) for name, (value, _) in check.recorded(folder).items()} == {
        "fp32_tflop_s": 0.22, "fp64_tflop_s": 0.11, "bf16_tflop_s": 0.44, "int8_tflop_s": 0.89, "memory_gb_s": 54.97,
    }  # fmt: skip
    monkeypatch.setattr(check.cpu, "vector_flags", lambda _: ("avx",))
    assert check.recorded(folder) == {}


@pytest.mark.parametrize("text", ["srun: error\n", '{"node": "n1"}\n', '{"node": "n1", "dev'])
@pytest.mark.parametrize("option", ["--table", "--baseline"])
def test_lines_that_are_no_check_are_one_sentence(text, option, tmp_path, capsys):
    (tmp_path / "empty").write_text(text)
    assert main(["check", option, str(tmp_path / "empty")]) == 2
    assert capsys.readouterr().err.endswith(f"mfulab: {tmp_path}/empty: no line of `mfulab check --json` is here.\n")


@pytest.mark.parametrize(
    "both", [["--json", "--prometheus"], ["--table", "-", "--json"], ["--baseline", "a", "--table", "-"]]
)
def test_options_of_which_one_would_be_ignored_are_a_mistake(both, capsys):
    assert main(["check", *both]) == 2
    assert capsys.readouterr().err.endswith(": give one of them.\n")


def test_a_memory_that_neighbours_slow_down_ends_after_its_time(monkeypatch):
    monkeypatch.setattr(best_matmul, "triad_length", lambda device: 1 << 10)
    samples = best_matmul.sweep_triad(torch.device("cpu"), best_matmul.QUICK, limit_s=0.0)
    assert len(samples) == 1


def test_a_check_bounds_every_part_of_it(quick, monkeypatch):
    limits = []
    sweep = best_matmul.sweep_triad
    monkeypatch.setattr(node, "sweep_triad", lambda *given: limits.append(given[2]) or sweep(*given))
    values = node.readings_of(torch.device("cpu"))
    assert values["memory_gb_s"].value > 0
    assert values["other_processes_percent"].unit == "%"
    assert limits[0] + sum(search.limit_s * search.ways for search in [node.SEARCH["cpu"]] * 2) < 30
