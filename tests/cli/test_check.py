"""`mfulab check`: what is low against a recording, a datasheet, a baseline or other nodes, on a
stand-in for a GPU."""

import csv
import io
import json
import re
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch
from support.nvml_stand_in import Gpu, StandIn
from support.workflow_copy import ROOT

from mfulab.cli import check, check_text
from mfulab.cli.check_text import CheckedValue, DeviceCheck
from mfulab.cli.main import main
from mfulab.core.language import LANGUAGES, Texts
from mfulab.core.language.sentences import sentence
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
    monkeypatch.setattr(nvidia.Nvidia, "uuid_of", lambda self, device: uuid)

    def sweep(name, device, search):
        library.now += 0.5
        sample = {"library": "torch", "shape": "8192x8192x8192", "clock_mhz": 1500.0}
        return [sample | {"tflop_s": speeds[name], "burst": False}] * 3

    monkeypatch.setattr(node, "sweep_matmuls", sweep)
    monkeypatch.setattr(
        node, "sweep_triad", lambda device, search, limit_s: [{"gb_s": speeds["memory"]}] * 3
    )

    def transfers(inputs, output):
        return {f"{way}_pinned_s": count * output.nbytes / speeds["copies"] / 1e9
                for way, count in (("host_to_device", 2), ("device_to_host", 1))}  # fmt: skip

    monkeypatch.setattr(node, "time_transfers", transfers)
    made = torch.randn
    monkeypatch.setattr(
        node.torch, "randn", lambda *sides, dtype, device: made(64, 64, dtype=dtype)
    )
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
        (
            {"copies": 12.0},
            "host_to_device_gb_s −78 % (recording), device_to_host_gb_s −78 % (recording)",
        ),
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
    families = {
        each.name: each for each in parser.text_string_to_metric_families(capsys.readouterr().out)
    }
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
    rows = [
        line.split() for line in capsys.readouterr().out.splitlines() if re.match(r"\s*n\d ", line)
    ]
    assert [row[:2] for row in rows] == [["n2", "low"], ["n1", "healthy"], ["n3", "healthy"]]


@pytest.mark.parametrize("command", [["check"], ["watch", "--count", "1"]])
def test_a_device_that_is_not_there_is_one_sentence(command, monkeypatch, capsys):
    monkeypatch.setattr(identity, "why_not", lambda kind: "no driver answers")
    assert main([*command, "--device", "cuda"]) == 2
    found = capsys.readouterr().err
    assert found == "mfulab: device=cuda: no driver answers; choose device=cpu or device=auto\n"


def line_of(name, value, **more):
    values = {"bf16_tflop_s": CheckedValue(value, "TFLOP/s"), **more}
    return DeviceCheck(name, "Some CPU (2 cores)", "cpu", values, "unknown")


def test_nodes_of_an_unknown_device_are_judged_by_their_median():
    unknown = [
        check.judged(line_of(f"n{number}", value), {})
        for number, value in enumerate((1.0, 1.1, 0.4))
    ]
    assert {line.state for line in unknown} == {"unknown"}
    assert [line.state for line in check._judge_by_nodes(unknown)] == [
        "healthy",
        "healthy",
        "low",
    ]
    assert {line.state for line in check._judge_by_nodes(unknown[1:])} == {"unknown"}


def test_heat_is_low_without_any_reference_and_a_power_limit_never_is():
    hot = dict.fromkeys(node.THROTTLES, CheckedValue(30.0, "%"))
    hot["other_processes_percent"] = CheckedValue(90.0, "%")
    judged = check.judged(line_of("n", None, **hot), {})
    assert judged.state == "low"
    assert "power_capped_percent" not in check_text.low(judged, Texts("en", "check"))
    assert "other_processes_percent" not in check_text.low(judged, Texts("en", "check"))


# What others report of two cards limited to 70 and 72 W: far below their boost clocks, and nothing
# is wrong.
LIMITED = [
    ("Tesla T4", {"fp16": 24.0, "fp32": 4.3}, 645.0),
    ("NVIDIA L4", {"bf16": 54.9, "fp32": 10.7}, 1000.0),
]


@pytest.mark.parametrize(("name", "rates", "clock"), LIMITED)
@pytest.mark.parametrize(
    ("capped", "share", "state"), [(97.0, 1, "healthy"), (97.0, 0.5, "low"), (0.0, 1, "low")]
)
def test_rates_of_a_card_that_its_power_limit_holds_are_judged_at_its_clock(
    name, rates, clock, capped, share, state, monkeypatch
):
    StandIn(Gpu(name=name)).install(monkeypatch)
    told = {f"{form}_tflop_s": (share * rate, "TFLOP/s") for form, rate in rates.items()}
    told |= {
        "clock_mhz": (clock, "MHz"),
        "power_capped_percent": (capped, "%"),
        "memory_gb_s": (250.0, "GB/s"),
    }
    values = {key: CheckedValue(*reading) for key, reading in told.items()}
    line = check.judged(DeviceCheck("n", name, "cuda", values, "unknown"), check.printed(values))
    assert line.state == state, check_text.low(line, Texts("en", "check"))
    held = line.values["fp32_tflop_s"]
    assert (held.source, held.at_mhz) == ("datasheet", clock if capped > 50 else None)


