"""Snakemake's --config as Hydra overrides."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from mfulab.lab.planning.composition import complete
from mfulab.lab.planning.load import overrides_of
from mfulab.lab.planning.overrides import from_snakemake

values = st.recursive(
    st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["width", "layers", "bias"]), values))
def test_every_value_reads_the_same_in_hydra(arguments):
    config = {"model": {"arguments": arguments}} if arguments else {}
    parsed = OverridesParser.create().parse_overrides(from_snakemake(config))
    read = {override.key_or_group.split(".")[-1]: override.value() for override in parsed}
    assert read == arguments


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (
            {"batch_size": "1,2,4", "size": "choice(128,256)"},
            ["batch_size=1,2,4", "size=choice(128,256)"],
        ),
        ({"kernel": "glob(numba_*)"}, ["kernel=glob(numba_*)"]),
        ({"overrides": "kernel.block=[16,16] size=64"}, ["kernel.block=[16,16]", "size=64"]),
        (
            {"timing": {"windows": 3, "patience_s": None}},
            ["timing.windows=3", "timing.patience_s=null"],
        ),
        (
            {"model": {"_target_": "a.b", "input_shape": [3, 4]}},
            ["model._target_=a.b", "model.input_shape=[3,4]"],
        ),
        ({"model": {"arguments": {"layers": [2, 2]}}}, ["model.arguments.layers=[2,2]"]),
        ({"device": {"peak_tflop_s": {"bf16": 500}}}, ["device.peak_tflop_s.bf16=500"]),
        ({"model": ["resnet18", "gpt2"]}, ["model=resnet18,gpt2"]),
        ({"batch_size": [1, 2]}, ["batch_size=1,2"]),
        ({"timing": {"windows": [3, 9]}}, ["timing.windows=3,9"]),
        ({"steps": ["profile_step"]}, ["steps=[profile_step]"]),
        ({"kernel": {"block": [[16, 16], [32, 8]]}}, ["kernel.block=[16,16],[32,8]"]),
        (
            {"first": [{"model": "gpt2", "batch_size": [8, 16]}]},
            ["first=[{model:gpt2,batch_size:[8,16]}]"],
        ),
        (
            {"exclude": [{"model": "gpt2", "because": "it's slow, here"}]},
            ["exclude=[{model:gpt2,because:'it\\'s slow, here'}]"],
        ),
    ],
)
def test_sweeps_stay_as_typed_lists_are_sweeps_and_mappings_hold_nested_keys(given_, expected):
    overrides = from_snakemake(given_)
    assert overrides == expected
    OverridesParser.create().parse_overrides(overrides)


def test_of_a_deployed_config_what_differs_counts_and_what_was_typed():
    shipped = {"defaults": ["keys"], "batch_size": 8, "timing": {"windows": None, "patience_s": 1}}
    changed = {**shipped, "timing": {"windows": 9, "patience_s": 1}, "model": "gpt2"}
    assert from_snakemake(changed, shipped) == ["timing.windows=9", "model=gpt2"]
    typed = {"batch_size": 8, "of_another_module": 3}
    expected = ["timing.windows=9", "model=gpt2", "batch_size=8"]
    assert from_snakemake(changed, shipped, typed) == expected


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (["model._target_=a.b"], ["model=own", "model._target_=a.b"]),
        (["model=own", "model._target_=a.b"], ["model=own", "model._target_=a.b"]),
        (["model.arguments.width=3"], ["++model.arguments.width=3"]),
        (["+model.arguments.width=3"], ["+model.arguments.width=3"]),
        (["batch_size=3"], ["batch_size=3"]),
    ],
)
def test_what_goes_without_saying_is_added(given_, expected):
    assert complete(given_) == expected


@pytest.mark.parametrize(
    ("config", "added"),
    [
        ({"report.text": "kernels"}, ["experiment=recorded"]),
        ({"overrides": "report.text=lab"}, ["experiment=recorded"]),
        ({"report.text": "lab", "experiment": "seminar"}, []),
        ({"experiment": "seminar"}, []),
        ({}, []),
    ],
)
def test_slides_are_of_recorded_rows_unless_an_experiment_is_named(config, added):
    assert [each for each in overrides_of(config) if each == "experiment=recorded"] == added
