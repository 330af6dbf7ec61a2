"""Other counters: what explains their numbers, and each tool on a model known by hand."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch
from support.models import read
from support.said import refused

from mfulab.core.errors import UnsupportedError
from mfulab.core.said import Said, of_cell
from mfulab.flops.sharded import pretended_ranks
from mfulab.measurements.compare_counters import CompareCountersConfig, CounterRow
from mfulab.measurements.compare_counters.measure import count_by, explain, kinds_of_layers, measure
from mfulab.models.counted import count_model

KINDS = {"Linear": 1000, "attention": 300, "Conv2d": 50}


def run(name: str, counter: str, folder: Path, **options: int) -> CounterRow:
    config = CompareCountersConfig(
        model=read(name), batch_size=options.pop("batch_size", 1), counter=counter, **options
    )
    row = measure(config, folder).row
    assert isinstance(row, CounterRow)
    return row


def test_the_same_number_needs_no_explanation():
    assert explain(1350, KINDS, 0).said == Said("counts_the_same")


def test_the_fewest_kinds_that_explain_the_number_are_named():
    found = explain(1000, KINDS, 1)
    assert dict(found.left_out) == {"attention": 300, "Conv2d": 50}
    assert found.other_flops == 0
    found = explain(1057, KINDS, 1)
    assert dict(found.left_out) == {"attention": 300}
    assert found.other_flops == 7
    left_out = Said("kind_of_layer", {"kind": "attention", "flops": 300})
    assert found.said.numbers == {
        "first": Said("leaves_out", {"kinds": left_out}),
        "second": Said("counts_elementwise", {"flops": 7}),
    }


def test_a_kind_that_is_counted_twice_is_named():
    found = explain(2050, KINDS, 1)
    assert (dict(found.left_out), dict(found.twice)) == ({"attention": 300}, {"Linear": 1000})
    assert [part.key for part in found.said.numbers.values()] == ["leaves_out", "counts_twice"]


PAIRS = {"packed": 256 * 32, "flex": 256 * 32, "two_dimensional": 256**2, "window": 256 * 32}


@pytest.mark.parametrize("form", PAIRS)
def test_forms_of_attention_by_hand(form):
    counted = count_model(read(f"attention_{form}"), 1)
    operations = counted.count.operations
    forward, backward = operations.sum("forward"), operations.sum("backward")
    by_hand = 2 * 256 * 4 * 256**2 + 4 * PAIRS[form] * 256 + 2 * 256 * 10
    assert (forward.flops, forward.bounds, counted.means) == (by_hand, 0, "meta")
    assert backward.flops == 2 * by_hand - 2 * 256 * 3 * 256**2, "the input needs no gradient"
    assert not operations.uncounted


def test_a_rank_of_a_sharded_layer_counts_its_own_half_and_torch_both(tmp_path):
    with pretended_ranks(2):
        row = run("tensor_parallel", "torch", tmp_path)
    assert row.reference_flops == 2 * 2048 * (512 + 10) // 2
    assert row.deviation_percent == 100
    assert of_cell(row.explanation).key == "counts_twice"


def test_what_cannot_be_explained_is_not():
    found = explain(1200, KINDS, 1)
    assert not found.holds
    assert found.said == Said("unexplained_count")
    assert not explain(2000, KINDS, 1).holds


def test_kinds_tell_attention_from_its_projections():
    counted = count_model(read("gpt2"), 1, 128, mode="inference")
    kinds = kinds_of_layers(counted.model, counted.count.operations)
    assert kinds == {
        "Conv1D": 128 * 12 * 24 * 768**2,
        "attention": 12 * 4 * 128**2 * 768,
        "Linear": 128 * 2 * 768 * 50257,
    }


def test_attention_on_a_cpu_is_told_where_torchs_own_counter_leaves_it_out(tmp_path):
    row = run("gpt2", "torch", tmp_path, sequence_length=128)
    attention = 12 * 4 * 128**2 * 768
    explained = {attention: "leaves_out", 0: "counts_the_same"}  # from torch 2.15 on it is counted
    assert of_cell(row.explanation).key == explained[row.reference_flops - row.flops]
    assert row.deviation_percent == pytest.approx(100 * (row.flops / row.reference_flops - 1))
    assert row.version


def test_torchs_own_counter_leaves_out_recurrent_layers_on_a_cpu(tmp_path):
    assert "LSTM" in run("lstm", "torch", tmp_path).explanation


@pytest.mark.parametrize("counter", ["fvcore", "calflops", "ptflops", "thop"])
def test_a_tool_counts_a_linear_layer_as_twice_its_macs(counter, tmp_path):
    pytest.importorskip(counter, reason=f"{counter} is not installed: pip install '.[counters]'")
    row = run("linear_1024", counter, tmp_path, batch_size=4)
    assert row.flops == pytest.approx(4 * 2 * 1024**2, rel=0.002)
    assert (
        row.flops
        == row.printed
        * {"FLOP": 1, "MAC": 2, "MAC, called FLOP": 2, "MAC a sample": 8}[row.printed_unit]
    )


def test_a_tool_that_is_not_installed_is_unsupported(tmp_path, monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("mfulab.measurements.compare_counters.measure.version", missing)
    with pytest.raises(UnsupportedError, match="pip install thop"):
        run("linear_1024", "thop", tmp_path)


def test_a_tool_that_fails_is_unsupported_and_says_why(tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("cannot trace")

    monkeypatch.setattr("mfulab.measurements.compare_counters.measure.count_by", fail)
    with refused(
        UnsupportedError, "counter_cannot_count", model="linear_1024", error="cannot trace"
    ):
        run("linear_1024", "torch", tmp_path)


def test_a_tool_that_finds_no_memory_is_not_unsupported(tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("mfulab.measurements.compare_counters.measure.count_by", fail)
    with pytest.raises(RuntimeError, match="allocate memory"):
        run("linear_1024", "torch", tmp_path)


def test_the_profiler_counts_products_of_shapes_that_it_saw():
    layer = torch.nn.Linear(8, 4)
    counted = count_by("torch_profiler", layer, torch.randn(3, 8))
    assert (counted.printed, counted.unit, counted.flops) == (2 * 3 * 8 * 4, "FLOP", 2 * 3 * 8 * 4)
