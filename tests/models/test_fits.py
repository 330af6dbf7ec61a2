"""Whether a step fits: the peak beside recorded ones, the largest batch, and what is not known."""

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.slow import few
from support.workflow_copy import ROOT

import mfulab
from mfulab.cli.main import main
from mfulab.core.errors import ConfigurationError
from mfulab.models.fits import largest_batch

H100 = "NVIDIA H100 80GB HBM3"
LINEAR = {"name": "wide", "_target_": "torch.nn.Linear", "input_shape": [4096]}
LINEAR["arguments"] = {"in_features": 4096, "out_features": 4096}


def recorded(model, batch_size):
    """Bytes of the allocator's peak in the recorded training step."""
    with (ROOT / "results/reference/nvidia-h100-80gb-hbm3/profile.csv").open() as file:
        start = f"model={model},workload=training,batch_size={batch_size},"
        (row,) = (row for row in csv.DictReader(file) if row["run"].startswith(start))
    return float(row["memory_bytes"]), int(row["sequence_length"]) if row[
        "sequence_length"
    ] else None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "batch_size"),
    [
        ("resnet50", 64),
        ("gpt2", 8),
        ("gpt2", 64),
        ("vit_b_16", 64),
        ("llama_3_2_1b", 1),
    ],
)
def test_the_peak_is_within_a_twentieth_of_the_allocators_on_an_h100(model, batch_size):
    measured, length = recorded(model, batch_size)
    told = mfulab.fits(model, batch_size, optimizer="adam", device=H100, sequence_length=length)
    assert told.peak_bytes == pytest.approx(measured, rel=0.05)
    assert told.fits
    assert told.largest_batch >= batch_size


def test_parts_of_a_linear_layer_are_those_that_a_hand_counts():
    told = mfulab.fits(LINEAR, 8, device=H100, precision="fp32")
    weights = 4 * (4096 * 4096 + 4096)
    found = (told.parameters_bytes, told.gradients_bytes, told.optimizer_bytes)
    assert found == (weights, weights, 2 * weights)
    assert told.inputs_bytes == 8 * 4096 * 4
    assert (told.workspace_bytes, told.capacity_bytes) == (2 * 32 << 20, 80 * 10**9)
    autocast = mfulab.fits(LINEAR, 8, device=H100, precision="amp_bf16")
    seen = (autocast.parameters_bytes, autocast.optimizer_bytes, autocast.inputs_bytes)
    assert seen == (weights, 2 * weights, 8 * 4096 * 4)
    only_forward = mfulab.fits(LINEAR, 8, device=H100, precision="fp32", mode="inference")
    assert (
        only_forward.gradients_bytes,
        only_forward.optimizer_bytes,
        only_forward.activations_bytes,
    ) == (0, 0, 0)
    assert only_forward.peak_bytes < told.peak_bytes


def test_an_output_that_a_loop_still_names_is_alive_in_the_backward_pass():
    wide = {
        **LINEAR,
        "input_shape": [64],
        "arguments": {"in_features": 64, "out_features": 200_000},
    }
    told = mfulab.fits(wide, 64, device=H100, optimizer="sgd")
    logits = 64 * 200_000 * 2
    beside = told.parameters_bytes + told.inputs_bytes + told.workspace_bytes
    assert told.peak_bytes - beside >= 4 * logits  # with the softmax, and the gradients of both


def test_a_workspace_that_was_never_measured_is_not_known():
    told = mfulab.fits(LINEAR, 8, device="Instinct MI300X")
    assert told.workspace_bytes is None
    assert "The libraries' workspace is not known here." in told.says


@given(
    st.integers(0, 10**6),
    st.integers(1, 10**6),
    st.integers(0, 10**6),
    st.integers(1, 10**9),
    st.integers(1, 512),
)
def test_the_largest_batch_fits_and_the_next_does_not(fixed, slope, floor, capacity, first):
    def peak(size):
        return max(fixed + slope * size, floor)

    found = largest_batch(peak, capacity, first)
    assert found == 0 or peak(found) <= capacity
    assert found + 1 >= 1 << 20 or peak(found + 1) > capacity


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"device": "H100"},
            r"device=H100: choose one of H100 SXM5 80GB \(80 GB\), .*H100 NVL \(94 GB\)$",
        ),
        ({"device": "a100"}, r"device=a100: choose one of A100.* \(40 GB\).* \(80 GB\)"),
        ({"device": "H500"}, "device=H500: there is no datasheet of 'H500' here"),
        ({"device": ""}, "device=: there is no datasheet of '' here"),
        ({"precision": "fp7"}, "precision=fp7.*amp_bf16"),
        ({"optimizer": "lion"}, "optimizer=lion.*sgd"),
        ({"mode": "dreaming"}, "mode=dreaming"),
        ({"batch_size": 0}, "batch_size=0: give 1 or more"),
        ({"sequence_length": 7}, "sequence_length=7: model=wide takes no tokens"),
    ],
)
def test_a_mistake_names_the_key_and_the_choices(changed, said):
    with pytest.raises(ConfigurationError, match=said):
        mfulab.fits(LINEAR, **{"device": H100, **changed})


def test_a_choice_that_a_mistake_names_is_taken():
    assert mfulab.fits(LINEAR, device="H100 SXM5 80GB") == mfulab.fits(LINEAR, device=H100)


def test_the_command_says_what_fits(capsys):
    assert main(["fits", "torch.nn.Linear", "input_shape=[64]", "arguments.in_features=64", "arguments.out_features=64",
                 "--batch-size", "4", "--device", H100]) == 0  # fmt: skip
    said = capsys.readouterr().out
    setting = "training, bf16, AdamW, batch\u00a04"
    assert said.startswith(f"Linear, {setting}: peak 67.")
    assert "largest batch: " in said
    big = ["arguments.in_features=200000", "arguments.out_features=200000"]
    options = ["fits", "torch.nn.Linear", "input_shape=[200000]", *big, "--json", "--device", H100]
    assert main(options) == 1
    assert '"largest_batch": 0' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "is_more"),
    few(
        [
            ("resnet18 --mode inference", True),
            ("resnet18 --batch-size 8", False),
            ("gpt2 --batch-size 8", True),
        ],
        1,
    ),
)
def test_printed_parts_explain_the_peak(words, is_more, capsys):
    """Where the peak is above the parts, the rest is a part of its own; else the parts are not all
    there at once."""
    assert main(["fits", *words.split(), "--device", H100]) == 0
    printed = capsys.readouterr().out
    assert ("\n  in passing " in printed) is is_more
    assert ("less than the sum" in printed) is not is_more


def test_an_image_model_takes_no_length(capsys):
    assert main(["flops", "resnet18", "--sequence-length", "10"]) == 2
    assert "model=resnet18 takes no tokens" in capsys.readouterr().err
