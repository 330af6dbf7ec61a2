"""Bytes of operators in traces by hand, and a reason where none are known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfulab.core.said import Said
from mfulab.flops.traced import _RESULT_KINDS, traced_bytes

HALF, SINGLE, LONG = "c10::BFloat16", "float", "long int"


@pytest.mark.parametrize(
    ("name", "shapes", "types", "values", "size"),
    [
        ("aten::add", [[4, 8], [4, 8], []], [HALF, HALF, "Scalar"], (), 3 * 32 * 2),
        ("aten::add_", [[4, 8], [8], []], [HALF, HALF, "Scalar"], (), (32 + 8 + 32) * 2),
        ("aten::mul", [[4, 1, 8], [3, 1]], [HALF, SINGLE], (), 32 * 2 + 3 * 4 + 96 * 4),
        ("aten::mul", [[4, 8], []], [SINGLE, "double"], ("", ""), 2 * 32 * 4),
        ("aten::eq", [[4, 8], []], [LONG, "Scalar"], (), 32 * 8 + 32),
        ("aten::gelu", [[4, 8], []], [HALF, ""], (), 2 * 32 * 2),
        ("aten::layer_norm", [[4, 8], [], [8], [8], [], []], [HALF, "ScalarList", HALF, HALF], (), (64 + 16) * 2),
        ("aten::native_layer_norm_backward", [[4, 8], [4, 8], [], [4, 1], [4, 1], [8], [8], []],
         [SINGLE, SINGLE, "", SINGLE, SINGLE, SINGLE, SINGLE, ""], (), (3 * 32 + 2 * 4 + 2 * 8) * 4),
        ("aten::_softmax", [[4, 8], [], []], [SINGLE, "Scalar", "Scalar"], (), 2 * 32 * 4),
        ("aten::sum", [[4, 8], []], [SINGLE, ""], (), 32 * 4),
        ("aten::copy_", [[4, 8], [4, 8], []], [HALF, SINGLE, "Scalar"], (), 32 * (2 + 4)),
        ("aten::to", [[4, 8], [], []], [SINGLE, "Scalar", "Scalar"], ("", "15", "False"), 32 * (4 + 2)),
        ("aten::fill_", [[4, 8], []], [SINGLE, "Scalar"], (), 32 * 4),
        ("aten::embedding", [[1000, 16], [4, 8], []], [HALF, LONG, "Scalar"], (), 32 * 8 + 2 * 32 * 16 * 2),
        ("aten::index_select", [[10, 16], [], [4]], [HALF, "Scalar", LONG], ("", "1", ""), 4 * 8 + 2 * 10 * 4 * 2),
        ("triton_poi_fused_add_0", [[4, 8], [4, 8], []], [SINGLE, HALF, "Scalar"], ("", "", "32"), 32 * (4 + 2)),
    ],
)  # fmt: skip
def test_bytes_by_hand(name, shapes, types, values, size):
    assert traced_bytes(name, shapes, types, values) == size


@pytest.mark.parametrize(
    ("name", "shapes", "types", "values", "reason"),
    [
        ("aten::add", [], [], (), "no_shapes"),
        ("aten::add", [[], []], ["", ""], (), "no_shapes"),
        ("aten::cat", [[[4, 8], [4, 8]], []], ["TensorList", "Scalar"], (), "no_types"),
        ("aten::add", [["x"], [1]], [SINGLE, SINGLE], (), "no_types"),
        ("aten::to", [[4, 8]], [SINGLE], (), "no_argument_values"),
        ("aten::index_select", [[10, 16], [4]], [HALF, LONG], ("", "7"), "no_argument_values"),
        ("mine::op", [[4, 8]], [SINGLE], (), "no_traffic"),
    ],
)
def test_what_a_record_does_not_tell_has_its_reason(name, shapes, types, values, reason):
    found = traced_bytes(name, shapes, types, values)
    assert isinstance(found, Said)
    assert found.key == reason


sides = st.lists(st.integers(0, 64) | st.text(max_size=2), max_size=4)


@given(
    st.sampled_from([f"aten::{name}" for name in _RESULT_KINDS]),
    st.lists(sides | st.just([[2, 3]]), max_size=4),
    st.lists(st.sampled_from([HALF, SINGLE, LONG, "bool", "Scalar", "TensorList", ""]), max_size=4),
    st.lists(st.sampled_from(["", "0", "1", "6", "15", "99", "x"]), max_size=3),
)
def test_any_record_gives_bytes_or_a_reason(name, shapes, types, values):
    found = traced_bytes(name, shapes, types, values)
    assert isinstance(found, Said) or found >= 0
