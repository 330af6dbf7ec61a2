"""Predicted peaks beside what torch's CPU allocator had alive."""

import fits_on_cpu
import pytest

import mfulab


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_the_peak_is_what_the_allocator_had_alive(mode):
    got = fits_on_cpu.measured("simple_cnn", 4, "fp32", None, mode == "training")
    told = mfulab.fits(
        "simple_cnn", 4, device=fits_on_cpu.DEVICE, optimizer="adam", precision="fp32", mode=mode
    )
    assert told.peak_bytes == pytest.approx(got, rel=0.01)
