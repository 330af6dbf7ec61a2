"""Every rung in CUDA C and Triton, compiled for each architecture: nothing spills, and the document's
table is what the machine code says."""

import importlib.util

import pytest
from support import compiled
from support.machine_code import needs_nvrtc
from support.shape_classes import kernel_classes, refused

TOLD = compiled.cells_of(compiled.DOCUMENT.read_text(encoding="utf-8"))
BY_DAY = ("sm_75", "sm_100a", "sm_120")  # the oldest, and those where rungs have spilled
CELLS = []
for _rung in compiled.RUNGS:
    for _arch in compiled.ARCHITECTURES:
        _is_by_day = _rung.startswith("cuda") and _arch in BY_DAY
        _marks = () if _is_by_day else (pytest.mark.slow,)
        if _rung != compiled.CHOSEN:
            CELLS.append(pytest.param(_rung, _arch, marks=_marks))


def test_the_table_has_every_rung_for_every_architecture():
    kinds = kernel_classes().items()
    rungs = {name for name, kind in kinds if kind.family in ("CUDA C", "Triton")}
    assert rungs == set(compiled.RUNGS)
    assert {*TOLD} == {(rung, arch) for rung in rungs for arch in compiled.ARCHITECTURES}


def test_no_cell_of_the_table_spills_and_every_rung_has_a_card():
    assert not [place for place, cell in TOLD.items() if "**" in cell]
    taken = {rung for (rung, _), cell in TOLD.items() if cell != compiled.NOT_TAKEN}
    assert taken == set(compiled.RUNGS)


@pytest.mark.parametrize(("rung", "arch"), CELLS)
def test_no_rung_spills_on_any_card_that_it_takes(rung, arch):
    needs_nvrtc()
    if rung.startswith("triton") and importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    needs = list(compiled.needs_of(rung, arch))
    assert [each for each in needs if each.local_bytes or each.registers > 255] == []
    if compiled.compilers() in compiled.DOCUMENT.read_text(encoding="utf-8"):
        assert TOLD[rung, arch] == compiled.cell_text(rung, needs), "python -m support.compiled"


@pytest.mark.slow
@pytest.mark.parametrize("arch", compiled.ARCHITECTURES)
def test_of_each_format_a_candidate_of_the_autotuned_rung_spills_nothing(arch):
    """Candidates are compiled from the smallest on, until one spills nothing."""
    pytest.importorskip("triton")
    kind = kernel_classes()[compiled.CHOSEN]
    with compiled.on_a_card(arch):
        taken = {name for name in kind.precisions if not refused(kind(name), compiled.ALIGNED)}
    kept = set()
    for name in taken:
        needs = compiled.needs_of(compiled.CHOSEN, arch, name)
        if any(not each.local_bytes for each in needs):
            kept.add(name)
    assert kept == taken
    assert {"fp32", "fp16"} <= taken
