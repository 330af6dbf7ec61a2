"""Counts of whole architectures against what their publishers and other tools say."""

import functools
from math import isclose

import pytest
import torch
from support.models import PARAMETERS, read
from support.slow import few

from mfulab.flops.counter import Operations
from mfulab.models.build import build
from mfulab.models.counted import count_model

# Multiply-adds of one image, in billions. torchvision 0.28 weight metadata, where they are labelled
# GFLOPS.
TORCHVISION_GMACS = {
    "resnet18": 1.814,
    "resnet50": 4.089,
    "mobilenet_v2": 0.301,
    "convnext_tiny": 4.456,
    "vit_b_16": 17.564,
    "regnet_y_400mf": 0.402,
    "regnet_x_400mf": 0.414,
}

# Layers and width. nanoGPT's transformer_sizing: 24·width² for products and 4·tokens·width for
# attention, and the head.
GPT2 = {"gpt2": (12, 768), "gpt2_medium": (24, 1024), "gpt2_xl": (48, 1600)}

# Width of queries, of keys and values, of the MLP; layers. Published config.json of each model.
LLAMA = {"llama_3_2_1b": (2048, 512, 8192, 16), "llama_3_1_8b": (4096, 1024, 14336, 32)}


@functools.cache
def counted_operations(name: str, batch_size: int) -> Operations:
    return count_model(read(name), batch_size).count.operations


def flops(name: str, batch_size: int = 1) -> tuple[int, int]:
    operations = counted_operations(name, batch_size)
    assert not operations.uncounted
    return operations.sum("forward").flops, operations.sum("backward").flops


@pytest.mark.parametrize(("name", "giga_macs"), few(TORCHVISION_GMACS.items(), 3))
def test_forward_is_twice_the_publishers_macs(name, giga_macs):
    assert isclose(flops(name)[0], 2e9 * giga_macs, rel_tol=0.005)


@pytest.mark.parametrize(("name", "shape"), few(GPT2.items()))
def test_gpt2_is_counted_as_its_sizing_does(name, shape):
    layers, width = shape
    tokens = 1024
    by_hand = tokens * (layers * (24 * width**2 + 4 * tokens * width) + 2 * width * 50257)
    assert flops(name) == (by_hand, 2 * by_hand)


@pytest.mark.parametrize(("name", "shape"), few(LLAMA.items()))
def test_llama_is_counted_by_its_shapes(name, shape):
    width, key_width, mlp, layers = shape
    tokens = 1024
    a_layer = 2 * (2 * width**2 + 2 * width * key_width + 3 * width * mlp) + 4 * tokens * width
    by_hand = tokens * (layers * a_layer + 2 * width * 128256)
    # Some versions of transformers make the rotary angles by a product of matrices, one layer's
    # worth in a million.
    assert flops(name) == pytest.approx((by_hand, 2 * by_hand), rel=1e-7)


def test_bert_is_counted_by_its_shapes():
    width, tokens, words = 768, 128, 30522
    by_hand = tokens * (
        12 * (24 * width**2 + 4 * tokens * width) + 2 * width**2 + 2 * width * words
    )
    assert flops("bert_base") == (by_hand, 2 * by_hand)


def test_the_seminars_networks():
    assert flops("digit_cnn")[0] == 60_840 + 259_200 + 737_280 + 2_560
    assert flops("simple_cnn")[0] == 29_704_192
    assert sum(flops("simple_cnn", 32)) == 2_157_969_408
    assert sum(flops("linear_1024", 16)) == 67_108_864


@pytest.mark.slow
def test_the_seminars_recurrent_network():
    assert flops("lstm")[0] == 35 * (2 * 16 * 650**2 + 2 * 650 * 10_000)


