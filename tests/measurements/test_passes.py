"""Measurements after a step's timing: errors against float64, first losses, recompilations."""

import json
import types
from pathlib import Path

import pytest
import torch
from support.said import refused

from mfulab.core.errors import UnsupportedError
from mfulab.core.language import verdicts
from mfulab.measurements.profile_step import ProfileRow, ProfileStepConfig, passes
from mfulab.measurements.profile_step import measure as profile_step
from mfulab.models.second_moments import zeros_percent
from mfulab.models.step import Step, make
from mfulab.timing.instruments import Instruments

CPU = torch.device("cpu")
BRANCHING = {
    "name": "branching",
    "_target_": "mfulab.models.control_flow.Branching",
    "input_shape": [8],
}


def config(**changes) -> ProfileStepConfig:
    values = {
        "model": {**BRANCHING, "arguments": {"width": 8}},
        "batch_size": 2,
        "workload": {"name": "inference", "mode": "inference"},
        "precision": {"name": "fp32", "dtype": "float32"},
        "execution": {"name": "eager"},
        "device": {"type": "cpu", "threads": 1},
    }
    return ProfileStepConfig.model_validate({**values, **changes})


def filled(**changes) -> ProfileRow:
    run = passes.Run(
        config(**changes), Instruments(CPU, Path()), ProfileRow(time_s=1.0), None, None, None
    )
    for each in (passes.recompilations, passes.losses, passes.exact_output):
        if each.applies(run):
            each.fill(run)
    return run.row


def test_nothing_is_filled_that_nobody_asked_for():
    assert filled() == ProfileRow(time_s=1.0)


def test_an_output_is_held_against_the_same_weights_in_float64():
    row = filled(profile={"exact": True})
    assert 1e-9 < row.relative_error < 1e-6
    assert (row.status, row.time_s) == ("ok", 1.0)


@pytest.mark.parametrize(
    "other", [torch.randn(2, 8), torch.full((2, 8), float("nan"))], ids=["random", "nan"]
)
def test_an_output_of_other_weights_is_incorrect_and_has_no_time(other, monkeypatch):
    monkeypatch.setattr(passes.steps, "make", lambda *_: Step(lambda: other, float, ""))
    row = filled(profile={"exact": True})
    assert (row.status, row.time_s) == ("incorrect", None)
    assert "is accepted" in verdicts.message(row.message)


def zeros(optimizer, mode="training"):
    """A run of which one step was made, after the count of zeros, if that applies."""
    workload = {"name": "w", "mode": mode}
    if optimizer is not None:
        workload["optimizer"] = optimizer
    asked = config(workload=workload)
    step = make(asked, CPU)
    step.call()
    run = passes.Run(asked, Instruments(CPU, Path()), ProfileRow(), step, None, None)
    if passes.second_moments.applies(run):
        passes.second_moments.fill(run)
    return run


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_zeros_in_the_state_of_the_step_s_own_optimiser_are_counted(optimizer):
    run = zeros(optimizer)
    reading = run.readings["second_moment_zeros_percent"]
    assert reading.value == zeros_percent(run.step.optimizer)
    assert 0 <= reading.value <= 100
    moments = [state["exp_avg_sq"] for state in run.step.optimizer.state.values()]
    for values in moments:
        values.zero_()
    passes.second_moments.fill(run)
    assert run.readings["second_moment_zeros_percent"].value == 100


def test_a_state_without_second_moments_is_empty_for_a_reason():
    reading = zeros("sgd").readings["second_moment_zeros_percent"]
    assert (reading.value, reading.reason.key) == (None, "no_second_moments")


def test_inference_has_no_state_to_count():
    assert zeros(None, mode="inference").readings == {}


def test_losses_begin_with_the_seed_s_weights_and_fall():
    losses = json.loads(filled(workload={"name": "training"}, profile={"losses": 5}).losses)
    assert losses == sorted(losses, reverse=True)
    again = json.loads(filled(workload={"name": "training"}, profile={"losses": 5}).losses)
    assert losses == again
    assert len(set(losses)) == 5


def test_losses_are_held_against_the_same_weights_in_float64():
    row = filled(workload={"name": "training"}, profile={"losses": 5, "exact": True})
    losses, exact = json.loads(row.losses), json.loads(row.exact_losses)
    assert losses == pytest.approx(exact, rel=1e-5)
    assert losses != exact
    assert filled(workload={"name": "training"}, profile={"losses": 5}).exact_losses is None


@pytest.mark.parametrize(
    "workload", [{"teacher": "online"}, {"input": "host"}, {"input": "host", "loader_epoch": 1}]
)
def test_losses_in_float64_have_the_same_teacher_and_batches(workload):
    row = filled(workload={"name": "t", **workload}, profile={"losses": 3, "exact": True})
    assert json.loads(row.losses) == pytest.approx(json.loads(row.exact_losses), rel=1e-5)


