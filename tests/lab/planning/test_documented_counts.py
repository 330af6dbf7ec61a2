"""The documented size of experiments on a GPU: what planning gives for each."""

import re
from collections import Counter

import pytest
from support.slow import few
from support.workflow_copy import ROOT

from mfulab.lab.planning.composition import compose_experiments
from mfulab.lab.planning.runs import plan

HARDWARE = "nvidia-h100-80gb-hbm3"
STEPS = ("profile_step", "bench_matmul", "ceilings", "count_flops")
LINE = re.compile(r"^\| `(\w+)` \|" + r" (\d*) ?\|" * len(STEPS) + r" [\d.]+ \|$", re.MULTILINE)
SIZES = {
    name: tuple(int(count or 0) for count in counts)
    for name, *counts in LINE.findall((ROOT / "docs/gpu.md").read_text(encoding="utf-8"))
}


def test_the_table_is_found():
    assert len(SIZES) >= 12


@pytest.mark.parametrize(
    "experiment", few(sorted(SIZES, key=lambda name: (name != "decoding", name)))
)
def test_an_experiment_has_as_many_runs_as_its_line_says(experiment):
    [composition] = compose_experiments(
        ["device=cuda", f"experiment={experiment}"], ROOT / "config"
    )
    planned = plan(composition, HARDWARE, "cuda", {}, 85e9)
    runs = Counter(run.step for run in planned.runs if "replicate=" not in run.name)
    assert tuple(runs[step] for step in STEPS) == SIZES[experiment]
