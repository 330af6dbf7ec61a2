"""Other families than classifiers and decoders: each counted and held against its shapes."""

import pytest
import torch
import transformers
from torch import nn

from mfulab.flops.count import Count, count
from mfulab.flops.values import KnownValues
from mfulab.models.huggingface import build

WIDTH, WORDS, TOKENS, LAYERS = 64, 100, 64, 2
DECODER = {"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": LAYERS}


def on_meta(make, **inputs) -> Count:
    with torch.device("meta"), KnownValues():
        model = make()
        given = {name: value() for name, value in inputs.items()}
        return count(model, lambda: model(**given).logits.sum())


def ids(tokens: int = TOKENS, batch: int = 1):
    return lambda: torch.zeros(batch, tokens, dtype=torch.long)


def test_latent_attention_with_experts():
    """DeepSeek-V3's layer: keys and values from a latent vector; one dense layer, then routed and
    shared experts."""
    query_rank, key_rank, rope, nope, value, heads, mlp, expert = 32, 16, 8, 16, 16, 4, 96, 32
    found = on_meta(
        lambda: build(
            "DeepseekV3ForCausalLM", **DECODER, num_attention_heads=heads, num_key_value_heads=heads,
            q_lora_rank=query_rank, kv_lora_rank=key_rank, qk_rope_head_dim=rope, qk_nope_head_dim=nope,
            v_head_dim=value, n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1, n_group=2, topk_group=1,
            moe_intermediate_size=expert, intermediate_size=mlp, first_k_dense_replace=1,
        ),
        input_ids=ids(),
    )  # fmt: skip
    attention = WIDTH * query_rank + query_rank * heads * (nope + rope) + WIDTH * (key_rank + rope)
    attention += key_rank * heads * (nope + value) + heads * value * WIDTH
    layers = LAYERS * attention + 3 * WIDTH * mlp + (2 + 1) * 3 * WIDTH * expert + WIDTH * 8
    pairs = LAYERS * 2 * heads * (nope + rope + value) * TOKENS
    by_hand = TOKENS * (2 * layers + pairs + 2 * WIDTH * WORDS)
    # Beside it the rotary angles, by a product of one column.
    assert found.operations.sum("forward").flops == pytest.approx(by_hand, rel=2e-4)
    assert found.operations.sum("forward").flops >= by_hand
    assert found.operations.sum("backward").flops == pytest.approx(2 * by_hand, rel=2e-4)


