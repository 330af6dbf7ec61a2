"""FLOPs, bytes and saved activations of a model's step, counted without a device."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from mfulab.core.configs import StepConfig
from mfulab.core.groups import Dimension, ModelConfig
from mfulab.core.measurement import Measurement
from mfulab.core.rows import Percent, Row, column


class CountFlopsConfig(StepConfig):
    """FLOPs of a model's step, counted once for every precision, workload, execution and device."""

    axes: ClassVar[tuple[str, ...]] = ("model", "batch_size", "sequence_length")
    on_device: ClassVar[bool] = False
    model: ModelConfig
    batch_size: Dimension = Field(8, description="Samples a step; of each micro-batch with gradient accumulation.")
    sequence_length: Dimension | None = column("Tokens a sample; empty: the model's own.")

    @model_validator(mode="after")
    def _sequence_only_for_tokens(self) -> "CountFlopsConfig":
        length = None if self.model.vocabulary_size is None else self.sequence_length or self.model.sequence_length
        self.sequence_length = length
        return self


class FlopsRow(Row):
    """Per step of `batch_size` samples. 1 multiply-add = 2 FLOPs; matmul, convolution and attention count."""

    model: str = Field("", description="Name of its config.")
    batch_size: int | None = column("Samples a step; of each micro-batch with gradient accumulation.")
    sequence_length: int | None = column("Tokens a sample; empty for images.")
    parameters: int | None = column("Elements of all weights; shared ones once.")
    trainable_parameters: int | None = column("Those that a gradient reaches.")
    looked_up_parameters: int | None = column("Of tables that nothing multiplies by: a pass reads rows of them.")
    counted_on: Literal["meta", "fake", "cpu"] | None = column("Meta device; fake or CPU tensors where it must be.")
    forward_flops: int | None = column("Attention counted full.")
    backward_flops: int | None = column("Without recomputation.")
    forward_macs: int | None = column("forward_flops / 2.")
    attention_flops: int | None = column("The part of forward_flops that grows with pairs of tokens.")
    forward_causal_flops: int | None = column("Causal attention counted by its half.")
    backward_causal_flops: int | None = column("The same of the backward pass.")
    executed_backward_flops: int | None = column("As the kernels do it, flash attention's recomputation included.")
    useful_percent: Percent | None = column("Of forward and backward FLOPs, those for real tokens; empty if unknown.")
    recomputed_flops: int | None = column("Executed in addition with activation checkpointing.")
    optimizer_flops: int | None = column("Of Adam; of others: flops/elementwise.yaml.")
    other_flops: int | None = column("Norms, activations, softmax, loss, forward.")
    other_backward_flops: int | None = column("The same of the backward pass.")
    uncounted_operators: str | None = column("JSON: operator without a formula → calls.")
    unused_modules: str | None = column("Modules with weights that did not run and cost nothing.")
    forward_bytes: int | None = column("Read and written by the counted operators, 4 bytes an element.")
    backward_bytes: int | None = column("The same of the backward pass.")
    other_bytes: int | None = column("The same of all other operators, forward.")
    other_backward_bytes: int | None = column("The same of the backward pass.")
    activation_bytes: int | None = column("Floats saved for the backward pass, 4 bytes each; no fused scores.")
    activation_fixed_bytes: int | None = column("Integers and masks saved for it, the same in every precision.")
    cpu_lstm_bytes: int | None = column("What oneDNN's LSTMs save besides on a CPU, in fp32, or in bf16 where it can.")
    cpu_lstm_fixed_bytes: int | None = column("The same, of what stays fp32 in every precision.")
    checkpointed_activation_bytes: int | None = column("Floats saved with checkpointing, 4 bytes each.")
    logits_bytes: int | None = column("A language model's output, 4 bytes an element.")
    key_value_cache_bytes: int | None = column("Keys and values of all layers, 4 bytes each; causal transformers only.")
    step_peak_bytes: int | None = column("Floats alive at once beside weights, 4 bytes each: activations, gradients.")
    step_peak_fixed_bytes: int | None = column("Integers and masks alive at the same time.")
    checkpointed_peak_bytes: int | None = column("step_peak_bytes with activation checkpointing.")
    inference_flops: int | None = column("Forward in evaluation mode.")
    inference_causal_flops: int | None = column("The same, causal attention counted by its half.")
    inference_other_flops: int | None = column("Norms, activations and softmax of that pass.")
    inference_bytes: int | None = column("Read and written by its counted operators, 4 bytes each.")
    least_bytes: int | None = column("Of inference as one operator: input, parameters and output, each moved once.")
    inference_peak_bytes: int | None = column("Floats alive at once beside the weights, 4 bytes each.")
    inference_peak_fixed_bytes: int | None = column("Integers and masks alive at the same time.")
    prefill_flops: int | None = column("Of a whole prompt, with its last token's logits; causal transformers only.")
    prefill_causal_flops: int | None = column("The same, causal attention counted by its half.")
    prefill_bytes: int | None = column("Read and written by its counted operators, 4 bytes each.")
    decoding_flops: int | None = column("Of each sequence's last token, others in a cache; causal transformers only.")
    decoding_bytes: int | None = column("Read and written by its counted operators, 4 bytes each.")
    intensities: str | None = column("JSON: pass → [executed FLOPs, bytes of 4 an element], by alike intensity summed.")


MEASUREMENT = Measurement(
    "flops",
    CountFlopsConfig,
    FlopsRow,
    "Counting FLOPs of {wildcards.run}",
    "model batch_size sequence_length status parameters forward_flops backward_flops uncounted_operators",
    priority=10,
    position=70,
)
