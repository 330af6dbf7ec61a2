"""The roofline's expectation against sums by hand, and what it says of memory and of bad input."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfulab.conventions.roofline import expect, expected
from mfulab.conventions.work import Operation, Work, count
from mfulab.schema.errors import ConfigurationError


def made(mode="training", **more):
    product = Operation("layer", "aten::mm", "forward", 2e12, 2e12, 2e12, 1e9, 0)
    thin = Operation("head", "aten::mm", "forward", 1e9, 1e9, 1e9, 4e9, 0)
    norm = Operation("norm", "aten::norm", "forward", 0, 0, 0, 0, 2e9)
    numbers = {"tokens": 10, "parameters": 1e9, "trainable": 1e9, "saved_elements": 1e8, "cache_elements": 3e8, **more}
    return Work(
        mode, batch_size=1, looked_up=0, unmultiplied=0, inactive=0, operations=(product, thin, norm), **numbers
    )


def test_each_operator_takes_the_longer_of_its_two_times():
    found = expected(made(), peak_flop_s=100e12, memory_byte_s=1e12, element_bytes=2)
    assert found.products_s == pytest.approx(2e12 / 100e12 + 4e9 * 2 / 1e12)
    assert found.others_s == pytest.approx(2e9 * 2 / 1e12)
    assert found.compute_bound_percent == pytest.approx(100 * 0.02 / 0.028)
    assert found.mfu_percent == pytest.approx(100 * 2.001e12 / 0.028 / 100e12)
    assert found.tokens_per_s == pytest.approx(10 / 0.028)


def test_training_in_16_bits_keeps_sixteen_bytes_a_parameter_and_its_activations():
    assert expected(made(), 1e15, 1e12, 2).memory_bytes == pytest.approx(16e9 + 2e8)
    assert expected(made("decoding"), 1e15, 1e12, 2).memory_bytes == pytest.approx(2e9 + 6e8)


def test_several_devices_divide_all_but_activations_and_cache():
    assert expected(made(), 1e15, 1e12, 2, devices=8).memory_bytes == pytest.approx(2e9 + 2e8)
    assert expected(made("decoding"), 1e15, 1e12, 2, devices=8).memory_bytes == pytest.approx(0.25e9 + 6e8)


@pytest.mark.parametrize(("capacity", "fits"), [(None, None), (16.2e9, True), (16.1e9, False)])
def test_it_fits_or_not_or_is_not_known(capacity, fits):
    assert expected(made(), 1e15, 1e12, 2, capacity).fits is fits


@given(st.floats(1e9, 1e18), st.floats(1e6, 1e15), st.sampled_from([0.5, 1, 2, 4, 8]))
def test_no_roofline_allows_more_than_the_peak(peak, bandwidth, element_bytes):
    found = expected(made(), peak, bandwidth, element_bytes)
    assert 0 < found.unfused_mfu_percent <= found.mfu_percent <= 100 + 1e-9
    assert 0 <= found.compute_bound_percent <= 100


def test_decoding_is_bound_by_memory_and_prefill_by_compute(monkeypatch):
    monkeypatch.setattr("mfulab.conventions.roofline.work_of", count)
    prefill, decoding = expect("gpt2", "NVIDIA H100 80GB HBM3", modes=("inference", "decoding"))
    assert prefill.compute_bound_percent > 50 > decoding.compute_bound_percent
    # A token reads every weight that it multiplies by, at least once.
    assert decoding.products_s > 124e6 * 2 / 3350e9 * 0.9


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"device": "L40"}, "precision=fp4"),
        ({"device": "Apple M4"}, "precision=fp4"),
        ({"device": "H100"}, "did you mean"),
        ({"batch_size": 0}, "batch_size=0: give 1 or more"),
        ({"devices": 0}, "devices=0: give 1 or more"),
        ({"modes": ("tuning",)}, "mode=tuning: unknown"),
        ({"model": "resnet18", "sequence_length": 8}, "takes no tokens"),
    ],
)
def test_a_mistake_is_one_message(words, message):
    asked = {"model": "gpt2", "device": "NVIDIA B200", "precision": "fp4", **words}
    with pytest.raises(ConfigurationError, match=message):
        expect(asked.pop("model"), asked.pop("device"), asked.pop("precision"), **asked)
