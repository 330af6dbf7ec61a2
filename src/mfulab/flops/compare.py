"""Compares the count of one model with the field's formulas."""

import torch

from mfulab.flops.count import Count
from mfulab.flops.formulas import TransformerShape, kaplan_flops, megatron_flops, palm_flops


def looked_up_parameters(model: torch.nn.Module) -> int:
    """Parameters of embedding tables that no other layer, such as an output layer, shares. A pass
    reads only one row per token of them."""
    tables: dict[int, int] = {}
    others: dict[int, int] = {}
    for module in model.modules():
        is_table = isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag)
        for parameter in module.parameters(recurse=False):
            (tables if is_table else others)[id(parameter)] = parameter.numel()
    return sum(tables[key] for key in tables.keys() - others.keys())


def transformer_shape(model: torch.nn.Module) -> TransformerShape | None:
    """Shape of a transformers decoder, from its config, without parameters that are only looked up.
    None for any other model."""
    config = getattr(model, "config", None)
    heads = getattr(config, "num_attention_heads", None)
    if config is None or heads is None or not getattr(config, "vocab_size", None):
        return None
    # Latent attention has wider vectors for scores than for values; their mean counts.
    latent = getattr(config, "kv_lora_rank", None) or 0
    width = 0
    if latent:
        latent += config.qk_rope_head_dim
        width = (config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim) // 2
    return TransformerShape(
        parameters=sum(parameter.numel() for parameter in model.parameters())
        - looked_up_parameters(model),
        layers=config.num_hidden_layers,
        heads=heads,
        head_width=width or getattr(config, "head_dim", None) or config.hidden_size // heads,
        width=config.hidden_size,
        vocabulary_size=config.vocab_size,
        key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
        causal=any(getattr(module, "is_causal", False) is True for module in model.modules()),
        latent_width=latent,
    )


def compare_formulas(
    model: torch.nn.Module, count: Count, samples: int, context: int
) -> list[dict[str, object]]:
    """Returns a row for each formula: its value, the counted FLOPs, and the deviation in percent.
    Empty if the model is no transformers decoder."""
    shape = transformer_shape(model)
    if shape is None:
        return []
    flops = count.operations.model_flops
    sizes = (samples * context, context)
    gpt = "holds for GPT's shape: an MLP four times as wide, as many heads of keys as of queries"
    formulas = [
        ("6·N", "arXiv:2001.08361", kaplan_flops(shape, sizes[0]), "leaves attention out"),
        (
            "6·N + 12·L·H·Q·T",
            "arXiv:2204.02311",
            palm_flops(shape, *sizes),
            "counts biases and norms as matmuls",
        ),
        ("72·B·T·L·h²·(1 + T/6h + V/12hL)", "arXiv:2205.05198", megatron_flops(shape, *sizes), gpt),
    ]
    rows = list[dict[str, object]]()
    for name, source, value, note in formulas:
        row = {
            "formula": name,
            "source": source,
            "formula_flops": round(value),
            "counted_flops": flops,
            "deviation_percent": 100 * (value / flops - 1),
            "note": note,
        }
        rows.append(row)
    return rows
