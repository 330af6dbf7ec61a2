"""Language models from transformers with a few thousand parameters."""

from mfulab.core.groups import ModelConfig

WIDTH, LAYERS, VOCABULARY, LENGTH, BATCH = 64, 2, 100, 24, 3


def language_model(architecture: str, **arguments: object) -> ModelConfig:
    return ModelConfig(
        name="small",
        _target_="mfulab.models.huggingface.build",
        arguments={"architecture": architecture, "vocab_size": VOCABULARY, **arguments},
        task="language_modeling",
        sequence_length=LENGTH,
        vocabulary_size=VOCABULARY,
    )


GPT2 = language_model("GPT2LMHeadModel", n_embd=WIDTH, n_layer=LAYERS, n_head=4)
LLAMA = language_model(
    "LlamaForCausalLM",
    hidden_size=WIDTH,
    intermediate_size=2 * WIDTH,
    num_hidden_layers=LAYERS,
    num_attention_heads=4,
    num_key_value_heads=2,
)
BERT = language_model(
    "BertForMaskedLM",
    hidden_size=WIDTH,
    num_hidden_layers=1,
    num_attention_heads=4,
    intermediate_size=WIDTH,
)
SLIDING = language_model(
    "MistralForCausalLM",
    hidden_size=WIDTH,
    intermediate_size=WIDTH,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    sliding_window=8,
)
