"""Compares FLOPs that `mfulab trace` reads in public traces of serving engines with those by hand,
from the models' configurations.

    git clone https://github.com/AMD-AGI/TraceLens && python validation/engine_traces.py TraceLens/tests

Two files of FLUX.1 with AITER exist only in that repository's history; missing files are skipped.
Devices without a name get a stated peak in TFLOP/s of bf16.
"""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mfulab.core.json_text import parse_json

EXAMPLES = Path(__file__).parents[1] / "examples/operators"
MI300X = 1307.4  # https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html
MI355X = 2516.6  # https://www.amd.com/en/products/accelerators/instinct/mi350/mi355x.html
MOST_APART = 0.02
TERA = 1e12


def linear(rows: float, inputs: float, outputs: float) -> float:
    """FLOPs of a linear layer."""
    return 2 * rows * inputs * outputs


def attention(pairs: float, width: float) -> float:
    """FLOPs of attention over this many pairs of query and key, for all heads with a total width of
    `width`."""
    return 4 * pairs * width


def gpt_oss(tokens: int, pairs: float, sampled: int, layers: int, gpus: int, experts: int) -> float:
    """FLOPs of gpt-oss: width 2,880, 64 heads of 64, 8 KV heads, 4 experts per token, 201,088
    words."""
    width, heads, keys = 2880, 64 * 64, 8 * 64
    # Experts with the model's own width, although vLLM pads it for them.
    attended = linear(tokens, width, (heads + 2 * keys) / gpus)
    attended += linear(tokens, heads / gpus, width)
    routed = linear(tokens, width, experts) + 3 * linear(4 * tokens, width, width / gpus)
    layer = attended + attention(pairs, heads / gpus) + routed
    return layers * layer + linear(sampled, width, 201_088 / gpus)


def qwen3_8b(tokens: int, pairs: float, sampled: int) -> float:
    """FLOPs of Qwen3-8B: 36 layers of width 4,096, 32 heads of 128, 8 KV heads, 12,288 wide MLP,
    151,936 words."""
    width = 4096
    layer = linear(tokens, width, width + 2 * 1024) + linear(tokens, width, width)
    layer += attention(pairs, width) + 3 * linear(tokens, width, 12_288)
    return 36 * layer + linear(sampled, width, 151_936)


def t5_xxl(tokens: int) -> float:
    """FLOPs of T5-XXL's encoder: 24 layers of width 4,096 with gated MLPs of 10,240."""
    layer = 4 * linear(tokens, 4096, 4096) + 3 * linear(tokens, 4096, 10_240)
    return 24 * (layer + attention(tokens**2, 4096))


def clip(layers: int, width: int, projected: int = 0, tokens: int = 77) -> float:
    """FLOPs of a CLIP text encoder with MLPs of 4 × width, and an optional final projection."""
    layer = linear(tokens, width, 12 * width) + attention(tokens**2, width)
    return layers * layer + linear(1, width, projected)


def vae_decoder(side: int) -> float:
    """FLOPs of an image autoencoder's decoder: 16 latent channels, then widths of 512, 512, 256 and
    128."""
    small = side // 8

    def convolution(scale: int, inputs: int, outputs: int, kernel: int = 3) -> float:
        return linear((small * scale) ** 2, inputs * kernel**2, outputs)

    def block(scale: int, inputs: int, outputs: int) -> float:
        shortcut = convolution(scale, inputs, outputs, 1) if inputs != outputs else 0
        return convolution(scale, inputs, outputs) + convolution(scale, outputs, outputs) + shortcut

    pixels = small**2
    total = convolution(1, 16, 512) + 2 * block(1, 512, 512)
    total += 4 * linear(pixels, 512, 512) + attention(pixels**2, 512)
    total += 3 * block(1, 512, 512) + convolution(2, 512, 512)
    total += 3 * block(2, 512, 512) + convolution(4, 512, 512)
    total += block(4, 512, 256) + 2 * block(4, 256, 256) + convolution(8, 256, 256)
    return total + block(8, 256, 128) + 2 * block(8, 128, 128) + convolution(8, 128, 3)


