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
from mfulab.core.said import Numbers, Said, of_source
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
    needed = ("torch", "transformers") if config.target == BUILT else ("torch",)
    return next((package for package in needed if find_spec(package) is None), None)


def computed(
    config: ModelConfig,
    sequence_length: int | None = None,
    batch_size: int = 1,
    mode: Mode = "training",
) -> Work:
    """Computes one step of a decoder. `saved_elements` is None, and operators are only matmuls and
    attention. Raises ConfigurationError if the model is no such decoder, or has fewer positions
    than tokens."""
    stack = _decoder(config)
    if stack is None:
        lacking = lacks(Said("counting_it"), missing(config) or "torch") or ""
        raise ConfigurationError(of_source(f"model={config.name}", lacking))
    keys = sequence_length or config.sequence_length or 1
    if stack.positions and keys > stack.positions:
        positions: Numbers = {"model": config.name, "positions": stack.positions}
        raise ConfigurationError(
            of_source(f"sequence_length={keys}", Said("positions_for", positions))
        )
    tokens = batch_size * (1 if mode == "decoding" else keys)
    blocks = stack.layers * sum(
        matrix.weights + matrix.bias * matrix.outputs for matrix in stack.matrices
    )
    norms = stack.norm * (2 * stack.layers + 1)
    tables = stack.head.weights * (not stack.tied) + stack.positions * stack.head.inputs
    whole = blocks + norms + tables + stack.head.weights
    return Work(
        mode=mode,
        tokens=tokens,
        batch_size=batch_size,
        parameters=whole,
        trainable=whole,
        looked_up=tables,
        unmultiplied=norms
        + stack.layers * sum(matrix.bias * matrix.outputs for matrix in stack.matrices),
        inactive=stack.layers
        * sum(e.weights - e.weights * e.active // e.experts for e in stack.matrices),
        saved_elements=None,
        cache_elements=2
        * stack.layers
        * stack.key_value_heads
        * stack.head_width
        * keys
        * batch_size,
        operations=tuple(_operations(stack, batch_size, tokens, keys, mode)),
        total_flos=6 * tokens * (blocks + norms + stack.head.weights * (not stack.tied))
        if mode == "training"
        else 0,
        message=f"by arithmetic on its dimensions; {lacks('counting the module itself', missing(config) or 'torch')}",
    )


def _operations(
    stack: Decoder, batch_size: int, tokens: int, keys: int, mode: Mode
) -> Iterator[Operation]:
    """Yields matmuls and attention, with equal blocks summed as in `Work`. A backward pass has two
    matmuls for each forward one, for gradients of inputs and weights."""
    times = stack.layers
    passes = ("forward", "backward") if mode == "training" else ("forward",)
    queries = batch_size * stack.heads * (tokens // batch_size)
    ends = 2 * stack.head_width * (queries + batch_size * stack.key_value_heads * keys)
    pairs = 4 * stack.head_width * queries * keys * times
    for direction in passes:
        backward = direction == "backward"
        for matrix in (*stack.matrices, stack.head):
            layer = matrix.layer if matrix is stack.head else f"{stack.blocks}.*.{matrix.layer}"
            count = 1 if matrix is stack.head else times
            rows = tokens * matrix.active
            flops = count * 2 * rows * matrix.inputs * matrix.outputs * (1 + backward)
            # A grouped matmul of experts also reads the ends of each expert's rows. Experts that
            # no token chose are not read.
            moved = rows * (matrix.inputs + matrix.outputs) + matrix.weights
            moved += matrix.experts * (matrix.active < matrix.experts)
            read = expected_experts_read(matrix.experts, matrix.active, tokens) / matrix.experts
            unread = round(matrix.weights * (1 - read)) if matrix.experts > 1 else 0
            moved = moved * (1 + backward) - unread + matrix.bias * matrix.outputs * (not backward)
            operator = "mfulab::grouped_product" if matrix.experts > 1 else "aten::mm"
            yield Operation(layer, operator, direction, flops, flops, flops, count * moved, 0)
        flops, executed = (2 * pairs, 2.5 * pairs) if backward else (pairs, pairs)
        causal = flops if mode == "decoding" else flops / 2
        name = "mfulab::attention_backward" if backward else "mfulab::attention"
        moved = times * (ends * (1 + backward) + queries)
        yield Operation(
            f"{stack.blocks}.*.{stack.attention}",
            name,
            direction,
            flops,
            causal,
            executed,
            moved,
            0,
        )


def _decoder(config: ModelConfig) -> Decoder | None:
    """Dimensions of the model. None if it is not known to consist only of these parts."""
    given = dict(config.arguments)
    makers = {"LlamaForCausalLM": _llama, "MixtralForCausalLM": _llama, "GPT2LMHeadModel": _gpt2}
    make = makers.get(str(given.pop("architecture", None)))
    built = config.target, config.pruning, config.task, given.pop("attention", "sdpa")
    if make is None or built != (BUILT, "none", "language_modeling", "sdpa"):
        return None
    try:
        decoder = make(given)
    except (KeyError, TypeError):
        # a default of transformers, or a mistake: only transformers knows
        return None
    if any(value for key, value in given.items() if key not in UNREAD):
        return None
    return decoder


def _llama(given: dict[str, Any]) -> Decoder:
    """Blocks of Llama, and of Mixtral, whose MLP is a router and experts. Removes the arguments
    that it reads from `given`."""
    width = given.pop("hidden_size")
    inner = given.pop("intermediate_size")
    heads = given.pop("num_attention_heads")
    key_value_heads = given.pop("num_key_value_heads", None) or heads
    head_width = given.pop("head_dim", None)
    head_width = head_width or width // heads
    across = heads * head_width, key_value_heads * head_width
    experts = given.pop("num_local_experts", None)
    active = given.pop("num_experts_per_tok", None)
    parts = [Matrix(f"self_attn.{name}_proj", width, across[name != "q"]) for name in "qkv"]
    parts += [Matrix("self_attn.o_proj", across[0], width)]
    if experts:
        parts += [Matrix("mlp.gate", width, experts)]
        sides = (width, 2 * inner), (inner, width)
        parts += [Matrix("mlp.experts", *sizes, experts, active) for sizes in sides]
    else:
        parts += [Matrix(f"mlp.{name}_proj", width, inner) for name in ("gate", "up")]
        parts += [Matrix("mlp.down_proj", inner, width)]
    head = Matrix("lm_head", width, given.pop("vocab_size"))
    tied = given.pop("tie_word_embeddings", False)
    layers = given.pop("num_hidden_layers")
    return Decoder(
        "model.layers",
        "self_attn",
        layers,
        heads,
        key_value_heads,
        head_width,
        tuple(parts),
        head,
        0,
        width,
        tied,
    )


def _gpt2(given: dict[str, Any]) -> Decoder:
    """Blocks of GPT-2. Removes the arguments that it reads from `given`."""
    width = given.pop("n_embd")
    heads = given.pop("n_head")
    inner = given.pop("n_inner", None) or 4 * width
    sides = {"attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width)}
    sides |= {"mlp.c_fc": (width, inner), "mlp.c_proj": (inner, width)}
    parts = tuple(Matrix(name, *sizes, bias=True) for name, sizes in sides.items())
    head = Matrix("lm_head", width, given.pop("vocab_size", 50257))
    positions = given.pop("n_positions", 1024)
    tied = given.pop("tie_word_embeddings", True)
    layers = given.pop("n_layer")
    return Decoder(
        "transformer.h",
        "attn",
        layers,
        heads,
        heads,
        width // heads,
        parts,
        head,
        positions,
        2 * width,
        tied,
    )
