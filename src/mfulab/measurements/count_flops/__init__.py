"""FLOPs, bytes and saved activations of a model's step, counted without a device."""

from typing import ClassVar, Literal

from pydantic import Field

from mfulab.core.configs import CountedConfig
from mfulab.core.measurement import Measurement
from mfulab.core.rows import Percent, Row, column, counter_column, json_column


class CountFlopsConfig(CountedConfig):
    """FLOPs of a model's step, counted once for all precisions, workloads, executions and
    devices."""

    axes: ClassVar[tuple[str, ...]] = ("model", "batch_size", "sequence_length")
    on_device: ClassVar[bool] = False


class FlopsRow(Row):
    """FLOPs and bytes of a step of `batch_size` samples: matmuls, convolutions and attention, with
    2 FLOPs per multiply-add."""

    model: str = Field("", description="Name of the model.")
    batch_size: int | None = column(
        "Samples a step; of each micro-batch with gradient accumulation."
    )
    sequence_length: int | None = column("Tokens a sample; empty for images.")
    parameters: int | None = column("Elements of all weights; shared ones once.")
    trainable_parameters: int | None = column("Elements of the weights that a gradient reaches.")
    looked_up_parameters: int | None = counter_column(
        "Elements of tables that nothing multiplies by: passes read some rows."
    )
    counted_on: Literal["meta", "fake", "cpu"] | None = counter_column(
        "Meta device; fake or CPU tensors where it must be."
    )
    forward_flops: int | None = column("FLOPs of the forward pass, attention counted full.")
    backward_flops: int | None = column("FLOPs of the backward pass, without recomputation.")
    forward_macs: int | None = counter_column(
        "Multiply-adds of the forward pass: forward_flops / 2."
    )
    attention_flops: int | None = column("Part of forward_flops that grows with pairs of tokens.")
    forward_causal_flops: int | None = counter_column(
        "FLOPs of the forward pass, causal attention counted by its half."
    )
    backward_causal_flops: int | None = counter_column(
        "FLOPs of the backward pass, causal attention counted by its half."
    )
    executed_backward_flops: int | None = counter_column(
        "FLOPs run in the backward pass, with flash attention's recomputation."
    )
    useful_percent: Percent | None = counter_column(
        "Share of forward and backward FLOPs for real tokens; empty if unknown."
    )
    recomputed_flops: int | None = counter_column(
        "FLOPs executed in addition with activation checkpointing."
    )
    optimizer_flops: int | None = counter_column(
        "FLOPs of Adam's update; flops/elementwise.yaml has other optimisers."
    )
    other_flops: int | None = counter_column(
        "FLOPs of norms, activations, softmax and loss in the forward pass."
    )
    other_backward_flops: int | None = counter_column(
        "FLOPs of norms, activations, softmax and loss in the backward pass."
    )
    uncounted_operators: str | None = json_column("operator without a formula → calls.")
    unused_modules: str | None = counter_column(
        "Modules with weights that did not run and cost nothing."
    )
    forward_bytes: int | None = counter_column(
        "Bytes that counted operators read and write, forward, 4 an element."
    )
    backward_bytes: int | None = counter_column(
        "Bytes that counted operators read and write, backward, 4 an element."
    )
    activation_bytes: int | None = column(
        "Floats saved for the backward pass, 4 bytes each; no fused scores."
    )
    activation_fixed_bytes: int | None = column(
        "Integers and masks saved for the backward pass, in every precision."
    )
    cpu_lstm_bytes: int | None = counter_column(
        "Floats that oneDNN's LSTMs save besides on a CPU, fp32, or bf16 where it can."
    )
    cpu_lstm_fixed_bytes: int | None = counter_column(
        "Bytes that oneDNN's LSTMs save besides on a CPU in every precision."
    )
    checkpointed_activation_bytes: int | None = column(
        "Floats saved with checkpointing, 4 bytes each."
    )
    key_value_cache_bytes: int | None = column(
        "Keys and values of all layers, 4 bytes each; causal transformers only."
    )
    step_peak_bytes: int | None = counter_column(
        "Floats alive at once beside weights, 4 bytes each: activations, gradients."
    )
    step_peak_fixed_bytes: int | None = counter_column(
        "Integers and masks alive at the peak of a step."
    )
    checkpointed_peak_bytes: int | None = counter_column(
        "step_peak_bytes with activation checkpointing."
    )
    inference_flops: int | None = counter_column("FLOPs of the forward pass in evaluation mode.")
    inference_causal_flops: int | None = counter_column(
        "FLOPs in evaluation mode, causal attention counted by its half."
    )
    inference_bytes: int | None = counter_column(
        "Bytes that inference's counted operators read and write, 4 an element."
    )
    inference_peak_bytes: int | None = counter_column(
        "Floats alive at once in inference beside the weights, 4 bytes each."
    )
    inference_peak_fixed_bytes: int | None = counter_column(
        "Integers and masks alive at the peak of inference."
    )
    prefill_flops: int | None = counter_column(
        "FLOPs of a whole prompt and its last token's logits; causal transformers only."
    )
    prefill_causal_flops: int | None = counter_column(
        "FLOPs of a whole prompt, causal attention counted by its half."
    )
    prefill_bytes: int | None = counter_column(
        "Bytes that prefill's counted operators read and write, 4 an element."
    )
    decoding_flops: int | None = counter_column(
        "FLOPs of each sequence's last token, others cached; causal transformers only."
    )
    decoding_bytes: int | None = counter_column(
        "Bytes that decoding's counted operators read and write, 4 an element."
    )
    layers: str | None = json_column(
        "[layer, forward FLOPs] of the 60 largest, in the model's order."
    )
    graph: str | None = json_column(
        "autograd's nodes if a short chain: name, shapes, parameters, FLOPs both ways."
    )
    intensities: str | None = json_column(
        "pass → [executed FLOPs, bytes of 4 an element], alike intensities summed."
    )


MEASUREMENT = Measurement(
    "flops",
    CountFlopsConfig,
    FlopsRow,
    "Counting FLOPs of {wildcards.run}",
    "model batch_size sequence_length status parameters forward_flops backward_flops uncounted_operators",
    priority=10,
    position=70,
)