def test_ways_to_spend_fewer_flops_by_hand():
    """Multiply-adds: image area × kernel area × channels in × channels out of a layer; a depthwise
    one has one in."""
    area, first, last = 56 * 56, 56 * 56 * 27 * 64, 128 * 10
    dense = 9 * 64 * 128 + 9 * 128 * 128
    separable = 9 * 64 + 64 * 128 + 9 * 128 + 128 * 128
    assert flops("plain_cnn")[0] == 2 * (first + area * dense + last)
    assert flops("pooled_cnn")[0] == 2 * (first + area // 4 * dense + last)
    again = 9 * 64 * 128 * (area // 4) + 9 * 128 * 128 * (area // 16)
    assert flops("repeatedly_pooled_cnn")[0] == 2 * (first + again + last) == 2 * 92_124_416
    assert flops("separable_cnn")[0] == 2 * (first + area * separable + last)
    assert flops("pruned_cnn")[0] == 2 * (first // 2 + area * dense // 4 + last // 2)


@pytest.mark.parametrize("name", few(sorted(PARAMETERS, key=PARAMETERS.__getitem__), 9))
def test_backward_costs_twice_the_forward_pass(name):
    """But for the first layer, whose input needs no gradient: that is what a ratio below 1.9 must
    be made of."""
    counted = counted_operations(name, 1)
    forward, backward = counted.sum("forward"), counted.sum("backward")
    ratio = backward.flops / forward.flops
    assert ratio <= 2.1
    if ratio < 1.9:
        first = next(key.layer for key, total in counted.totals.items() if total.flops)
        missing = counted.sum("forward", layer=first).flops
        assert 1.9 <= (backward.flops + missing) / forward.flops <= 2.1


def shortened(name: str, **layers: int) -> tuple[int, int, torch.nn.Module]:
    """FLOPs forward and backward of a model with fewer blocks, which are all alike, and the whole
    of it uncounted."""
    config = read(name)
    with torch.device("meta"):
        whole = build(config)
    counted = count_model(
        config.model_copy(update={"arguments": {**config.arguments, **layers}}), 1
    )
    operations = counted.count.operations
    assert not operations.uncounted
    return operations.sum("forward").flops, operations.sum("backward").flops, whole


def sizes(model: torch.nn.Module) -> tuple[int, int]:
    """Parameters, and those of them that are trained."""
    trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
    return sum(each.numel() for each in model.parameters()), trained


def test_a_mixture_of_experts_with_latent_attention_by_hand():
    """DeepSeek-V3: 3 dense layers, 58 of 8 chosen experts and a shared one; keys of 128 + 64,
    values of 128."""
    tokens, width, heads, layers = 4096, 7168, 128, 5
    projections = width * (1536 + 512 + 64) + heads * (1536 * 192 + 512 * 256 + 128 * width)
    attention = tokens * projections + heads * tokens**2 * (192 + 128)
    dense, routed = tokens * 3 * width * 18432, tokens * width * (256 + 9 * 3 * 2048)
    by_hand = 2 * (layers * attention + 3 * dense + (layers - 3) * routed + tokens * width * 129280)
    forward, backward, whole = shortened("deepseek_v3", num_hidden_layers=layers)
    assert (forward, backward) == (by_hand, 2 * by_hand)
    norms = 61 * (2 * width + 1536 + 512) + width
    experts = 58 * width * (256 + 257 * 3 * 2048)
    parameters = 2 * width * 129280 + 61 * projections + 3 * 3 * width * 18432 + experts + norms
    assert sizes(whole)[0] == parameters == 671_026_404_352


def test_palm_540b_by_hand():
    """Chowdhery et al. 2022, table 1: 118 layers of 18432, 48 heads of 256, one of keys and values;
    section 2: tied."""
    tokens, width, heads, words, layers = 2048, 18432, 48 * 256, 256_000, 2
    projections = 2 * width * heads + 2 * width * 256
    a_layer = projections + 3 * width * 4 * width
    by_hand = 2 * tokens * (layers * (a_layer + 2 * tokens * heads) + width * words)
    forward, backward, whole = shortened("palm_540b", num_hidden_layers=layers)
    assert (forward, backward) == (by_hand, 2 * by_hand)
    parameters, _ = sizes(whole)
    assert parameters == 118 * (a_layer + 2 * width) + width + words * width
    assert parameters // 10**7 == 54_035  # 540.35e9, as the table prints


def test_llama_2_70b_with_adapters_by_hand():
    """MLPerf's reference adapts the fused projection and the output's. Frozen weights have no
    gradient of their own."""
    tokens, width, key_width, mlp, words, rank, layers = 8192, 8192, 1024, 28672, 32_000, 16, 2
    fused = width * (width + 2 * key_width)
    adapters = rank * (width + width + 2 * key_width) + rank * 2 * width
    frozen, attention = fused + width**2 + 3 * width * mlp, 2 * tokens * width
    forward = 2 * tokens * (layers * (frozen + attention + adapters) + width * words)
    # Tokens have no gradient: neither do the inputs of the first layer's fused projection and of
    # its adapter.
    first = fused + rank * width
    backward = (
        2 * tokens * (layers * (frozen + 2 * attention + 2 * adapters) + width * words - first)
    )
    *counted, whole = shortened("llama_2_70b_lora", num_hidden_layers=layers)
    assert counted == [forward, backward]
    assert (
        sizes(whole)
        == (68_976_648_192 + 80 * adapters, 80 * adapters)
        == (69_021_212_672, 44_564_480)
    )


def test_flux_1_by_hand():
    """Black Forest Labs' model.py and layers.py: 19 double and 38 single blocks of 3072; 256 tokens
    each way."""
    width, image, text, doubles, singles = 3072, 256, 256, 2, 3
    tokens, attention = image + text, 2 * (image + text) ** 2 * width
    double = 2 * 6 * width**2 + tokens * 12 * width**2 + attention
    single = 3 * width**2 + tokens * 12 * width**2 + attention
    # Latents, text, time and pooled text have no gradient: their first products have one in the
    # backward pass, not two.
    given = image * 64 * width + text * 4096 * width + (256 + 768) * width
    last = 2 * width**2 + image * width * 64
    macs = given + 2 * width**2 + doubles * double + singles * single + last
    *counted, whole = shortened("flux_1", double_blocks=doubles, single_blocks=singles)
    assert counted == [2 * macs, 2 * (2 * macs - given)]
    # Without norms of queries and keys, two a stream of the heads' width, 128.
    assert sizes(whole)[0] == 11_891_178_560 - (19 * 2 + 38) * 2 * 128


@pytest.mark.slow
def test_the_largest_model_is_counted_without_its_memory():
    with torch.device("cpu"):
        counted = count_model(read("llama_3_1_8b"), 1)
    assert counted.means == "meta"
    assert all(parameter.is_meta for parameter in counted.model.parameters())
