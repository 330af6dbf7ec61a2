"""docs/number.md: its functions are there, and its numbers follow from the recording."""

import csv
import json
import re
from importlib import import_module
from pathlib import Path

import pytest

from mfulab.mfu.utilization import of_peak, quotient_interval
from mfulab.timing.statistics import undisturbed

ROOT = Path(__file__).parents[1]
PAGE = " ".join((ROOT / "docs/number.md").read_text(encoding="utf-8").split())
FUNCTIONS = re.findall(r"\| \d+ \| `([\w.]+)` \|", PAGE)
RECORDING = ROOT / "results/reference/amd-epyc-2c"
STEP = "model=resnet18,workload=training,batch_size=8,precision=fp32,execution=eager"


def recorded(table: str, run: str) -> dict[str, str]:
    with (RECORDING / f"{table}.csv").open(newline="", encoding="utf-8") as file:
        return next(row for row in csv.DictReader(file) if row["run"] == run)


def test_ten_functions_are_named():
    assert len(FUNCTIONS) == len(set(FUNCTIONS)) == 10


@pytest.mark.parametrize("path", FUNCTIONS)
def test_a_function_on_the_way_is_there(path):
    module, _, name = path.rpartition(".")
    function = getattr(import_module(module), name)
    assert callable(function)
    assert function.__doc__


def test_the_numbers_are_those_of_the_recording():
    step = recorded("profile", STEP)
    count = recorded("flops", step["flops_run"])
    ceiling = recorded("ceilings", f"ceiling={step['ceiling']}")
    times = [float(time) for time in step["process_times_s"].strip("[]").split(",")]
    time_s = undisturbed(times)
    flops = int(count["forward_flops"]) + int(count["backward_flops"])
    peak = float(ceiling["measured_tflop_s"])
    assert time_s == pytest.approx(float(step["time_s"]), rel=1e-5)
    for number in (*times, flops, int(count["forward_flops"]), int(count["backward_flops"])):
        assert f"{number:,}" in PAGE
    told = (f"{time_s:.6f} s", f"{peak:.6f} TFLOP/s")
    told += (f"= {of_peak(flops, time_s, peak):.1f} %",)
    told += (f"**{float(step['utilization_percent']):.1f} %** busy",)
    interval = [float(step[name]) for name in ("time_s", "time_ci_low_s", "time_ci_high_s")]
    counters = json.loads(ceiling["counters"])
    ends = [counters[f"measured_ci_{end}_tflop_s"] for end in ("low", "high")]
    low, high = quotient_interval(
        of_peak(flops, time_s, peak), denominators=[tuple(interval), (peak, *ends)]
    )
    told += (f"known to ± {float(step['precision_percent']):.1f} %", f"{low:.1f} to {high:.1f} %")
    assert [each for each in told if each not in PAGE] == []


def test_the_readme_shows_a_recorded_row():
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    step = recorded("profile", STEP.replace("batch_size=8", "batch_size=4"))
    count = recorded("flops", step["flops_run"])
    flops = int(count["forward_flops"]) + int(count["backward_flops"])
    ceiling = recorded("ceilings", f"ceiling={step['ceiling']}")
    peaks = [float(ceiling[name]) for name in ("computed_tflop_s", "measured_tflop_s")]
    spec, mfu = (of_peak(flops, float(step["time_s"]), peak) for peak in peaks)
    assert f"device utilization {float(step['utilization_percent']):.1f} %" in readme
    assert f"time in matmuls {float(step['matmul_percent']):.1f} %" in readme
    assert f"MFU {mfu:.1f} %" in readme
    assert f"MFU: {spec:.0f} % of the spec peak, {mfu:.0f} % of the best measured" in readme
    assert f"of {1e3 * float(step['time_s']):.0f} ms per step" in readme