def flux(side: int, steps: int) -> float:
    """FLOPs of FLUX.1: 19 double and 38 single blocks of width 3,072, 512 words, with T5, CLIP and
    the decoder."""
    width, words = 3072, 512
    pixels = (side // 16) ** 2
    tokens = pixels + words
    double = linear(tokens, width, 12 * width) + 2 * linear(1, width, 6 * width)
    single = linear(tokens, width, 12 * width) + linear(1, width, 3 * width)
    blocks = 19 * double + 38 * single + 57 * attention(tokens**2, width)
    ends = linear(pixels, 64, 2 * width) + linear(words, 4096, width) + linear(1, width, 2 * width)
    embedded = 2 * (linear(1, 256, width) + linear(1, width, width))
    embedded += linear(1, 768, width) + linear(1, width, width)
    step = blocks + ends + embedded
    return steps * step + t5_xxl(words) + clip(12, 768) + vae_decoder(side)


def stable_diffusion_3_5_large(side: int, steps: int) -> float:
    """FLOPs of Stable Diffusion 3.5 Large: 38 blocks of width 2,432, with and without the prompt of
    333 words."""
    width, words = 2432, 333
    pixels = (side // 16) ** 2
    image, text = 2 * pixels, 2 * words
    blocks = 38 * (linear(image, width, 12 * width) + linear(2, width, 6 * width))
    # The last block has no output for the text, and only needs its queries, keys and values.
    blocks += 37 * (linear(text, width, 12 * width) + linear(2, width, 6 * width))
    blocks += linear(text, width, 3 * width) + linear(2, width, 2 * width)
    blocks += 38 * attention(2 * (pixels + words) ** 2, width)
    ends = linear(image, 64, 2 * width) + linear(text, 4096, width) + linear(2, width, 2 * width)
    embedded = linear(2, 256, width) + linear(2, width, width)
    embedded += linear(2, 2048, width) + linear(2, width, width)
    prompts = t5_xxl(256) + clip(12, 768, 768) + clip(32, 1280, 1280)
    return steps * (blocks + ends + embedded) + 2 * prompts + vae_decoder(side)


def jax_attention() -> float:
    """FLOPs of two layers' loss with gradients: 2 × 2,048 tokens of width 2,048, 16 heads of
    128."""
    product = linear(2 * 2048, 2048, 3 * 2048)
    return 2 * 3 * (product + attention(2 * 2048**2, 2048))


@dataclass(frozen=True)
class Case:
    """Public trace, with the FLOPs of its step by hand."""

    engine: str
    what: str
    trace: str
    by_hand: float
    capture: str = ""
    peak: float = 0.0
    operators: str = ""
    options: list[str] = field(default_factory=list)

    def read(self, folder: Path) -> dict[str, Any]:
        """Row that `mfulab trace` prints for the trace."""
        command = [sys.executable, "-m", "mfulab", "trace", str(folder / self.trace), "--json"]
        if self.capture:
            command += ["--capture", str(folder / self.capture)]
        if self.peak:
            command += ["--peak", f"bf16={self.peak}"]
        environment = dict(os.environ)
        if self.operators:
            environment["MFULAB_OPERATORS"] = str(EXAMPLES / self.operators)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        row: dict[str, Any] = parse_json(done.stdout.splitlines()[0])
        return row


INFERENCE = "traces/inference"
SGLANG = f"{INFERENCE}/sglang_decode"
VLLM_DECODING = f"{INFERENCE}/vllm_decode_full"
VLLM_MIXED = f"{INFERENCE}/vllm_prefilldecode_piecewise"
CAPTURED = "capture_traces/graph_capture_rank_0"
CASES = (
    Case(
        "SGLang", "Qwen3-8B, prefill of 15 × 1,024",
        f"{INFERENCE}/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode.json.gz",
        qwen3_8b(15 * 1024, 15 * 1024**2, 15),
    ),
    Case(
        "SGLang", "Qwen3-8B, decoding of 32, graph",
        f"{SGLANG}/sglang_Qwen3-8B_decode.json.gz", qwen3_8b(32, 32_785, 32),
        capture=f"{SGLANG}/capture_traces/bs_32_rank0.json.gz",
    ),
    Case(
        "vLLM", "gpt-oss-20b, decoding of 32, graph", f"{VLLM_DECODING}/graph_execution.json.gz",
        gpt_oss(32, 55_086, 32, 24, 1, 32), operators="gpt_oss_20b", peak=MI300X,
        capture=f"{VLLM_DECODING}/{CAPTURED}.1773709742341309550.pt.trace.json.gz",
    ),
    Case(
        "vLLM", "gpt-oss-20b, 8,155 tokens and decoding of 37, piecewise graphs",
        f"{VLLM_MIXED}/graph_execution.json.gz",
        gpt_oss(8192, 7_671_310 + 34_489, 46, 24, 1, 32), operators="gpt_oss_20b", peak=MI300X,
        capture=f"{VLLM_MIXED}/{CAPTURED}.1773709679453551615.pt.trace.json.gz",
    ),
    Case(
        "vLLM", "gpt-oss-120b on 8 GPUs, prefill of 888", "traces/b200/eager_trace.json.gz",
        gpt_oss(888, 0, 1, 36, 8, 128), operators="gpt_oss_120b_on_8_gpus",
    ),
    Case(
        "xDiT, AITER", "FLUX.1, 1,024²", "traces/inference/xdit_flux_aiter/profile_trace_rank_0.json.gz",
        flux(1024, 4),
        capture="traces/inference/xdit_flux_aiter/capture_traces/capture_rank_0.json.gz",
    ),
    Case(
        "xDiT, AITER", "FLUX.1, 256², SageAttention",
        f"{INFERENCE}/xdit_flux.1_aiter_sage/profile_trace_rank_0.json.gz", flux(256, 4),
        capture=f"{INFERENCE}/xdit_flux.1_aiter_sage/capture_traces/capture_trace_rank_0.json.gz",
    ),
    Case(
        "xDiT", "Stable Diffusion 3.5 Large, 1,024²",
        f"{INFERENCE}/xdit_sd_3.5/profile_trace_rank_0.json.gz",
        stable_diffusion_3_5_large(1024, 4),
    ),
    Case(
        "Transformer Engine, JAX", "fused attention and its linear layer",
        "test_data_jax_te_fused_attn_categorization/934987a2fc2f.xplane.pb", jax_attention(),
        peak=MI355X,
    ),
)  # fmt: skip


def main() -> int:
    """Prints a line per trace. Returns 1 if FLOPs differ by more than 2 %, or MFU is unknown."""
    folder = Path(sys.argv[1])
    failures = 0
    print("| engine | trace | by hand, TFLOP | read | known | ms | MFU |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for case in CASES:
        if not (folder / case.trace).exists():
            continue
        row = case.read(folder)
        flops, mfu = row["flops"], row["mfu_percent"]
        known = 100 - (row["uncounted_percent"] or 0)
        failures += mfu is None or abs(flops / case.by_hand - 1) > MOST_APART
        numbers = f"{case.by_hand / TERA:.6g} | {flops / TERA:.6g} | {known:.1f} %"
        share = "—" if mfu is None else f"{mfu:.2f} %"
        print(f"| {case.engine} | {case.what} | {numbers} | {1e3 * row['time_s']:.3f} | {share} |")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
