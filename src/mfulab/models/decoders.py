"""Computes the work of plain decoders (Llama, Mixtral, GPT-2) from their dimensions, on machines
without torch.

Matmuls, attention and parameters are exactly those of counting the built module. Other operators
and tensors saved for the backward pass need the module itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from mfulab.core.errors import ConfigurationError, lacks
from mfulab.core.groups import ModelConfig
from mfulab.core.said import Said, of_source
from mfulab.flops.formulas import expected_experts_read
from mfulab.mfu.work import Mode, Operation, Work

BUILT = "mfulab.models.huggingface.build"
# Arguments that change no matmul. Any other one that is not read here must be False, 0 or None.
UNREAD = {
    *(
        "model_type",
        "hidden_act",
        "activation_function",
        "initializer_range",
        "rms_norm_eps",
        "layer_norm_epsilon",
    ),
    *(
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "n_ctx",
    ),
    *(
        "attention_dropout",
        "attn_pdrop",
        "embd_pdrop",
        "resid_pdrop",
        "max_position_embeddings",
        "pretraining_tp",
    ),
    *(
        "use_cache",
        "scale_attn_weights",
        "router_aux_loss_coef",
        "task_specific_params",
        "summary_first_dropout",
    ),
    *(
        "summary_activation",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "_name_or_path",
    ),
}


@dataclass(frozen=True)
class Matrix:
    """Weights of a layer, [experts, outputs, inputs], of which each token uses `active` experts;
    with or without a bias."""

    layer: str
    inputs: int
    outputs: int
    experts: int = 1
    active: int = 1
    bias: bool = False

    @property
    def weights(self) -> int:
        """Parameters without the bias."""
        return self.inputs * self.outputs * self.experts


@dataclass(frozen=True)
class Decoder:
    """A stack of equal blocks between a table of word embeddings and the output layer."""

    blocks: str  # name of the module that holds the blocks
    attention: str  # name of a block's attention layer
    layers: int
    heads: int
    key_value_heads: int
    head_width: int
    matrices: tuple[Matrix, ...]  # matrices of one block
    head: Matrix
    positions: int  # rows of a learned table of positions; 0 for rotary positions
    norm: int  # parameters of one norm; a block has two, and one follows the last block
    tied: bool  # whether the output layer's matrix is the table of word embeddings


def missing(config: ModelConfig) -> str | None:
    """Returns the name of a package that is needed to build the model and is not installed, or
    None."""
    packages = ("torch", "transformers") if config.target == BUILT else ("torch",)
    return next((package for package in packages if find_spec(package) is None), None)


def computed(
    config: ModelConfig,
    sequence_length: int | None = None,
    batch_size: int = 1,
    mode: Mode = "training",
) -> Work:
    """Computes one step of a decoder. `saved_elements` is None, and operators are only matmuls and
    attention. Raises ConfigurationError if the model is no such decoder, or has fewer positions
    than tokens."""
    decoder = _decoder(config)
    package = missing(config) or "torch"
    if decoder is None:
        lacking = lacks(Said("counting_it"), package) or ""
        raise ConfigurationError(of_source(f"model={config.name}", lacking))
    keys = sequence_length or config.sequence_length or 1
    if decoder.positions and keys > decoder.positions:
        raise ConfigurationError(
            of_source(
                f"sequence_length={keys}",
                Said("positions_for", model=config.name, positions=decoder.positions),
            )
        )
    tokens = batch_size * (1 if mode == "decoding" else keys)
    matrices = decoder.matrices
    weights = decoder.layers * sum(matrix.weights for matrix in matrices)
    biases = decoder.layers * sum(matrix.bias * matrix.outputs for matrix in matrices)
    active = sum(matrix.weights * matrix.active // matrix.experts for matrix in matrices)
    norms = decoder.norm * (2 * decoder.layers + 1)
    head = decoder.head.weights
    word_table = 0 if decoder.tied else head
    tables = word_table + decoder.positions * decoder.head.inputs
    parameters = weights + biases + norms + tables + head
    cached_per_token = 2 * decoder.layers * decoder.key_value_heads * decoder.head_width
    total_flos = 0
    if mode == "training":
        total_flos = 6 * tokens * (weights + biases + norms + word_table)
    return Work(
        mode=mode,
        tokens=tokens,
        batch_size=batch_size,
        parameters=parameters,
        trainable=parameters,
        looked_up=tables,
        unmultiplied=norms + biases,
        inactive=weights - decoder.layers * active,
        saved_elements=None,
        cache_elements=cached_per_token * keys * batch_size,
        operations=tuple(_operations(decoder, batch_size, tokens, keys, mode)),
        total_flos=total_flos,
        message=f"by arithmetic on its dimensions; {lacks('counting the module itself', package)}",
    )


def _operations(
    decoder: Decoder, batch_size: int, tokens: int, keys: int, mode: Mode
) -> Iterator[Operation]:
    """Yields matmuls and attention, with equal blocks summed as in `Work`. A backward pass has two
    matmuls for each forward one, for gradients of inputs and weights."""
    passes = ("forward", "backward") if mode == "training" else ("forward",)
    for direction in passes:
        backward = direction == "backward"
        for matrix in decoder.matrices:
            layer = f"{decoder.blocks}.*.{matrix.layer}"
            yield _matmul(matrix, layer, decoder.layers, tokens, backward)
        yield _matmul(decoder.head, decoder.head.layer, 1, tokens, backward)
        yield _attention(decoder, batch_size, tokens, keys, mode, backward)


def _matmul(matrix: Matrix, layer: str, count: int, tokens: int, backward: bool) -> Operation:
    """Matmuls of `count` equal layers in one pass."""
    direction = "backward" if backward else "forward"
    matmuls = 2 if backward else 1
    rows = tokens * matrix.active
    flops = count * 2 * rows * matrix.inputs * matrix.outputs * matmuls
    elements = matmuls * (rows * (matrix.inputs + matrix.outputs) + matrix.weights)
    if matrix.bias and not backward:
        elements += matrix.outputs
    if matrix.active < matrix.experts:  # also reads the ends of each expert's rows
        elements += matmuls * matrix.experts
    operator = "aten::mm"
    if matrix.experts > 1:
        operator = "mfulab::grouped_product"
        read = expected_experts_read(matrix.experts, matrix.active, tokens) / matrix.experts
        elements -= round(matrix.weights * (1 - read))  # experts that no token chose
    return Operation(layer, operator, direction, flops, flops, flops, count * elements, 0)


def _attention(
    decoder: Decoder, batch_size: int, tokens: int, keys: int, mode: Mode, backward: bool
) -> Operation:
    """Attention of all blocks in one pass."""
    queries = decoder.heads * tokens
    operands = 2 * decoder.head_width * (queries + batch_size * decoder.key_value_heads * keys)
    forward_flops = 4 * decoder.head_width * queries * keys * decoder.layers
    layer = f"{decoder.blocks}.*.{decoder.attention}"
    if backward:
        name, direction = "mfulab::attention_backward", "backward"
        flops, executed = 2 * forward_flops, 2.5 * forward_flops
        elements = decoder.layers * (2 * operands + queries)
    else:
        name, direction = "mfulab::attention", "forward"
        flops, executed = forward_flops, forward_flops
        elements = decoder.layers * (operands + queries)
    causal = flops if mode == "decoding" else flops / 2
    return Operation(layer, name, direction, flops, causal, executed, elements, 0)


def _decoder(config: ModelConfig) -> Decoder | None:
    """Dimensions of the model. None if it is not known to consist only of these parts."""
    arguments = dict(config.arguments)
    makers = {"LlamaForCausalLM": _llama, "MixtralForCausalLM": _llama, "GPT2LMHeadModel": _gpt2}
    make = makers.get(str(arguments.pop("architecture", None)))
    settings = config.target, config.pruning, config.task, arguments.pop("attention", "sdpa")
    if make is None or settings != (BUILT, "none", "language_modeling", "sdpa"):
        return None
    try:
        decoder = make(arguments)
    except (KeyError, TypeError):
        # a default of transformers, or a mistake: only transformers knows
        return None
    if any(value for key, value in arguments.items() if key not in UNREAD):
        return None
    return decoder


def _llama(arguments: dict[str, Any]) -> Decoder:
    """Blocks of Llama, and of Mixtral, whose MLP is a router and experts. Removes the arguments
    that it reads from `arguments`."""
    width = arguments.pop("hidden_size")
    mlp_width = arguments.pop("intermediate_size")
    heads = arguments.pop("num_attention_heads")
    key_value_heads = arguments.pop("num_key_value_heads", None) or heads
    head_width = arguments.pop("head_dim", None)
    head_width = head_width or width // heads
    query_width = heads * head_width
    key_value_width = key_value_heads * head_width
    experts = arguments.pop("num_local_experts", None)
    active = arguments.pop("num_experts_per_tok", None)
    matrices = [
        Matrix("self_attn.q_proj", width, query_width),
        Matrix("self_attn.k_proj", width, key_value_width),
        Matrix("self_attn.v_proj", width, key_value_width),
        Matrix("self_attn.o_proj", query_width, width),
    ]
    if experts:
        matrices += [
            Matrix("mlp.gate", width, experts),
            Matrix("mlp.experts", width, 2 * mlp_width, experts, active),
            Matrix("mlp.experts", mlp_width, width, experts, active),
        ]
    else:
        matrices += [
            Matrix("mlp.gate_proj", width, mlp_width),
            Matrix("mlp.up_proj", width, mlp_width),
            Matrix("mlp.down_proj", mlp_width, width),
        ]
    head = Matrix("lm_head", width, arguments.pop("vocab_size"))
    tied = arguments.pop("tie_word_embeddings", False)
    layers = arguments.pop("num_hidden_layers")
    return Decoder(
        blocks="model.layers",
        attention="self_attn",
        layers=layers,
        heads=heads,
        key_value_heads=key_value_heads,
        head_width=head_width,
        matrices=tuple(matrices),
        head=head,
        positions=0,
        norm=width,
        tied=tied,
    )


def _gpt2(arguments: dict[str, Any]) -> Decoder:
    """Blocks of GPT-2. Removes the arguments that it reads from `arguments`."""
    width = arguments.pop("n_embd")
    heads = arguments.pop("n_head")
    mlp_width = arguments.pop("n_inner", None) or 4 * width
    matrices = (
        Matrix("attn.c_attn", width, 3 * width, bias=True),
        Matrix("attn.c_proj", width, width, bias=True),
        Matrix("mlp.c_fc", width, mlp_width, bias=True),
        Matrix("mlp.c_proj", mlp_width, width, bias=True),
    )
    head = Matrix("lm_head", width, arguments.pop("vocab_size", 50257))
    positions = arguments.pop("n_positions", 1024)
    tied = arguments.pop("tie_word_embeddings", True)
    layers = arguments.pop("n_layer")
    return Decoder(
        blocks="transformer.h",
        attention="attn",
        layers=layers,
        heads=heads,
        key_value_heads=heads,
        head_width=width // heads,
        matrices=matrices,
        head=head,
        positions=positions,
        norm=2 * width,
        tied=tied,
    )
