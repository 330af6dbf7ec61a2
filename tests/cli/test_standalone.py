"""`mfulab run STEP`: Hydra's flags, help, units, and one table of a sweep."""

import io

import pytest
from rich.console import Console

from mfulab.cli import standalone
from mfulab.planning.overrides import complete


@pytest.mark.parametrize(
    ("words", "flags", "overrides"),
    [
        (["--cfg", "job", "model=gpt2"], ["--cfg", "job"], ["model=gpt2"]),
        (["model=gpt2", "--info", "defaults"], ["--info", "defaults"], ["model=gpt2"]),
        (["--info", "model=gpt2"], ["--info"], ["model=gpt2"]),
        (["--json", "model=gpt2"], ["--json"], ["model=gpt2"]),
        (["-m", "size=1,2", "--row"], ["-m", "--row"], ["size=1,2"]),
    ],
)
def test_hydras_flags_keep_their_values(words, flags, overrides):
    assert standalone.split(words) == (flags, overrides)


def test_one_step_is_a_list_of_one():
    assert complete(["steps=profile_step"]) == ["steps=[profile_step]"]
    assert complete(["steps=profile_step,ceilings"]) == ["steps=[profile_step,ceilings]"]
    assert complete(["steps=[ceilings]"]) == ["steps=[ceilings]"]


@pytest.mark.parametrize("step", ["profile_step", "count_flops", "bench_matmul"])
def test_help_says_what_the_script_does_and_its_choices(step):
    told = standalone.help_of(step)
    assert "--cfg job" in told
    assert "--row" in told
    groups = {"profile_step": "resnet18", "count_flops": "resnet18", "bench_matmul": "numpy"}
    assert groups[step] in told


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("forward_flops", 3_628_146_688, "3.63 GFLOP"),
        ("forward_macs", 1_814_073_344, "1.81 GMAC"),
        ("time_s", 0.0123, "12.3 ms"),
        ("mfu_percent", 41.2, "41 %"),
        ("tflop_s", 0.5, "500 GFLOP/s"),
        ("parameters", 11_689_512, "11,689,512"),
        ("memory_bytes", 2.5e8, "250 MB"),
        ("samples_per_s", 163.2, "163 /s"),
        ("idle_ms", 2.5, "2.50 ms"),
        ("model", "gpt2", "gpt2"),
    ],
)
def test_cells_have_units(name, value, shown):
    assert standalone.with_unit(name, value) == shown


def printed(rows, width):
    console = Console(file=io.StringIO(), width=width)
    console.print(standalone.table_of("bench_matmul", rows, width))
    return console.file.getvalue().strip().splitlines()


def test_a_sweep_is_one_table_with_a_line_a_run():
    rows = [{"kernel": "torch", "size": size, "precision": "fp32", "status": "ok", "time_s": 1e-3} for size in (1, 2)]
    heads, first, second, alike = printed(rows, 100)
    assert heads.split() == ["size"]
    assert (first.strip(), second.strip()) == ("1", "2")
    assert "kernel torch" in alike
    assert "time_s 1.00 ms" in alike


def test_columns_that_do_not_fit_are_named_not_squeezed():
    rows = [
        {
            "kernel": name,
            "size": 256,
            "precision": "fp32",
            "status": "ok",
            "time_s": time,
            "tflop_s": time,
            "flops": time,
        }
        for name, time in (("numba_cpu_blocked", 0.1), ("torch", 0.2))
    ]
    heads, *rest = printed(rows, 20)
    assert heads.split() == ["kernel"]
    assert "in row.csv of each run: time_s, tflop_s" in " ".join(line.strip() for line in rest)
    assert len(printed(rows[:1], 200)) == 2
