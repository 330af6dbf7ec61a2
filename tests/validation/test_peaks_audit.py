"""The audit of other libraries' peaks: each mistake by its name, with stand-ins."""

import peaks_audit
import pytest
from peaks_audit import LIBRARIES, Library, audit


def audited(answers, anything=None):
    """Audits a library that gives `answers` by name and format, and `anything` for the rest."""
    figures = audit(
        Library(lambda name, sheet, precision: answers.get((name, precision), anything))
    )
    return {(figure.device, figure.precision): figure for figure in figures}


@pytest.mark.parametrize(
    ("name", "device", "precision", "theirs", "verdict", "explanation"),
    [
        ("NVIDIA L4", "L4", "bf16", 121, "agreed", None),
        ("NVIDIA L4", "L4", "bf16", 242, "sparse for dense", "2 times the dense peak"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB", "fp32", 156, "another format", "that of tf32"),
        ("NVIDIA A40", "A40", "bf16", 37.4, "another format", "that of fp32"),
        (
            "NVIDIA H100 PCIe",
            "H100 PCIe",
            "fp64",
            25.6,
            "another format",
            "that of fp64 without tensor cores",
        ),
        ("NVIDIA H200", "H200 SXM", "fp32", 33.5, "halved", "half of the dense peak"),
        ("NVIDIA L40S", "L40S", "bf16", 121, "another device", "that of L4"),
        ("NVIDIA L4", "L4", "memory", 3350, "another device", "that of H100 SXM5 80GB"),
        (
            "Tesla T4",
            "T4",
            "bf16",
            65,
            "guessed",
            "neither the datasheet nor the architecture has bf16",
        ),
        ("NVIDIA L4", "L4", "fp64", 15.1, "different", None),
    ],
)
def test_each_mistake_has_its_name(name, device, precision, theirs, verdict, explanation):
    row = audited({(name, precision): theirs})[device, precision]
    assert (row.verdict, row.explanation or None) == (verdict, explanation)


def test_one_number_for_every_unknown_device_is_a_guess():
    rows = audited({}, anything=312.0)
    assert rows["H100 SXM5 80GB", "bf16"].verdict == "guessed"
    assert rows["A100 SXM4 80GB", "bf16"].verdict == "agreed"


def test_a_device_without_an_answer_is_one_row():
    rows = audited({("NVIDIA L4", "bf16"): 121})
    assert rows["H200 SXM", ""].verdict == "missing"
    assert ("H200 SXM", "bf16") not in rows
    assert rows["L4", "fp8"].verdict == "missing"


def test_a_library_that_is_not_there_says_how_to_install_it(monkeypatch, capsys):
    monkeypatch.setattr(peaks_audit, "installed_version", lambda library: None)
    monkeypatch.setattr("sys.argv", ["peaks_audit.py", "--library", "lightning"])
    peaks_audit.main()
    assert capsys.readouterr().out == "lightning: not installed: pip install pytorch-lightning\n"


def test_torch_is_asked_by_its_own_lookup():
    figures = audit(LIBRARIES["torch_inductor"])
    assert {figure.device for figure in figures if figure.verdict == "agreed"}, (
        "some of its figures are the datasheets'"
    )
    assert all(figure.theirs is not None or figure.verdict == "missing" for figure in figures)