@pytest.mark.parametrize("sms", [16, 132])
def test_a_slice_of_a_gpu_is_compared_with_its_share_of_the_datasheet(sms, monkeypatch):
    StandIn(Gpu()).install(monkeypatch)
    properties = vendors.of("GPU-").properties
    monkeypatch.setattr(
        nvidia.Nvidia,
        "properties",
        lambda self, uuid, name, given=None: properties(uuid, name, sms),
    )
    values = {"bf16_tflop_s": CheckedValue(90.0, "TFLOP/s")}
    peak, source, _ = check.printed(values)["bf16_tflop_s"]
    assert (peak, source) == (pytest.approx(989.4 * sms / 132, rel=1e-3), "datasheet")


@pytest.mark.parametrize(("units", "share"), [(16, 16 / 132), (60, 60 / 132), (None, None)])
def test_each_slice_of_eight_cards_has_its_own_peak(units, share, monkeypatch):
    name = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    slices = [Gpu(name=name, uuid=f"MIG-{number}", units=units) for number in range(8)]
    cards = [Gpu(uuid=f"GPU-{one.uuid}", mig_instances=[one]) for one in slices]
    StandIn(*cards).install(monkeypatch)
    values = {"bf16_tflop_s": CheckedValue(90.0, "TFLOP/s")}
    for one in slices:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", one.uuid)
        [seen] = identity.gpus("cuda")
        assert seen.uuid == one.uuid
        peak = check.printed(values)["bf16_tflop_s"].value
        assert peak == (None if share is None else pytest.approx(989.4 * share, rel=1e-3))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert [one.uuid for one in identity.gpus("cuda")] == [one.uuid for one in slices]


@pytest.fixture
def quick(monkeypatch):
    search = best_matmul.Search([(64, 64, 64), (128, 128, 128)], 0.1, 0.001, triads=3)
    monkeypatch.setattr(node, "SEARCH", {"cpu": search})
    monkeypatch.setattr(best_matmul, "MIDDLE", {"cpu": (128, 128, 128)})
    monkeypatch.setattr(best_matmul, "triad_length", lambda device: 1 << 16)


