"""The step `count_flops`: its row, its operator table, and its layer table."""

import csv
import json
from pathlib import Path

import pytest
import yaml
from support.workflow_copy import ROOT

from mfulab.measurements.count_flops import CountFlopsConfig, FlopsRow
from mfulab.measurements.count_flops.measure import measure

CONFIGS = ROOT / "config" / "model"


def run(
    name: str, folder: Path, batch_size: int = 1, **overrides: object
) -> tuple[FlopsRow, list[dict]]:
    model = {**yaml.safe_load((CONFIGS / f"{name}.yaml").read_text()), **overrides}
    measured = measure(CountFlopsConfig(model=model, batch_size=batch_size), folder)
    return measured.row, list(measured.samples)


def test_gpt2_is_counted_to_the_operation(tmp_path):
    row, operators = run("gpt2", tmp_path)
    assert row.status == "ok"
    assert row.counted_on == "meta"
    assert row.sequence_length == 1024
    assert row.parameters == 124_439_808
    found = row.looked_up_parameters
    assert found == 1024 * 768, "positions: the tokens' table is the output layer too"
    # nanoGPT's transformer_sizing: matmuls and full attention.
    assert row.forward_flops == 291_648_307_200
    assert row.forward_flops + row.backward_flops == 874_944_921_600
    assert row.uncounted_operators is None
    attention = 2 * 2 * 12 * 1024 * 1024 * 768
    assert row.forward_flops - row.forward_causal_flops == attention / 2
    assert row.backward_flops - row.backward_causal_flops == attention
    assert row.executed_backward_flops - row.backward_flops == attention / 2
    # Each block is computed anew, up to its last product, whose output the backward pass does not
    # need.
    blocks = 12 * (2 * 12 * 768**2 * 1024) + attention
    last_products = 12 * 2 * 4 * 768**2 * 1024
    assert row.recomputed_flops == blocks - last_products
    assert row.key_value_cache_bytes == 2 * 12 * 1024 * 768 * 4
    assert {path.name for path in tmp_path.iterdir()} == {"layers.csv", "formulas.csv"}
    with (tmp_path / "formulas.csv").open() as file:
        assert {line["counted_flops"] for line in csv.DictReader(file)} == {"874944921600"}
    assert sum(line["flops"] for line in operators) == row.forward_flops + row.backward_flops


def test_operators_of_alike_intensity_add_up_to_the_pass(tmp_path):
    row, _ = run("digit_cnn", tmp_path)
    passes = json.loads(row.intensities)
    assert set(passes) == {"forward", "backward", "inference"}
    for name, flops, size in (
        ("forward", row.forward_flops, row.forward_bytes),
        ("backward", row.executed_backward_flops, row.backward_bytes),
    ):
        assert sum(each[0] for each in passes[name]) == flops
        assert sum(each[1] for each in passes[name] if each[0]) == size
        intensities = [each[0] / each[1] for each in passes[name]]
        assert len(set(intensities)) == len(intensities)


def test_layers_add_up(tmp_path):
    row, _ = run("resnet18", tmp_path, batch_size=2)
    with (tmp_path / "layers.csv").open() as file:
        layers = {line["layer"]: line for line in csv.DictReader(file)}
    assert int(layers[""]["forward_flops"]) == row.forward_flops
    assert int(layers[""]["backward_flops"]) == row.backward_flops
    assert float(layers[""]["share_percent"]) == 100
    parts = [layers[name] for name in ("resnet", "classifier")]
    assert sum(int(part["forward_flops"]) for part in parts) == row.forward_flops
    assert sum(int(part["backward_flops"]) for part in parts) == row.backward_flops


def test_a_model_without_blocks_has_no_recomputation(tmp_path):
    row, _ = run("linear_1024", tmp_path, batch_size=16)
    assert row.recomputed_flops is None
    assert row.key_value_cache_bytes is None
    assert row.checkpointed_activation_bytes is None
    assert row.forward_flops + row.backward_flops == 67_108_864


def test_a_wrong_input_shape_names_layer_shape_and_key(tmp_path):
    with pytest.raises(RuntimeError) as raised:
        run("simple_cnn", tmp_path, input_shape=[3, 100, 100])
    message = str(raised.value)
    assert "layer classifier" in message
    assert "[1, 3, 100, 100]" in message
    assert "model.input_shape" in message
