import pytest
import torch

from mfulab.device.compute import allow_tf32, matmuls_in
from mfulab.kernels.torch_matmul import round_to_tf32

SWITCHES = {
    "newer": lambda: torch.backends.cuda.matmul.fp32_precision == "tf32",
    "older": lambda: torch.backends.cuda.matmul.allow_tf32,
    "oldest": lambda: torch.get_float32_matmul_precision() == "high",
}


@pytest.fixture(autouse=True)
def as_before():
    yield
    allow_tf32(False)


@pytest.mark.parametrize("switch", [allow_tf32, round_to_tf32])
def test_all_of_torch_s_switches_say_the_same(switch):
    for allowed in (True, False, True):
        switch(allowed)
        assert {name: read() for name, read in SWITCHES.items()} == dict.fromkeys(SWITCHES, allowed)


def test_a_switch_that_somebody_set_by_its_newer_name_alone_is_set_right():
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    with pytest.raises(RuntimeError):
        SWITCHES["older"]()
    round_to_tf32(False)
    assert not SWITCHES["older"]()


def test_a_ceiling_s_products_leave_the_switches_as_they_were():
    allow_tf32(True)
    with matmuls_in("fp32"):
        assert not SWITCHES["newer"]()
    assert SWITCHES["older"]()
