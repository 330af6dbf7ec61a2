"""`mfulab explain`: what it prints, and one message for what it cannot answer."""

import json
import re

import pytest
from rich.cells import cell_len

from mfulab.cli.explain import _read
from mfulab.cli.main import main
from mfulab.core.language import LANGUAGES, Texts
from mfulab.mfu.conventions import CONVENTIONS, OURS, POSSIBLE


def words(**changed):
    asked = {
        "model": "gpt2",
        "device": "NVIDIA L40S",
        "precision": "bf16",
        "tokens_per_s": 200_000,
        **changed,
    }
    return ["explain", *(f"{key}={value}" for key, value in asked.items() if value is not None)]


def test_a_speed_by_every_convention(capsys):
    assert main(words()) == 0
    printed = capsys.readouterr().out
    assert "gpt2 on L40S: 47." in printed
    assert "causal half" in printed


@pytest.mark.parametrize("text", ["2e5", "2E+5", "+200000.", "2_000e2", ".2e6", "200_000"])
def test_a_speed_in_any_notation(text):
    assert _read(
        ["model=gpt2", f"tokens_per_s={text}", "devices=1e1", "model.arguments={resid_pdrop: 1e-1}"]
    ) == (
        {"model": "gpt2", "tokens_per_s": 200_000, "devices": 10},
        {"arguments": {"resid_pdrop": 0.1}},
    )


def test_a_reported_number_is_found(capsys):
    assert main(words(reported=23.6)) == 0
    said = capsys.readouterr().out
    assert "Within 0.3 points, 23.6 % is:" in said
    assert re.search(r"Tried: [1-9]\d* combinations", said)


def test_a_number_that_nothing_gives(capsys):
    assert main(words(reported=0.1)) == 1
    said = capsys.readouterr().out
    assert "No convention and no peak here gives 0.1 %" in said
    assert re.search(r"Tried: \d{3,} combinations", said)


