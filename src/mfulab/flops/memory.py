"""Predicts memory of training and inference from counts: bytes that a step needs on one device."""

from dataclasses import dataclass, fields, replace
from typing import Literal

Optimizer = Literal["adam", "adamw", "adam_8bit", "sgd"]

# Bytes kept for each trained parameter: two fp32 moments, two 8-bit ones with a scale for each
# block of 256 (Dettmers et al. 2021, arXiv:2110.02861: 2·(1 + 4/256)), or nothing.
STATE_BYTES: dict[Optimizer, float] = {
    "adam": 8,
    "adamw": 8,
    "adam_8bit": 2 * (1 + 4 / 256),
    "sgd": 0,
}


@dataclass(frozen=True)
class StepMemory:
    """Bytes that a step holds."""

    weights: int  # in the format of the matmuls; under autocast also the fp32 ones that it casts
    master_weights: int  # fp32 copy that the optimiser updates in mixed precision
    gradients: int  # one for each trained parameter
    optimizer_state: int  # moments
    activations: int  # tensors saved for the backward pass, including the logits
    cache: int = 0  # keys and values of generation

    @property
    def total(self) -> int:
        """Sum of all parts, which is needed if all gradients exist while all activations still
        do."""
        return sum(getattr(self, part.name) for part in fields(self))

    def sharded(self, devices: int) -> "StepMemory":
        """Part of one device if all but activations and cache are divided: ZeRO stage 3
        (arXiv:1910.02054, section 5)."""
        divided = ("weights", "master_weights", "gradients", "optimizer_state")
        return replace(self, **{name: -(-getattr(self, name) // devices) for name in divided})


def training_memory(
    parameters: int,
    *,
    trainable: int | None = None,
    element_bytes: int = 4,
    master_copy: bool = False,
    autocast: bool = False,
    optimizer: Optimizer = "adam",
    activation_elements: int = 0,
    activation_fixed_bytes: int = 0,
) -> StepMemory:
    """Memory that training keeps for a model of which `trainable` parameters are trained; all if
    None.

    Args:
        element_bytes: size of a weight, a gradient and an activation: 4 for fp32, 2 for
            fp16 and bf16.
        master_copy: whether an fp32 copy of 16-bit trained weights is kept. With Adam this
            makes the 16 bytes per parameter of mixed precision (Rajbhandari et al. 2020,
            arXiv:1910.02054, section 3.1).
        autocast: whether weights, gradients and moments stay fp32, with activations and a
            copy of the weights in `element_bytes`.
        optimizer: optimiser whose moments are kept, in fp32 with a master copy or fp32
            weights, else in the weights' format.
        activation_elements: number of floats saved for the backward pass.
        activation_fixed_bytes: bytes of integers and masks saved for it.
    """
    trained = parameters if trainable is None else trainable
    stored = 4 if autocast else element_bytes
    # torch's optimisers keep moments in the format of the weights that they update.
    state_scale = 1.0 if master_copy or optimizer == "adam_8bit" else stored / 4
    return StepMemory(
        weights=parameters * (stored + element_bytes if autocast else stored),
        master_weights=4 * trained if master_copy else 0,
        gradients=trained * stored,
        optimizer_state=round(STATE_BYTES[optimizer] * trained * state_scale),
        activations=activation_elements * element_bytes + activation_fixed_bytes,
    )


def training_peak_bytes(
    parameters: int,
    trainable: int,
    step_peak_bytes: int,
    step_peak_fixed_bytes: int,
    *,
    element_bytes: int = 4,
    autocast: bool = False,
    optimizer: Optimizer = "adam",
    optimizer_copies: int = 0,
    accumulated: bool = False,
) -> int:
    """Peak memory of a training step beyond its inputs, without an allocator's rounding and the
    libraries' workspaces. Weights and optimiser state are always there. On top comes the larger of
    two: the peak of forward and backward, or gradients with the optimiser's temporaries. Step peaks
    are as counted, at 4 bytes per element. `optimizer_copies` are temporaries as large as all
    gradients: 1 for torch's default (foreach) Adam on a GPU. With `accumulated`, gradients of an
    earlier micro-batch exist while the next one runs. Other arguments are those of
    `training_memory`."""
    stored = 4 if autocast else element_bytes
    kept = training_memory(
        parameters,
        trainable=trainable,
        element_bytes=element_bytes,
        autocast=autocast,
        optimizer=optimizer,
    )
    # The step peak is scaled to one format, but gradients keep four bytes under autocast.
    widened = 0
    if autocast:
        widened = parameters * element_bytes + trainable * (stored - element_bytes)
    earlier = 0
    if accumulated:
        earlier = kept.gradients
    passes = step_peak_bytes // 4 * element_bytes + step_peak_fixed_bytes + widened + earlier
    update = kept.gradients * (1 + optimizer_copies)
    return parameters * stored + kept.optimizer_state + max(passes, update)


def inference_peak_bytes(
    parameters: int,
    peak_bytes: int,
    peak_fixed_bytes: int,
    *,
    element_bytes: int = 4,
    autocast: bool = False,
) -> int:
    """Peak memory of a forward pass that saves nothing for backward. Arguments are as in
    `training_peak_bytes`."""
    weights = parameters * (4 + element_bytes if autocast else element_bytes)
    return weights + peak_bytes // 4 * element_bytes + peak_fixed_bytes


def onednn_lstm_workspace(
    steps: int, batch_size: int, input_size: int, hidden_size: int
) -> tuple[int, int]:
    """Predicts oneDNN's workspace for one layer and direction of an LSTM. Returns elements, whose
    size depends on the format, and bytes that do not; exact for formats of 4 and 2 bytes. Gates,
    states and gradients of states each begin on a page. Rows are padded to 64 bytes, and by 64 more
    if their length is a multiple of 256 elements. Source: oneDNN src/cpu/rnn/rnn_utils.cpp
    (set_workspace_sizes, get_good_ld)."""
    tokens = steps * batch_size
    states = 2 * (steps + 1) * batch_size
    widest = max(input_size, hidden_size)

    def paged(elements: int, size: int) -> int:
        return -(-elements * size // 4096) * 4096

    def padded(width: int, size: int) -> int:
        line = 64 // size
        full_lines = -(-width // line) * line
        if full_lines % 256 == 0:
            return full_lines + line
        return full_lines

    def workspace(size: int) -> int:
        gates = tokens * padded(4 * hidden_size, size)
        states_of_layer = tokens * padded(hidden_size, size)
        parts = gates, states_of_layer, states * padded(widest, size), states * hidden_size
        return sum(paged(elements, size) for elements in parts)

    elements = (workspace(4) - workspace(2)) // 2
    gradients = 2 * paged(states * padded(widest, 4), 4) + paged(states * hidden_size, 4)
    return elements, workspace(4) - 4 * elements + gradients
