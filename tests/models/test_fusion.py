"""Layer norm and GELU in several ways: the same values, and what each refuses."""

import pytest
import torch
from support.said import refused

from mfulab.core.errors import UnsupportedError
from mfulab.models import fusion

INPUTS = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", [fusion.HandNormGelu, fusion.InPlaceNormGelu, fusion.Halves])
def test_every_way_gives_the_library_s_values(kind):
    before = INPUTS.clone()
    with torch.no_grad():
        found, expected = kind(16)(INPUTS), fusion.LibraryNormGelu(16)(INPUTS)
    assert torch.allclose(found, expected, atol=1e-5)
    assert torch.equal(INPUTS, before)


@pytest.mark.parametrize("kind", [fusion.LibraryNormGelu, fusion.HandNormGelu])
def test_torchscript_takes_them(kind):
    assert torch.allclose(torch.jit.script(kind(16))(INPUTS), kind(16)(INPUTS), atol=1e-6)


def test_in_place_is_refused_where_a_backward_pass_follows():
    with refused(UnsupportedError, "in_place_overwrites"):
        fusion.InPlaceNormGelu(16)(INPUTS)


def test_two_streams_need_a_gpu():
    with refused(UnsupportedError, "two_streams_need_nvidia"):
        fusion.Halves(16, streams=2)(INPUTS)


@pytest.mark.gpu
def test_two_streams_give_the_same_values():
    inputs = INPUTS.cuda()
    one, two = (fusion.Halves(16, streams).cuda() for streams in (1, 2))
    assert torch.allclose(one(inputs), two(inputs))