def test_an_output_of_batches_from_the_host_is_held_against_the_fetched_one():
    row = filled(
        workload={"name": "i", "mode": "inference", "input": "host"}, profile={"exact": True}
    )
    assert (row.status, row.relative_error < 1e-6) == ("ok", True)


def test_token_ids_stay_integers_in_float64():
    language = {
        "name": "lstm",
        "_target_": "mfulab.models.recurrent.LSTMLanguageModel",
        "task": "language_modeling",
    }
    arguments = {"vocabulary_size": 11, "hidden_size": 8, "layers": 1}
    model = {**language, "arguments": arguments, "vocabulary_size": 11, "sequence_length": 5}
    row = filled(model=model, profile={"exact": True})
    assert (row.status, row.relative_error < 1e-6) == ("ok", True)


def test_a_captured_step_has_no_first_losses():
    with refused(UnsupportedError, "graph_hides_losses"):
        passes.require(config(execution={"name": "g", "mode": "cuda_graph"}, profile={"losses": 3}))


def test_varied_calls_are_executed_as_the_step_is(monkeypatch):
    seen, forward = [], torch.nn.Conv2d.forward

    def noted(self, inputs):
        seen.append(
            (
                torch.is_autocast_enabled("cpu"),
                inputs.is_contiguous(memory_format=torch.channels_last),
            )
        )
        return forward(self, inputs)

    monkeypatch.setattr(torch.nn.Conv2d, "forward", noted)
    images = {
        "name": "cnn",
        "_target_": "mfulab.models.convolutional.ThreeConvolutions",
        "input_shape": [3, 4, 4],
    }
    filled(
        model=images,
        precision={"name": "amp_bf16", "dtype": "bfloat16", "autocast": True},
        execution={"name": "channels_last", "channels_last": True},
        profile={"varied_batches": 2},
    )
    assert seen == [(True, True)] * 6


def without_a_backend(monkeypatch):
    """Compiles with a fake backend: graphs are decided before a backend sees them, and the true one
    takes seconds."""
    compiled = torch.compile
    monkeypatch.setattr(
        torch,
        "compile",
        lambda model, mode, dynamic: compiled(model, backend="eager", dynamic=dynamic),
    )


@pytest.mark.parametrize(
    ("branch", "dynamic", "graphs", "recompilations"),
    [
        ("nothing", None, 2, 1),  # any shape, once one has changed
        ("nothing", False, 4, 3),
        ("nothing", True, 1, 0),
        ("cond", True, 1, 0),
    ],
)
def test_recompilations_are_counted(branch, dynamic, graphs, recompilations, monkeypatch):
    without_a_backend(monkeypatch)
    row = filled(
        model={**BRANCHING, "arguments": {"width": 8, "branch": branch}},
        execution={"name": "compile", "mode": "compile", "dynamic": dynamic},
        profile={"varied_batches": 4},
        seed=1,
    )
    assert (row.varied_calls, row.recompilations) == (4, recompilations)
    assert (row.graphs, row.graph_breaks) == (graphs, 0)
    assert row.varied_s > 0


def test_a_branch_on_data_breaks_the_graph(monkeypatch):
    without_a_backend(monkeypatch)
    row = filled(
        model={**BRANCHING, "arguments": {"width": 8, "branch": "data"}},
        execution={"name": "compile", "mode": "compile"},
        profile={"varied_batches": 4},
    )
    assert row.graph_breaks >= 1
    assert row.graphs >= 2


def test_eager_compiles_nothing():
    row = filled(profile={"varied_batches": 3})
    assert (row.varied_calls, row.graphs, row.recompilations) == (3, None, None)
    with refused(UnsupportedError, "varied_needs_eager", execution="trace"):
        passes.require(
            config(execution={"name": "trace", "mode": "trace"}, profile={"varied_batches": 3})
        )


def test_a_missing_framework_is_unsupported_with_how_to_install_it(tmp_path, monkeypatch):
    from mfulab.models import frameworks

    def missing(name: str) -> types.ModuleType:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(frameworks.importlib, "import_module", missing)
    with refused(UnsupportedError, "framework_not_installed", mode="jax", package="jax"):
        profile_step.measure(config(execution={"name": "jax", "mode": "jax"}), tmp_path)


def test_a_pass_fills_columns_of_the_row_and_each_is_named_once():
    columns = [column for each in passes.PASSES for column in each.fills]
    assert set(columns) <= set(ProfileRow.model_fields)
    shared = {column for column in columns if columns.count(column) > 1}
    assert shared == {"status", "message", *passes.no_trace.fills}
