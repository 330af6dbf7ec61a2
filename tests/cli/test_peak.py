"""`mfulab peak` of known, unknown and ambiguous devices, which waits for no torch."""

import json
import re
import subprocess
import sys

import pytest

import mfulab
from mfulab.__main__ import main
from mfulab.core.language import Texts
from mfulab.core.language.quantities import ABSENT
from mfulab.core.terminal import Terminal, table
from mfulab.peaks.facts import datasheets
from mfulab.peaks.names import LISTS, variants


def test_all_formats_of_a_device_with_source(capsys):
    assert main(["peak", "NVIDIA H100 80GB HBM3"]) == 0
    printed = capsys.readouterr().out
    for expected in (
        "989.4",
        "1830",
        "494.7",
        "3350 GB/s",
        "NVIDIA H100 datasheet",
        "checked: ",
        "glennklockwood.com",
    ):
        assert expected in printed


def test_one_format(capsys):
    assert main(["peak", "10de:2329", "bf16"]) == 0
    printed = capsys.readouterr().out
    assert "148" in printed
    assert "limited for export" in printed
    assert "fp8" not in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["H10O"], "there is no datasheet of 'H10O' here"),
        (
            ["H100", "--json"],
            "did you mean H100 NVL (835.3 TFLOP/s in bf16), H100 PCIe (756.4 TFLOP/s in bf16) or",
        ),
        (["10de:25b6", "--json"], "18.12 TFLOP/s in bf16): name one of these\n"),
        ([""], "there is no datasheet of '' here"),
        (["NVIDIA L40S", "fp12"], "precision=fp12: unknown. Did you mean fp32?"),
    ],
)
def test_a_mistake_is_one_message_with_the_choices(capsys, words, message):
    assert main(["peak", *words]) == 2
    said = capsys.readouterr()
    assert message in said.err
    if "--json" not in words:
        assert not said.out


@pytest.mark.parametrize(
    ("asked", "first", "cells"),
    [
        ("H100", "H100 SXM5 80GB", {"989.4", "835.3", "756.4", "3,350"}),
        ("MI300", "Instinct MI300X", {"1,307", "980.6"}),
        ("NVIDIA GeForce RTX 3050", "GeForce RTX 3050 8GB", {"18.2", "13.55"}),
        ("10de:25b6", "A2", {"18.12", "17.97"}),
    ],
)
def test_a_name_of_several_products_shows_them_side_by_side(capsys, asked, first, cells):
    assert main(["peak", asked, "--language", "en"]) == 0
    printed = capsys.readouterr().out
    assert cells <= set(printed.split())
    assert f'mfulab peak "{first}"' in printed
    assert main(["peak", first]) == 0


def test_a_format_that_no_variant_has_is_a_dash_and_not_empty(capsys):
    assert main(["peak", "A100", "fp8", "--language", "en"]) == 0
    printed = capsys.readouterr().out
    assert printed.split("fp8")[1].count(ABSENT) >= len(variants("A100"))


def test_an_architecture_or_a_misspelt_name_is_no_short_name():
    assert variants("H10O") == variants("") == variants("Radeon H100") == ()
    assert [sheet.device for sheet in variants("NVIDIA L40S")] == ["L40S"]


def test_a_device_without_any_figure_says_why(capsys):
    assert main(["peak", "Apple M4"]) == 1
    assert "prints no FLOP/s" in " ".join(capsys.readouterr().out.split())


def test_the_reason_for_an_unknown_format_names_the_same_formats_as_json(capsys):
    asked = ["peak", "H100 PCIe", "fp4"]
    assert main(asked) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert main([*asked, "--json"]) == 1
    because = json.loads(capsys.readouterr().out)["answer"]["reason"]["no_peak"]["because"]
    formats = because.rpartition("it has ")[2].split(", ")
    assert "fp8" in formats
    for name in formats:
        assert name in printed


def test_the_device_at_hand(capsys):
    assert main(["peak"]) in (0, 1)
    assert "fp32" in capsys.readouterr().out


def test_the_library_function():
    assert mfulab.peak("NVIDIA H200", "bf16").spec == pytest.approx(989.4, rel=1e-3)
    assert mfulab.peak("NVIDIA H200", "bf16").memory_gb_s == 4800


def test_it_waits_for_no_torch():
    code = "import sys; from mfulab.__main__ import main; main(['peak', 'NVIDIA L40S']); print('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "False"


def test_all_products_are_listed_by_the_command_that_a_refusal_names(capsys):
    assert main(["peak", "cuda:0"]) == 2
    assert LISTS in capsys.readouterr().err
    assert main(LISTS.split()[1:]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed == [sheet.device for sheet in datasheets()]


def test_a_peak_and_a_mistake_are_told_in_the_terminals_language(capsys, monkeypatch):
    assert main(["peak", "10de:2329", "bf16", "--language", "ko"]) == 0
    assert Texts("ko", "peak")("dense") in capsys.readouterr().out
    monkeypatch.setenv("LC_ALL", "ko_KR.UTF-8")
    mistakes = (
        ["peak", "no such device"],
        ["peak", "--no-such-option"],
        ["bits", "0x7fc00000", "fp32"],
        ["run", "profile_step", "model=resnet19"],
        ["trace", "no-such-file.json"],
    )
    for words in mistakes:
        assert main(words) == 2
        told = capsys.readouterr().err
        assert re.search("[가-힣]", told.splitlines()[-1]), told


@pytest.mark.parametrize("width", range(50, 80))
def test_a_table_of_wide_letters_breaks_its_last_column_and_cuts_nothing(width, capsys):
    reason = "AMD EPYC: 이 CPU에는 fp16 연산 유닛(amx_fp16 / avx512_fp16)이 없음: 변환해서 계산"
    shown = table(["형식"], ["밀집 TFLOP/s", "클록, MHz"], ["계산 근거"])
    shown.add_row("fp16", "알 수 없음", "", reason)
    Terminal(width=width).print(shown)
    printed = capsys.readouterr().out
    assert "…" not in printed
    for word in ("변환해서", "계산"):
        assert word in "".join(printed.split())
