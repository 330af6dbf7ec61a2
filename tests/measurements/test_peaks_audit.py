"""The audit of other libraries' peaks: each mistake by its name, with stand-ins for what is not installed."""

import pytest

from mfulab.core.errors import UnsupportedError
from mfulab.device.other_peaks import LIBRARIES, Library
from mfulab.measurements.peaks_audit import PeaksAuditConfig, PeaksAuditRow
from mfulab.measurements.peaks_audit import measure as peaks_audit
from mfulab.measurements.peaks_audit.measure import measure


@pytest.fixture
def audited(tmp_path, monkeypatch):
    def rows(answers: dict[tuple[str, str], float], anything: float | None = None) -> dict:
        """Audits a library that gives `answers` by name and format, and `anything` for the rest."""
        library = Library(lambda name, sheet, precision: answers.get((name, precision), anything))
        monkeypatch.setitem(LIBRARIES, "lightning", library)
        monkeypatch.setattr(peaks_audit, "installed_version", lambda library: "1.0")
        found = measure(PeaksAuditConfig(library="lightning"), tmp_path).samples
        return {(row.device, row.precision): row for row in map(PeaksAuditRow.model_validate, found)}

    return rows


@pytest.mark.parametrize(
    ("name", "device", "precision", "theirs", "verdict", "explanation"),
    [
        ("NVIDIA L4", "L4", "bf16", 121, "agreed", None),
        ("NVIDIA L4", "L4", "bf16", 242, "sparse for dense", "2 times the dense peak"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB", "fp32", 156, "another format", "that of tf32"),
        ("NVIDIA A40", "A40", "bf16", 37.4, "another format", "that of fp32"),
        ("NVIDIA H100 PCIe", "H100 PCIe", "fp64", 25.6, "another format", "that of fp64 without tensor cores"),
        ("NVIDIA H200", "H200 SXM", "fp32", 33.5, "halved", "half of the dense peak"),
        ("NVIDIA L40S", "L40S", "bf16", 121, "another device", "that of L4"),
        ("NVIDIA L4", "L4", "memory", 3350, "another device", "that of H100 SXM5 80GB"),
        ("Tesla T4", "T4", "bf16", 65, "guessed", "neither the datasheet nor the architecture has bf16"),
        ("NVIDIA L4", "L4", "fp64", 15.1, "different", None),
    ],
)
def test_each_mistake_has_its_name(audited, name, device, precision, theirs, verdict, explanation):
    row = audited({(name, precision): theirs})[device, precision]
    assert (row.verdict, row.explanation or None) == (verdict, explanation)


def test_one_number_for_every_unknown_device_is_a_guess(audited):
    rows = audited({}, anything=312.0)
    assert rows["H100 SXM5 80GB", "bf16"].verdict == "guessed"
    assert rows["A100 SXM4 80GB", "bf16"].verdict == "agreed"


def test_a_device_without_an_answer_is_one_row(audited):
    rows = audited({("NVIDIA L4", "bf16"): 121})
    assert rows["H200 SXM", None].verdict == "missing"
    assert ("H200 SXM", "bf16") not in rows
    assert rows["L4", "fp8"].verdict == "missing"


def test_a_library_that_is_not_there_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr(peaks_audit, "installed_version", lambda library: None)
    with pytest.raises(UnsupportedError, match="library=lightning is not installed: pip install pytorch-lightning"):
        measure(PeaksAuditConfig(library="lightning"), tmp_path)


def test_torch_is_asked_by_its_own_lookup(tmp_path):
    samples = measure(PeaksAuditConfig(library="torch_inductor"), tmp_path).samples
    found = [PeaksAuditRow.model_validate(row) for row in samples]
    assert {row.device for row in found if row.verdict == "agreed"}, "some of its figures are the datasheets'"
    assert all(row.theirs is not None or row.verdict == "missing" for row in found)
