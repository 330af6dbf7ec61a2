"""Quantised linear layers: outputs near those of fp32, bytes by hand, and what is refused."""

import pytest
import torch
from support.said import refused
from torch import nn

from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import ExecutionConfig, PrecisionConfig
from mfulab.measurements.profile_step import ProfileStepConfig
from mfulab.models.build import Batch
from mfulab.models.quantised import GROUP, QuantisedLinear, quantise, weight_bytes

FP32 = PrecisionConfig(name="fp32", dtype="float32")
IN, OUT = 64, 33  # of outputs no multiple of sixteen


class Model(nn.Module):
    """A table, and a linear layer that shares its weights, as language models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(OUT, IN)
        self.norm = nn.LayerNorm(IN)
        self.head = nn.Linear(IN, OUT)
        self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.table(tokens)))


def quantised(kind: str, **precision) -> tuple[nn.Module, dict[str, float], Batch]:
    torch.manual_seed(0)
    tokens = torch.randint(OUT, (2, 5))
    asked = FP32.model_copy(update=precision)
    dtype = getattr(torch, asked.dtype)
    model, told = quantise(
        Model().to(dtype),
        Batch(tokens, tokens),
        ExecutionConfig(name="e", quantisation=kind),
        asked,
    )
    return model, told, Batch(tokens, tokens)


@pytest.mark.parametrize(
    ("kind", "head_bytes", "error"),
    [
        ("dynamic_int8", IN * OUT + 4 * OUT, 0.03),
        ("static_int8", IN * OUT + 4 * OUT, 0.05),
        ("weight_int8", IN * OUT + 4 * OUT + 4 * OUT, 0.02),  # scales, bias
        ("weight_int4", IN * 48 // 2 + 2 * 4 * 48 * IN // GROUP + 4 * OUT, 0.2),
    ],
)
def test_each_kind_is_near_fp32_and_weighs_what_it_should(kind, head_bytes, error):
    model, told, batch = quantised(kind)
    assert isinstance(model.head, QuantisedLinear)
    assert 0 < told["output_error"] < error
    assert told["weight_bytes"] == head_bytes + 2 * 4 * IN  # the norm's; the table is looked up
    assert model(batch.inputs).shape == (2, 5, OUT)
    features = torch.randn(2, 5, IN)[:, -1:]  # the last token's alone, as generation takes them
    assert torch.allclose(model.head(features), model.head(features.clone()), atol=1e-5)
    assert weight_bytes(Model()) == 4 * (IN * OUT + OUT + 2 * IN)


def test_fewer_bits_are_further_off():
    errors = [quantised(kind)[1]["output_error"] for kind in ("weight_int8", "weight_int4")]
    assert errors[0] < errors[1]


def test_weights_alone_go_with_bf16():
    assert quantised("weight_int8", dtype="bfloat16")[1]["output_error"] < 0.05


@pytest.mark.parametrize(
    ("kind", "precision", "reason"),
    [("dynamic_int8", "bfloat16", "integer matmuls on a CPU start from fp32")],
)
def test_what_a_cpu_has_no_product_for(kind, precision, reason):
    with pytest.raises(UnsupportedError, match=reason):
        quantised(kind, dtype=precision)


def test_a_model_without_linear_layers_is_refused():
    batch = Batch(torch.randn(1, 3, 4, 4), torch.zeros(1))
    with refused(UnsupportedError, "quantised_no_linear", kind="weight_int8"):
        quantise(
            nn.Conv2d(3, 2, 1), batch, ExecutionConfig(name="e", quantisation="weight_int8"), FP32
        )


def test_training_is_refused_before_anything_runs():
    values = {
        "model": {"name": "m", "_target_": "torch.nn.Linear", "input_shape": [4]},
        "workload": {"name": "training"},
        "precision": {"name": "fp32", "dtype": "float32"},
        "execution": {"name": "e", "quantisation": "weight_int8"},
        "batch_size": 1,
    }
    with pytest.raises(
        ValueError, match="quantisation=weight_int8 with mode=training: only inference"
    ):
        ProfileStepConfig.model_validate(values)


def test_gpt2_s_transposed_layers_are_linear_ones():
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(0)
    layer, rows = Conv1D(32, 64), torch.randn(3, 64)
    model = nn.Sequential(layer)
    exact = model(rows).detach()
    model, told = quantise(
        model, Batch(rows, rows), ExecutionConfig(name="e", quantisation="weight_int8"), FP32
    )
    assert isinstance(model[0], QuantisedLinear)
    assert torch.allclose(model(rows), exact, atol=0.01)
    assert told["weight_bytes"] == 32 * 64 + 4 * 32 + 4 * 32