@pytest.mark.parametrize(
    ("factor", "devices", "expected"),
    [
        (2, 1, "÷ 2"),
        (4, 1, "÷ 4"),
        (8, 1, "÷ 8"),
        (16, 1, "÷ 16"),
        (1 / 4, 1, "× 4"),
        (1 / 8, 1, "× 8"),
        (32, 32, "÷ 32"),
        (1 / 2, 1, "sparse"),
        (362.05 / 91.6, 1, "fp32"),
    ],
)
def test_forgotten_devices_and_wrong_peaks_are_found(factor, devices, expected, capsys):
    speed = {"devices": devices, "tokens_per_s": 200_000 * devices}
    assert main([*words(**speed), "--json"]) == 0
    ours = json.loads(capsys.readouterr().out)["ours"]["mfu_percent"]
    assert main([*words(**speed, reported=round(factor * ours, 2)), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert expected in answer["matches"][0]["denominator"]
    assert answer["tried"] > 10
    assert answer["tolerance"] == pytest.approx(max(0.3, 0.006 * factor * ours), abs=0.05)
    assert answer["may_be_chance"] == (answer["chance_percent"] >= 10)


@pytest.mark.parametrize(
    "changed", [{"reported": 23.6}, {"tokens_per_s": None}, {"device": "NVIDIA H100 80GB HBM3"}]
)
def test_every_line_fits_eighty_columns_and_what_goes_on_is_indented(changed, capsys):
    assert main(words(**changed)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "tokens" not in {line.split()[0] for line in lines if line[:1].strip()}


def test_a_model_of_ones_own(capsys):
    own = {
        "model": None,
        "model._target_": "torch.nn.Linear",
        "model.arguments": "{in_features: 64, out_features: 64}",
        "model.input_shape": "[64]",
        "tokens_per_s": None,
        "samples_per_s": 1e6,
    }
    assert main(words(**own)) == 0
    assert "own on L40S" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tokens": 3}, "key=tokens: unknown. Did you mean tokens_per_s?"),
        ({"device": None}, "device: missing"),
        ({"model": None}, "model: missing"),
        ({"batch_size": 2.5}, "batch_size=2.5: give a whole number"),
        ({"batch_size": ".nan"}, "batch_size=.nan: give a whole number"),
        ({"model.arguments": "[1"}, "[1: not YAML (line 2: "),
        ({"tokens_per_s": "many"}, "tokens_per_s=many: give a number"),
        ({"tokens_per_s": ".inf"}, "tokens_per_s=.inf: give a number from 1e-30 to 1e+30"),
        ({"reported": ".nan"}, "reported=nan: give an MFU in percent"),
        ({"peak_tflop_s": ".nan"}, "peak_tflop_s=nan: give a dense peak above 0"),
        ({"model.name.x": 3}, "model.name.x: model.name is 'gpt2', which holds no keys"),
        ({"device": "H100"}, "did you mean H100 NVL (835.3 TFLOP/s in bf16), H100 PCIe"),
    ],
)
def test_a_mistake_is_one_message(capsys, changed, message):
    assert main(words(**changed)) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert not said.out


def test_without_a_speed_it_says_what_the_roofline_allows(capsys):
    assert main(words(tokens_per_s=None)) == 0
    printed = capsys.readouterr().out
    for expected in ("training", "prefill", "decoding", "kept", "at best"):
        assert expected in printed


def test_without_a_speed_several_devices_share_the_memory(capsys):
    assert main(words(tokens_per_s=None, devices=8)) == 0
    printed = capsys.readouterr().out
    assert "gpt2 on each of 8 NVIDIA L40S in bf16" in printed
    assert "Memory: weights, gradients and optimiser state are fully sharded" in printed


def test_a_reported_number_needs_a_speed(capsys):
    assert main(words(tokens_per_s=None, reported=40)) == 2
    assert "reported: needs a speed" in capsys.readouterr().err


@pytest.mark.parametrize(("tokens_per_s", "is_told"), [(200_000, False), (2e9, True)])
def test_a_speed_that_cannot_be_is_named(tokens_per_s, is_told, capsys):
    assert main(words(tokens_per_s=tokens_per_s)) == 0
    assert ("Above 100 %: the speed" in capsys.readouterr().out) is is_told


def without_hangul(lines):
    """Lines in which no Korean stands, though they say more than names and numbers."""
    left = []
    for line in lines:
        words = re.sub(r"mfulab|NeMo|PaLM|torchtitan|nanoGPT|MFU|dense|[a-z]*\d[\w.]*", "", line)
        if re.search("[A-Za-z]{4}", words) and not re.search("[가-힣]", words):
            left.append(line)
    return left


@pytest.mark.parametrize("changed", [{"reported": 23.6}, {"tokens_per_s": None, "devices": 2}])
def test_an_explanation_is_in_the_terminals_language_and_as_narrow(changed, capsys, monkeypatch):
    assert main(words(**changed)) == 0
    in_english = capsys.readouterr().out
    monkeypatch.setenv("LC_ALL", "ko_KR.UTF-8")
    assert main(words(**changed)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert without_hangul(lines) == []
    assert max(map(cell_len, lines)) <= 80
    numbers = re.findall(r"[-+]?\d+\.\d+", in_english)
    assert sorted(re.findall(r"[-+]?\d+\.\d+", "\n".join(lines))) == sorted(numbers)


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_choice_is_told_in_words(language):
    text = Texts(language)
    told = [*POSSIBLE, "peak"]
    for choice, values in POSSIBLE.items():
        for value in values:
            if value not in (False, True, getattr(OURS, choice)):
                told.append(f"{choice}={value}")
    for choice in told:
        words = text.name("choice", choice)
        assert not re.search("[_=]", words)
        assert language == "en" or re.search("[가-힣]", words)
    assert set(text.words("convention")) <= {one.name for one in CONVENTIONS}


@pytest.mark.parametrize("changed", [{}, {"tokens_per_s": None}])
def test_a_device_that_could_be_several_is_told_in_any_language(changed, capsys, monkeypatch):
    monkeypatch.setenv("LC_ALL", "ko_KR.UTF-8")
    assert main(words(device="H100", **changed)) == 2
    told = capsys.readouterr().err
    assert "H100 NVL" in told
    assert without_hangul(told.splitlines()) == []
    assert ("peak_tflop_s" in told) is (not changed)


@pytest.mark.parametrize(
    "given",
    [
        ["model=gpt2"],
        ["device=L40S"],
        ["model=gpt2", "device=L40S", "reported=40"],
        ["model"],
        ["model=gpt2", "device=L40S", "time_s=soon"],
        ["model=gpt2", "device=L40S", "batch_size=2.5"],
        ["model=gpt2", "device=L40S", "time_s=1e40"],
    ],
)
def test_a_mistake_is_told_in_the_terminals_language(given, capsys, monkeypatch):
    monkeypatch.setenv("LC_ALL", "ko_KR.UTF-8")
    assert main(["explain", *given]) == 2
    assert without_hangul(capsys.readouterr().err.splitlines()) == []
