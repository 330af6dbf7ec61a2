from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfulab.kernels import occupancy
from mfulab.kernels.base import Launch, Resources
from mfulab.kernels.occupancy import Multiprocessor, occupancy_percent

H100 = Multiprocessor(threads=2048, blocks=32, registers=65536, shared_memory_bytes=233472)


# Expected values are those of NVIDIA's occupancy calculator for compute capability 9.0.
@pytest.mark.parametrize(
    ("registers", "static", "dynamic", "block", "percent"),
    [
        (32, 0, 0, (32, 32), 100.0),
        (128, 16640, 0, (256,), 25.0),
        (168, 0, 200 << 10, (384,), 18.75),
        (33, 0, 0, (1024,), 50.0),
        (16, 0, 0, (32,), 50.0),
        (255, 0, 0, (256,), 12.5),
        (32, 49152, 0, (128,), 25.0),
        (
            144,
            0,
            0,
            (64,),
            18.75,
        ),  # three warps in each of four parts, where the SM's registers would hold fourteen
        (200, 0, 0, (96,), 9.375),
    ],
)
def test_known_occupancies(registers, static, dynamic, block, percent):
    assert (
        occupancy_percent(Resources(registers, static, 0), Launch(block, (1,), dynamic), H100)
        == percent
    )


# A T4: NVIDIA's calculator for 7.5 gives the four blocks that 64 KB hold, where a reserved KB each
# would leave three.
def test_before_ampere_no_kilobyte_of_a_block_is_the_system_s(monkeypatch):
    facts = {"max_threads_per_multi_processor": 1024, "shared_memory_per_multiprocessor": 64 << 10}
    for major, minor, percent in ((7, 5, 100.0), (7, 0, 100.0), (8, 0, 75.0), (9, 0, 75.0)):
        device = SimpleNamespace(major=major, minor=minor, **facts)
        monkeypatch.setattr(occupancy, "properties", lambda device=device: device)
        assert occupancy_percent(Resources(32, 16 << 10, 0), Launch((256,), (1,))) == percent


def test_unknown_registers_give_no_occupancy():
    assert occupancy_percent(Resources(), Launch((256,), (1,)), H100) is None


@given(st.integers(16, 255), st.integers(0, 48 << 10), st.integers(1, 32))
def test_occupancy_is_a_share_and_falls_with_registers(registers, shared, warps):
    launch = Launch((32 * warps,), (1,))
    more = occupancy_percent(Resources(registers, shared, 0), launch, H100)
    fewer = occupancy_percent(Resources(registers - 1, shared, 0), launch, H100)
    assert 0 <= more <= fewer <= 100
