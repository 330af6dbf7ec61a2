"""What a recorded number rests on: digests that formatting leaves alone."""

import re

import pytest
import restamp
from support.workflow_copy import ROOT

from mfulab.lab.planning import foundations
from mfulab.lab.planning.sources import PACKAGE, run_sources


def sources(**edited):
    files = ("kernels/base.py", "timing/windows.py", "flops/count.py", "lab/planning/costs.py")
    files += (
        "measurements/bench_matmul/__init__.py",
        "device/identity.py",
        "device/samplers/series.py",
        "device/vendors/amd.py",
        "tracing/tiles.py",
    )
    return {PACKAGE / file: edited.get(file, "0") for file in files}


@pytest.mark.parametrize(
    ("file", "parts"),
    [
        ("kernels/base.py", ["kernels"]),
        ("timing/windows.py", ["timing"]),
        ("flops/count.py", ["counting"]),
        ("device/samplers/series.py", ["devices"]),
        ("device/vendors/amd.py", ["devices"]),
        ("tracing/tiles.py", ["tracing"]),
        ("device/identity.py", []),
        ("lab/planning/costs.py", []),
        ("measurements/bench_matmul/__init__.py", []),
    ],
)
def test_a_change_ages_the_part_that_it_lies_in_and_no_other(file, parts):
    before = foundations.digests_of(sources())
    after = foundations.digests_of(sources(**{file: "1"}))
    assert foundations.changed(before, after) == parts


def test_a_matmul_rests_on_its_kernel_and_on_no_model():
    found = foundations.foundations("bench_matmul,mfulab.kernels.cuda_wide.CudaWide", "nvidia-h200")
    assert {"kernels", "timing", "devices", "measuring"} <= found.keys()
    assert "models" not in found
    assert foundations.foundations("bench_matmul,mfulab.kernels.gone.Gone", "nvidia-h200") == {}


@pytest.mark.parametrize(
    ("hardware", "own"),
    [
        ("nvidia-h200", "nvidia"),
        ("tesla-t4", "nvidia"),
        ("amd-instinct-mi300x-oam", "amd"),
        ("apple-m2-gpu", "apple"),
        ("", "amd apple nvidia"),
    ],
)
def test_a_vendor_s_module_ages_its_own_cards_alone(hardware, own):
    kernel = "mfulab.kernels.triton_plain.TritonPlain"
    files = run_sources("bench_matmul", kernel, hardware)
    found = {file.stem for file in files if file.parent.name == "vendors"}
    assert found & {"amd", "apple", "nvidia"} == set(own.split())


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_digests_of_a_commit_are_made_by_today_s_rules(monkeypatch):
    monkeypatch.chdir(ROOT)
    name = "count_flops,torch.nn.Linear"
    found = restamp.at("HEAD", [name], "amd-epyc-2c")
    assert set(found[name]) == set(foundations.foundations(name, "amd-epyc-2c"))
    assert all(re.fullmatch("[0-9a-f]{16}", digest) for digest in found[name].values())
