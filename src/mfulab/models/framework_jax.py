"""Steps in JAX: one function, compiled by XLA at its first call."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.example_libraries import optimizers

from mfulab.core.groups import WorkloadConfig
from mfulab.models.framework_layers import Layer, channels_first, forward, parameters_of

DIMENSIONS = ("NHWC", "HWIO", "NHWC")  # order of images', weight's and results' sides


def _convolution(values: Any, layer: Layer, weight: Any) -> Any:
    padding = [(side, side) for side in layer.padding]
    return jax.lax.conv_general_dilated(
        values, weight, layer.stride, padding, dimension_numbers=DIMENSIONS
    )


OPERATIONS: dict[str, Callable[..., Any]] = {
    "convolution": _convolution,
    "linear": lambda values, _, weight: values @ weight,
    "relu": lambda values, _: jax.nn.relu(values),
    "flatten": lambda values, _: values.reshape(len(values), -1),
    "bias": lambda values, bias: values + bias,
}


def inference_step(layers: Sequence[Layer], images: np.ndarray) -> Callable[[], torch.Tensor]:
    """Returns the jitted forward pass."""
    call = jax.jit(lambda parameters, values: forward(layers, parameters, values, OPERATIONS))
    parameters = parameters_of(layers, jnp.asarray)
    inputs = jnp.asarray(images)

    def step() -> torch.Tensor:
        output = call(parameters, inputs).block_until_ready()
        return channels_first(torch.from_dlpack(output))

    return step


def training_step(
    layers: Sequence[Layer], images: np.ndarray, targets: np.ndarray, workload: WorkloadConfig
) -> Callable[[], torch.Tensor]:
    """Returns forward, loss, backward and Adam as one jitted function. It updates its state in
    place (donated) and returns the loss."""
    # with the same constants as torch
    start, update, current = optimizers.adam(workload.learning_rate)
    inputs = jnp.asarray(images)
    labels = jnp.asarray(targets)

    def loss(parameters: list[list[Any]]) -> Any:
        output = forward(layers, parameters, inputs, OPERATIONS)
        if output.ndim == 4:
            output = jnp.transpose(output, (0, 3, 1, 2))
        scores = jax.nn.log_softmax(output.reshape(len(output), -1))
        return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=1))

    def update_state(step: Any, state: Any) -> tuple[Any, Any]:
        value, gradients = jax.value_and_grad(loss)(current(state))
        return value, update(step, gradients, state)

    compiled = jax.jit(update_state, donate_argnums=1)
    state = start(parameters_of(layers, jnp.asarray))
    steps_done = 0

    def step(*_: object) -> torch.Tensor:
        nonlocal state, steps_done
        value, state = compiled(steps_done, state)
        jax.block_until_ready(state)
        steps_done += 1
        return torch.tensor(float(value))

    return step