def test_an_unknown_cpu_is_compared_with_an_earlier_check(quick, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # without recordings
    assert main(["check", "--device", "cpu"]) == 3
    said = capsys.readouterr().out
    assert "nothing is known of this device here; keep what --json prints" in said
    assert "fp32_tflop_s" in said
    assert main(["check", "--device", "cpu", "--json"]) == 3
    line = told(capsys)
    for held in line["values"].values():
        # whatever others take of the cores meanwhile
        held["value"] = held["value"] and 1000 * held["value"]
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
    assert {name: round(held.value, 2) for name, held in check.recorded(folder).items()} == {
        "fp32_tflop_s": 0.22, "fp64_tflop_s": 0.1, "bf16_tflop_s": 0.43, "int8_tflop_s": 0.86, "memory_gb_s": 51.78,
    }  # fmt: skip
    monkeypatch.setattr(check.cpu, "vector_flags", lambda _: ("avx",))
    assert check.recorded(folder) == {}


def given(**changes: object) -> str:
    line: dict[str, object] = {"node": "n1", "device": "a card", "kind": "cuda"}
    line |= {"values": {"clock_mhz": {"value": 1.0}}, "state": "low"}
    return json.dumps(line | changes) + "\n"


NO_CHECKS = [
    "srun: error\n",
    '{"node": "n1"}\n',
    '{"node": "n1", "dev',
    given(state="odd"),
    given(node=3),
    given(device=None),
    given(values=[]),
    given(values={"clock_mhz": 1}),
    given(values={"clock_mhz": {"value": "fast"}}),
    given(values={"clock_mhz": {"value": 1.0, "source": ["recording"]}}),
    given(values={"clock_mhz": {"value": 1.0, "at_mhz": "abc"}}),
]


def test_a_line_of_any_version_is_shown(tmp_path, capsys):
    (tmp_path / "old").write_text(given())
    assert main(["check", "--table", str(tmp_path / "old")]) == check_text.STATUS["low"]
    assert "n1" in capsys.readouterr().out


@pytest.mark.parametrize("text", NO_CHECKS)
@pytest.mark.parametrize("option", ["--table", "--baseline"])
def test_lines_that_are_no_check_are_one_sentence(text, option, tmp_path, capsys):
    (tmp_path / "empty").write_text(text)
    assert main(["check", option, str(tmp_path / "empty")]) == 2
    assert capsys.readouterr().err.endswith(
        f"mfulab: {tmp_path}/empty: no line of `mfulab check --json` is here.\n"
    )


@pytest.mark.parametrize(
    "both",
    [["--json", "--prometheus"], ["--table", "-", "--json"], ["--baseline", "a", "--table", "-"]],
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
    monkeypatch.setattr(
        node, "sweep_triad", lambda *given: limits.append(given[2]) or sweep(*given)
    )
    values = node.readings_of(torch.device("cpu"))
    assert values["memory_gb_s"].value > 0
    assert values["other_processes_percent"].unit == "%"
    assert limits[0] + sum(search.limit_s * search.ways for search in [node.SEARCH["cpu"]] * 2) < 30


def card(number, bf16, copies=50.0):
    """A card's line, as its own process prints it."""
    values = {"bf16_tflop_s": bf16, "host_to_device_gb_s": copies, "power_capped_percent": 80.0}
    readings = {name: CheckedValue(value) for name, value in values.items()}
    return DeviceCheck(f"n1 GPU-{number}", "NVIDIA H200", "cuda", readings, "healthy")


@pytest.mark.parametrize(
    ("cards", "low"),
    [
        ([700, 701, 640, 699], ["n1 GPU-2"]),
        ([700, 701, 690, 699], []),
        ([700, 500], []),
    ],
    ids=["one slow", "as usual", "of two nobody knows which"],
)
def test_cards_of_one_node_are_compared_with_one_another(cards, low):
    judged = check.judge_cards([card(number, speed) for number, speed in enumerate(cards)])
    assert [line.node for line in judged if line.state == "low"] == low


def test_a_slow_link_of_one_card_is_named():
    judged = check.judge_cards([card(number, 700, 50 if number else 12.5) for number in range(4)])
    assert (
        check_text.low(judged[0], Texts("en", "check"))
        == "host_to_device_gb_s −75 % (median of the cards)"
    )
    assert [line.state for line in judged[1:]] == ["healthy"] * 3


LINKED = {
    "pcie_lanes": (16, 16, "healthy"),
    "pcie_generation": (5, 5, "healthy"),
    "nvlinks": (18, 18, "healthy"),
}


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({}, {}),
        ({"pcie_lanes": (8, 16)}, {"pcie_lanes": (8, 16, "low")}),
        ({"pcie_generation": (4, 5)}, {"pcie_generation": (4, 5, "low")}),
        ({"nvlinks": (1,) * 17 + (0,)}, {"nvlinks": (17, 18, "low")}),
        ({"nvlinks": ()}, {"nvlinks": None}),
        ({"refused": {"nvmlDeviceGetCurrPcieLinkWidth"}}, {"pcie_lanes": None}),
    ],
)
def test_a_card_s_links_are_held_against_its_most(changed, wrong, gpu, monkeypatch, capsys):
    card = {"capped_share": 0.0, "nvlinks": (1,) * 18} | changed
    StandIn(Gpu(**card)).install(monkeypatch)
    assert main(["check", "--json"]) == int(any(one and one[2] == "low" for one in wrong.values()))
    values = json.loads(capsys.readouterr().out)["values"]
    found = {}
    for name in LINKED:
        one = values.get(name)
        found[name] = one and (one["value"], one["reference"], one["state"])
    assert found == LINKED | wrong


def test_of_eight_cards_the_slow_one_is_named_in_a_sentence_and_a_bar(capsys):
    lines = [card(number, 700 - number % 2) for number in range(7)] + [card(7, 600)]
    said = check_text.cards_sentence(lines, "NVIDIA H200")
    assert (said.key, said.numbers["card"], said.numbers["count"]) == ("card_low", "n1 GPU-7", 8)
    assert said.numbers["short"] == pytest.approx(100 * (1 - 600 / 699.5))
    check_text.show_cards(lines)
    first, *bars = capsys.readouterr().out.splitlines()
    assert "n1 GPU-7" in first
    lengths = {line.split()[1]: line.count("█") for line in bars}
    assert min(lengths, key=lengths.get) == "GPU-7"
    assert len(lengths) == 8


@pytest.mark.parametrize(
    ("speeds", "key"), [([700, 701, 690, 699], "cards_alike"), ([700, 500], "cards_too_few")]
)
def test_cards_that_are_alike_or_too_few_are_said_to_be(speeds, key):
    lines = [card(number, speed) for number, speed in enumerate(speeds)]
    assert check_text.cards_sentence(lines, "NVIDIA H200").key == key


