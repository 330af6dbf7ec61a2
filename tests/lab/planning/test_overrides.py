"""Snakemake's --config as Hydra overrides."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from mfulab.core.errors import ConfigurationError
from mfulab.lab.planning.composition import complete
from mfulab.lab.planning.load import from_snakemake

values = st.recursive(
    st.integers() | st.booleans() | st.none(), lambda inner: st.lists(inner, max_size=3), max_leaves=5
)


@given(st.dictionaries(st.sampled_from(["model", "batch_size", "size", "seed"]), values))
def test_every_value_reads_the_same_in_hydra(config):
    parsed = OverridesParser.create().parse_overrides(from_snakemake(config))
    assert {override.key_or_group: override.value() for override in parsed} == config


def test_sweeps_pass_through_untouched():
    config = {"batch_size": "1,2,4", "kernel": "glob(numba_*)", "size": "choice(128,256)"}
    assert from_snakemake(config) == ["batch_size=1,2,4", "kernel=glob(numba_*)", "size=choice(128,256)"]


def test_dotted_keys_come_through_one_key():
    text = "kernel.block=[16,16] model._target_=my_module.build"
    assert from_snakemake({"overrides": text}) == ["kernel.block=[16,16]", "model._target_=my_module.build"]


def test_a_mapping_is_refused_with_the_way_to_write_it():
    with pytest.raises(ConfigurationError, match=r"overrides='timing\.KEY=VALUE"):
        from_snakemake({"timing": {"windows": 3}})


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
