"""Operations beyond what is counted, and instructions' rates, by kernels' names and shapes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfulab.flops.traced import traced_cost
from mfulab.tracing.tiles import HOPPER, alignment_of, executed_ratio, slowdown_of, tile_of

CUTLASS = "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_"
PATCHES = CUTLASS + "s16816fprop_optimized_bf16_128x128_32x5_nhwc_align8>(Params)"
ATTENTION = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_cga1x1x1_kernel0_0"
NVJET = "nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNN"
HEAD = "void Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align1>(Params)"
FLASH = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, "


def linear(tokens, inner, columns):
    return traced_cost("aten::linear", [[tokens, inner], [columns, inner], []], ["", "", ""])


def patches(channels=3, filters=768, groups=1):
    shapes = [
        [64, channels, 224, 224],
        [filters, channels // groups, 16, 16],
        [filters],
        [],
        [],
        [],
        [],
        [],
        [],
    ]
    values = ["", "", "", "[16, 16]", "[0, 0]", "[1, 1]", "False", "[0, 0]", str(groups)]
    return traced_cost("aten::convolution", shapes, values)


def attention(tokens, causal=False, width=64):
    name, shape = "aten::_scaled_dot_product_cudnn_attention", [8, 12, tokens, width]
    return traced_cost(name, [shape] * 3 + [[]] * 4, ["", "", "", "", "False", "0.", str(causal)])


# Read by Nsight Compute on an H200: (kernel, call, executed ÷ counted, cycles of the tensor pipe ÷
# ideal ones).
READ = {
    "patches": (PATCHES, patches(), 10.667, 64.0),
    "attention of 197": (ATTENTION, attention(197), 1.689, 6.755),
    "linear": (NVJET, linear(12608, 768, 3072), 1.005, 4.020),
    "head of 50,257": (HEAD, linear(8192, 768, 50257), 1.001, 8.007),
    "head of 50,304": (NVJET, linear(8192, 768, 50304), 1.008, 4.031),
    "causal attention": (ATTENTION, attention(1024, causal=True), 0.562, 2.250),
}


@pytest.mark.parametrize("case", READ)
def test_what_nsight_compute_read_on_a_card_follows_from_name_and_shapes(case):
    kernel, recorded, executed, cycles = READ[case]
    ratio = executed_ratio(kernel, recorded)
    assert ratio == pytest.approx(executed, rel=0.002)
    assert ratio * 4 * slowdown_of(kernel, "bf16", HOPPER) == pytest.approx(cycles, rel=0.005)


@pytest.mark.parametrize(
    ("kernel", "tile", "alignment"),
    [
        (HEAD, (128, 128, 1), 1),
        (PATCHES, (128, 128, 32), 8),
        (NVJET, (192, 192, 64), 0),
        (
            "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x64x64_warpgroupsize1x1x1",
            (128, 64, 64),
            0,
        ),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x128x64_MI16x16x1", (256, 128, 64), 0),
        ("ampere_sgemm_32x32_sliced1x4_tn", (32, 32, 1), 0),
        (
            "sm80_xmma_fprop_implicit_gemm_tf32f32_nhwc_tilesize128x128x16_stage4_g1_tensor16x8x8_alignc4",
            (128, 128, 16),
            4,
        ),
    ],
)
def test_tile_step_and_alignment_of_a_name(kernel, tile, alignment):
    assert (tile_of(kernel), alignment_of(kernel)) == (tile, alignment)


@pytest.mark.parametrize(
    "kernel", ["ampere_gcgemm_64x64_nt", "attn_fwd", "_scaled_mm", "cudnn_winograd_128x128_ldg1"]
)
def test_a_name_that_tells_no_tile_claims_nothing(kernel):
    assert tile_of(kernel) is None
    assert executed_ratio(kernel, linear(100, 100, 100)) is None


def test_grouped_and_transposed_convolutions_claim_nothing():
    assert executed_ratio(PATCHES, patches(channels=8, filters=64, groups=8)) is None
    assert executed_ratio(PATCHES, patches(channels=64)) == 1
    shapes = [[8, 64, 20, 20], [64, 32, 4, 4], [], [], [], [], [], [], []]
    values = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "True", "[0, 0]", "1"]
    assert executed_ratio(PATCHES, traced_cost("aten::convolution", shapes, values)) is None


def test_a_convolution_s_backward_kernels_pad_their_own_sides():
    shapes = [[64, 768, 14, 14], [64, 3, 224, 224], [768, 3, 16, 16], [768], *[[]] * 7]
    values = [
        *[""] * 4,
        "[16, 16]",
        "[0, 0]",
        "[1, 1]",
        "False",
        "[0, 0]",
        "1",
        "[False, True, True]",
    ]
    recorded = traced_cost("aten::convolution_backward", shapes, values)
    assert recorded.convolution == (64 * 14 * 14, 3, 768, 256)
    filters = executed_ratio(PATCHES.replace("fprop", "wgrad"), recorded)
    assert filters == pytest.approx(8 / 3), "3 channels are held as 8"
    images = executed_ratio(PATCHES.replace("fprop", "dgrad"), recorded)
    assert images == pytest.approx(128 / 3), "3 channels are the columns of a tile of 128"


def test_a_narrow_head_is_padded_to_the_kernel_s():
    wide = FLASH.replace("<64,", "<96,")
    assert executed_ratio(wide, attention(1024, width=80)) == pytest.approx(96 / 80)
    assert executed_ratio(FLASH, attention(559, causal=True)) == pytest.approx(15 * 128**2 / 559**2)


def test_a_mask_may_leave_out_tiles_and_claims_nothing():
    shape = [8, 12, 197, 64]
    recorded = traced_cost(
        "aten::_scaled_dot_product_cudnn_attention",
        [shape] * 3 + [[8, 1, 197, 197]] + [[]] * 3,
        [""] * 6 + ["False"],
    )
    assert executed_ratio(ATTENTION, recorded) is None


@pytest.mark.parametrize("capability", [(8, 0), (9, 4), (10, 0), (0, 0)])
def test_rates_are_known_of_hopper_alone(capability):
    found = {slowdown_of(kernel, "bf16", capability) for kernel in (HEAD, PATCHES, FLASH, NVJET)}
    assert found == {1.0}


def test_k_of_eight_is_the_whole_width_of_tf32():
    found = slowdown_of("cutlass_80_tensorop_s1688gemm_128x256_32x3_nt_align1", "tf32", HOPPER)
    assert found == 1.5
    assert slowdown_of("ampere_sgemm_128x64_nn", "fp32", HOPPER) == 1.0


sides = st.integers(1, 5000)


@given(sides, sides, sides)
def test_whole_tiles_are_never_less_than_the_matmul_and_exact_where_it_fits(m, n, k):
    assert executed_ratio(NVJET, linear(m, k, n)) >= 1 - 1e-12
    assert executed_ratio(NVJET, linear(192 * m, 64 * k, 192 * n)) == pytest.approx(1)