def test_each_card_is_checked_alone_and_in_turn(monkeypatch, capsys):
    cards = [Gpu(uuid=f"GPU-{number}") for number in range(3)]
    StandIn(*cards).install(monkeypatch)
    shown = []

    def checked(command, env, **options):
        if "-c" in command:
            return SimpleNamespace(stdout="", stderr="Traceback …\nRuntimeError: no peer access\n")
        shown.append(env["CUDA_VISIBLE_DEVICES"])
        line = card(shown[-1][4:], 700 if len(shown) < 3 else 600)
        return SimpleNamespace(stdout=json.dumps(asdict(replace(line, node="n1"))))

    monkeypatch.setattr(check.identity, "resolve", lambda device: "cuda")
    monkeypatch.setattr(check.subprocess, "run", checked)
    assert check.run.callback("auto", None, None, True, True, False) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert shown == [line["node"].split()[1] for line in lines] == [gpu.uuid for gpu in cards]
    assert [line["state"] for line in lines] == ["healthy", "healthy", "low"]
    copied = lines[0]["values"][check.COPIED]
    assert (copied["value"], "no peer access" in str(copied["reason"])) == (None, True)


def test_a_link_between_two_cards_that_is_up_and_slow_is_named(monkeypatch, capsys):
    StandIn(*(Gpu(uuid=f"GPU-{number}") for number in range(4))).install(monkeypatch)
    slow = "GPU-2,GPU-3"
    pairs = []

    def checked(command, env, **options):
        seen = env["CUDA_VISIBLE_DEVICES"]
        if "-c" in command:
            pairs.append(seen)
            return SimpleNamespace(stdout="25.0\n" if seen == slow else "180.0\n", stderr="")
        line = card(seen[4:], 700)
        return SimpleNamespace(stdout=json.dumps(asdict(replace(line, node="n1"))))

    monkeypatch.setattr(check.identity, "resolve", lambda device: "cuda")
    monkeypatch.setattr(check.subprocess, "run", checked)
    assert check.run.callback("auto", None, None, True, True, False) == 1
    assert pairs == ["GPU-0,GPU-1", "GPU-1,GPU-2", slow, "GPU-3,GPU-0"]
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    low = {line["node"]: line["values"][check.COPIED]["state"] for line in lines}
    assert [node for node, state in low.items() if state == "low"] == ["n1 GPU-2"]


def test_copies_between_two_cards_are_timed_to_their_end(monkeypatch, capsys):
    made = torch.randn
    places = []

    def randn(*sides, dtype, device):
        places.append(str(device))
        return made(64, 64, dtype=dtype)

    def like(source, device):
        places.append(str(device))
        return source.clone()

    monkeypatch.setattr(node.torch, "randn", randn)
    monkeypatch.setattr(node.torch, "empty_like", like)

    def median(call, device, least):
        call()
        places.append(str(device))
        return 2e-6

    monkeypatch.setattr(node, "median_wall_s", median)
    node.tell_copies()
    assert places == ["cuda:1", "cuda:0", "cuda:0"], (
        "the source, the target, and which is waited for"
    )
    assert float(capsys.readouterr().out) == pytest.approx(2 * 64 * 64 / 2e-6 / 1e9)


def test_a_check_speaks_the_terminal_s_language(monkeypatch, capsys):
    values = {"memory_gb_s": CheckedValue(9.0, "GB/s")}
    values["bf16_tflop_s"] = CheckedValue(None, "TFLOP/s", {"no_gpu": {}})
    read = DeviceCheck("n", "d", "cpu", values, "unknown")
    judged = check.judged(read, {"memory_gb_s": check.Reference(18.0, "datasheet", 645.0)})
    monkeypatch.setenv("LC_ALL", "ko_KR.UTF-8")
    check_text.show(judged)
    shown = " ".join(capsys.readouterr().out.split())
    text = Texts("ko", "check")
    source = text("at_clock", source=text.name("checked_against", "datasheet"), clock=645.0)
    for words in (source, text.name("check_state", "low"), sentence("no_gpu", {}, "ko")):
        assert words in shown
    assert not re.search(r"low|datasheet|reference", shown)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("others", [None, 3.0, 86.5])
def test_a_check_beside_other_load_says_so_first(others, language, monkeypatch, capsys):
    monkeypatch.setenv("LC_ALL", language)
    values = {"other_processes_percent": CheckedValue(others, "%")}
    check_text.show(DeviceCheck("a", "b", "cpu", values, "unknown"))
    sentence = Texts(language, "check")("beside", share="86")

    assert (sentence[:12] in capsys.readouterr().out) is (others == 86.5)
