"""A batch that does not fit is measured smaller, and the row of the one asked for says so."""

import sys
import types

import pytest
from support.said import numbers

from mfulab.core.files import write_json
from mfulab.core.language import verdicts
from mfulab.core.measurement import Measured
from mfulab.core.replicates import STANDS_IN
from mfulab.device.identity import hardware_slug
from mfulab.lab.planning import store
from mfulab.lab.planning.runs import Run
from mfulab.lab.runtime import budget, client, run
from mfulab.lab.tables.records import from_manifest
from mfulab.measurements.profile_step import ProfileRow

MODEL = {
    "name": "linear",
    "_target_": "torch.nn.Linear",
    "arguments": {"in_features": 8, "out_features": 8},
}
NAME = "model=linear,batch_size={},precision=fp32"


@pytest.fixture
def swept(tmp_path, monkeypatch):
    """Measures a batch as the workflow's client does, on a device that holds `fitting` samples;
    plans are `planned`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(budget, "read", lambda: None)
    hardware, tried = hardware_slug("cpu"), []

    def execute(command, environment, limit):
        monkeypatch.setattr(sys, "argv", [*command])
        try:
            run.main(sys.argv.pop(1))
        except SystemExit as end:
            return end.code
        return 0

    monkeypatch.setattr(client, "_execute", execute)

    def sweep(asked: int, fitting: int, planned: tuple[int, ...] = (), replicate: int = 1):
        def measure(config, folder):
            tried.append(config.batch_size)
            if config.batch_size > fitting:
                raise RuntimeError(
                    f"CUDA out of memory. Tried to allocate {config.batch_size} samples"
                )
            return Measured(ProfileRow.of(config, time_s=0.5))

        module = types.SimpleNamespace(measure=measure)
        monkeypatch.setitem(sys.modules, "mfulab.measurements.profile_step.measure", module)
        runs = []
        for size in (asked, *planned):
            name = NAME.format(size) + (f",replicate={replicate}" if replicate > 1 else "")
            place = f"results/{hardware}/profile_step/{name}"
            config = {
                "model": {**MODEL, "input_shape": [8]},
                "batch_size": size,
                "device": {"type": "cpu"},
            }
            config |= {
                "workload": {"name": "inference", "mode": "inference"},
                "replicate": replicate,
            }
            config |= {
                "precision": {"name": "fp32", "dtype": "float32"},
                "execution": {"name": "eager"},
            }
            write_json(tmp_path / place / "config.json", config)
            flops = f"results/count_flops/model=linear,batch_size={size}"
            runs.append(
                {"step": "profile_step", "run": name, "folder": place, "flops_folder": flops}
            )
        write_json(
            tmp_path / "plan.json", {"experiment": "mine", "hardware": hardware, "runs": runs}
        )
        status = client._measure(
            ["scripts/run.py", "profile_step", "--config", f"{runs[0]['folder']}/config.json"], {}
        )
        assert status == 0
        found = from_manifest(tmp_path / "plan.json", tmp_path).records
        return {row["batch_size"]: row for row in found["profile"]}, found["flops"], tried

    return sweep


def test_half_is_tried_until_a_batch_fits(swept):
    rows, counts, tried = swept(64, fitting=20)
    assert tried == [64, 32, 16]
    assert {size: row["status"] for size, row in rows.items()} == {
        64: "out_of_memory", 32: "out_of_memory", 16: "ok",
    }  # fmt: skip
    smaller = numbers(rows[64]["message"], "smaller_batch")
    assert (smaller["asked"], smaller["measured"]) == (64, 16)
    assert "RuntimeError: CUDA out" in verdicts.message(rows[64]["message"])
    found = (rows[16]["time_s"], rows[16]["run"], rows[16]["experiment"])
    assert found == (0.5, NAME.format(16), "mine")
    counted = {row["run"]: row["forward_flops"] for row in counts if row["status"] == "ok"}
    seen = counted[rows[16]["flops_run"]]
    assert seen == 2 * 16 * 8 * 8, "FLOPs are those of the batch that was measured"


def test_a_batch_that_fits_and_one_sample_that_does_not_are_tried_once(swept):
    assert swept(64, fitting=64)[2] == [64]
    rows, _, tried = swept(2, fitting=0)
    assert tried[1:] == [2, 1]
    assert {row["status"] for row in rows.values()} == {"out_of_memory"}


def test_half_that_is_planned_itself_is_not_measured_for_another(swept):
    rows, _, tried = swept(64, fitting=20, planned=(32,))
    assert tried == [64]
    assert not verdicts.message(rows[64]["message"]).startswith("batch_size")


def test_half_of_an_earlier_sweep_that_a_plan_takes_over_is_planned(swept, tmp_path):
    rows, _, tried = swept(64, fitting=40)
    assert (list(rows), tried) == ([64, 32], [64, 32])
    folder = f"{hardware_slug('cpu')}/profile_step/{NAME.format(32)}"
    store.write_run(Run("profile_step", NAME.format(32), folder, "{}"), tmp_path / "results")
    assert swept(64, fitting=40, planned=(32,))[2][2:] == [64]


def test_a_later_process_halves_nothing(swept):
    assert swept(64, fitting=20, replicate=2)[2] == [64]


def test_half_of_an_earlier_sweep_is_not_shown_once_the_batch_fits(swept):
    swept(64, fitting=40)
    rows, _, tried = swept(64, fitting=64)
    assert list(rows) == [64]
    assert tried == [64, 32, 64]


def test_a_budget_that_is_spent_leaves_the_smaller_batch_out(swept, monkeypatch):
    spent = types.SimpleNamespace(
        why_not=lambda folder: "", limit_s=lambda folder: 9.0, note=lambda *_: None, left_s=lambda: 1.0,
        predicted_s=lambda folder: 2.0, elapsed_s=lambda: 0.0,
    )  # fmt: skip
    monkeypatch.setattr(budget, "read", lambda: spent)
    assert swept(64, fitting=20)[2] == [64]
    monkeypatch.setattr(spent, "left_s", lambda: 3.0)
    assert swept(64, fitting=20)[2][1:] == [64, 32, 16]


def test_a_run_without_a_batch_is_not_halved(tmp_path):
    path = tmp_path / "kernel=torch,size=64/config.json"
    write_json(path, {})
    assert not run._halve("bench_matmul", path)
    assert not list(tmp_path.rglob(STANDS_IN))