def test_sliding_windows_of_every_other_layer():
    window, heads, head, mlp = 16, 4, 16, 96
    found = on_meta(
        lambda: build(
            "Gemma3ForCausalLM", **DECODER, num_attention_heads=heads, num_key_value_heads=2, head_dim=head,
            intermediate_size=mlp, sliding_window=window, layer_types=["sliding_attention", "full_attention"],
        ),
        input_ids=ids(),
    )  # fmt: skip
    pair = 2 * 2 * heads * head
    assert found.operations.sum().bounds == 0
    forward = {
        key.layer: total for key, total in found.operations.totals.items()
        if total.attention_flops and key.direction == "forward"
    }  # fmt: skip
    near, far = (forward[f"model.layers.{layer}.self_attn"] for layer in (0, 1))
    assert (near.flops, far.flops) == (TOKENS * window * pair, TOKENS**2 * pair)
    assert near.causal_flops == (TOKENS * window - window * (window - 1) // 2) * pair


def test_a_state_space_model_by_its_projections():
    """Mamba: all but the scan, which is small, are products whose sizes are known."""
    state, inner, rank, kernel = 16, 2 * WIDTH, WIDTH // 16, 4
    found = on_meta(lambda: build("MambaForCausalLM", **DECODER, state_size=state), input_ids=ids())
    layer = 2 * (WIDTH * 2 * inner + inner * (rank + 2 * state) + rank * inner + inner * WIDTH)
    # the causal convolution computes its padding
    layer += 2 * inner * kernel * (TOKENS + kernel - 1) / TOKENS
    scan = 2 * inner * state
    by_hand = TOKENS * (LAYERS * (layer + scan) + 2 * WIDTH * WORDS)
    assert found.operations.sum("forward").flops == pytest.approx(by_hand, rel=1e-3)
    assert found.operations.sum("backward").flops == pytest.approx(2 * by_hand, rel=0.01)
    assert not found.operations.uncounted


@pytest.mark.parametrize("tokens", [TOKENS, 2 * TOKENS])
def test_a_state_space_model_in_chunks(tokens):
    """Mamba-2's SSD, Dao and Gu 2024, arXiv:2405.21060, section 6: four products a chunk, one that
    passes states."""
    heads, head, state, chunk, groups, kernel = 4, 2 * WIDTH // 4, 8, 16, 2, 4
    found = on_meta(
        lambda: build(
            "Mamba2ForCausalLM", **DECODER, num_heads=heads, head_dim=head, expand=2, state_size=state,
            n_groups=groups, chunk_size=chunk, conv_kernel=kernel, pad_token_id=0, bos_token_id=0, eos_token_id=0,
        ),
        input_ids=ids(tokens),
    )  # fmt: skip
    inner, mixed = heads * head, heads * head + 2 * groups * state
    ends = 2 * tokens * (WIDTH * (inner + mixed + heads) + inner * WIDTH)
    convolution = 2 * mixed * kernel * (tokens + kernel - 1)
    # Within a chunk: C·Bᵀ and that times X; from it and into it: Bᵀ·X and C·S.
    within = 2 * tokens * heads * (chunk * state + chunk * head + 2 * state * head)
    passed = 2 * (tokens // chunk + 1) ** 2 * heads * head * state
    by_hand = LAYERS * (ends + convolution + within + passed) + 2 * tokens * WIDTH * WORDS
    assert found.operations.sum("forward").flops == by_hand
    assert found.operations.sum("backward").flops == 2 * by_hand
    # Decays, their running sums and gates are no products.
    assert found.operations.sum("forward").other_flops > 0
    assert not found.operations.uncounted


class LinearAttention(nn.Module):
    """Katharopoulos et al. 2020, arXiv:2006.16236, without a mask: all keys and values in one
    matrix a head."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads, self.enter, self.leave = (
            heads,
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )

    def forward(self, x):
        query, key, value = self.enter(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key = (nn.functional.elu(each) + 1 for each in (query, key))
        attended = query @ (key.mT @ value) / (query @ key.sum(-2)[..., None])
        return self.leave(attended.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("tokens", [TOKENS, 4 * TOKENS])
def test_linear_attention_grows_with_tokens_not_with_pairs(tokens):
    heads, rows = 2, 3
    head = WIDTH // heads
    model = LinearAttention(heads).to("meta")
    operations = count(
        model, lambda: model(torch.randn(rows, tokens, WIDTH, device="meta")).sum()
    ).operations
    by_hand = rows * tokens * (2 * 4 * WIDTH**2 + heads * (4 * head**2 + 2 * head))
    assert operations.sum("forward").flops == by_hand
    # Nobody asks for the input's gradient.
    assert operations.sum("backward").flops == 2 * by_hand - rows * tokens * 2 * 3 * WIDTH**2
    assert not operations.uncounted


def test_speech_with_cross_attention():
    """Whisper: two convolutions, an encoder, and a decoder that also attends to the encoder's
    output."""
    mels, frames, words, mlp = 80, 200, 16, 128
    found = on_meta(
        lambda: build(
            "WhisperForConditionalGeneration", d_model=WIDTH, encoder_layers=LAYERS, decoder_layers=LAYERS,
            encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=mlp, decoder_ffn_dim=mlp,
            vocab_size=WORDS, num_mel_bins=mels, max_source_positions=frames // 2, pad_token_id=0, bos_token_id=1,
            eos_token_id=2, decoder_start_token_id=1,
        ),
        input_features=lambda: torch.randn(1, mels, frames),
        decoder_input_ids=ids(words),
    )  # fmt: skip
    heard = frames // 2
    square, block = WIDTH**2, 2 * WIDTH * mlp
    convolutions = 2 * 3 * WIDTH * (mels * frames + WIDTH * heard)
    encoder = LAYERS * (2 * heard * (4 * square + block) + 4 * heard**2 * WIDTH)
    own = 2 * words * (4 * square + block) + 4 * words**2 * WIDTH
    cross = 2 * words * 2 * square + 2 * heard * 2 * square + 4 * words * heard * WIDTH
    by_hand = convolutions + encoder + LAYERS * (own + cross) + 2 * words * WIDTH * WORDS
    assert found.operations.sum("forward").flops == by_hand
    # Nobody asks for the gradient of the spectrogram.
    assert found.operations.sum("backward").flops == 2 * by_hand - 2 * 3 * WIDTH * mels * frames


def test_images_among_words():
    """Llava: an image's patches through a vision tower and two projections, then among the
    words."""
    side, patch, vision, seen, words, mlp = 28, 14, 32, 64, 16, 96

    def make():
        return transformers.LlavaForConditionalGeneration(
            transformers.LlavaConfig(
                vision_config={
                    "model_type": "clip_vision_model", "hidden_size": vision, "intermediate_size": seen,
                    "num_hidden_layers": LAYERS, "num_attention_heads": 2, "image_size": side, "patch_size": patch,
                    "projection_dim": 32,
                },
                text_config={
                    "model_type": "llama", **DECODER, "num_attention_heads": 4, "num_key_value_heads": 4,
                    "intermediate_size": mlp, "use_cache": False,
                },
                image_token_index=99,
            )
        )  # fmt: skip

    def prompt():
        tokens = torch.zeros(1, words, dtype=torch.long)
        tokens[:, 2:6] = 99
        return tokens

    found = on_meta(make, input_ids=prompt, pixel_values=lambda: torch.randn(1, 3, side, side))
    patches = (side // patch) ** 2
    tower = 2 * patches * 3 * patch**2 * vision
    tower += LAYERS * (
        2 * (patches + 1) * (4 * vision**2 + 2 * vision * seen) + 4 * (patches + 1) ** 2 * vision
    )
    between = 2 * patches * (vision * WIDTH + WIDTH**2)
    decoder = (
        LAYERS * (2 * words * (4 * WIDTH**2 + 3 * WIDTH * mlp) + 4 * words**2 * WIDTH)
        + 2 * words * WIDTH * WORDS
    )
    expected = pytest.approx(tower + between + decoder, rel=2e-4)
    assert found.operations.sum("forward").flops == expected
    assert not found.operations.uncounted


class GraphConvolution(nn.Module):
    """Kipf and Welling 2016, arXiv:1609.02907: each node's neighbours summed, and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 16, bias=False)

    def forward(self, neighbours, nodes):
        return neighbours @ self.layer(nodes)


@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_a_graph_costs_its_edges(layout):
    nodes, edges = 20, 7
    dense = torch.zeros(nodes, nodes)
    dense[torch.arange(edges), torch.arange(edges) + 3] = 1
    neighbours = dense.to_sparse_csr() if layout == "csr" else dense.to_sparse()
    model = GraphConvolution()
    operations = count(
        model, lambda: model(neighbours, torch.randn(nodes, WIDTH)).sum(), fused=False
    ).operations
    product, sums = 2 * nodes * WIDTH * 16, 2 * edges * 16
    assert operations.sum("forward").flops == product + sums
    assert operations.sum("backward").flops == product + sums
