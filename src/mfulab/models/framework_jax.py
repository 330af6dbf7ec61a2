"""Steps in JAX: one function, compiled by XLA at its first call."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.example_libraries import optimizers

from mfulab.core.groups import WorkloadConfig
from mfulab.models.framework_layers import Layer, channels_first

Parameters = list[tuple[Any, ...]]


def inference_step(layers: Sequence[Layer], images: np.ndarray) -> Callable[[], torch.Tensor]:
    """The forward pass, jitted."""
    forward, parameters, held = jax.jit(_forward(layers)), _parameters(layers), jnp.asarray(images)
    return lambda: channels_first(torch.from_dlpack(forward(parameters, held).block_until_ready()))


def training_step(
    layers: Sequence[Layer], images: np.ndarray, targets: np.ndarray, workload: WorkloadConfig
) -> Callable[[], torch.Tensor]:
    """Forward, loss, backward and Adam as one jitted function, whose state is given over in place; returns the loss."""
    start, update, parameters_of = optimizers.adam(workload.learning_rate)  # the same constants as torch's
    forward, held, wanted = _forward(layers), jnp.asarray(images), jnp.asarray(targets)

    def loss(parameters: Parameters) -> Any:
        output = forward(parameters, held)
        if output.ndim == 4:
            output = jnp.transpose(output, (0, 3, 1, 2))
        scores = jax.nn.log_softmax(output.reshape(len(output), -1))
        return -jnp.mean(jnp.take_along_axis(scores, wanted[:, None], axis=1))

    def one(step: Any, state: Any) -> tuple[Any, Any]:
        value, gradients = jax.value_and_grad(loss)(parameters_of(state))
        return value, update(step, gradients, state)

    compiled = jax.jit(one, donate_argnums=1)
    state, done = start(_parameters(layers)), 0

    def step(*_: object) -> torch.Tensor:
        nonlocal state, done
        value, state = compiled(done, state)
        jax.block_until_ready(state)
        done += 1
        return torch.tensor(float(value))

    return step


def _parameters(layers: Sequence[Layer]) -> Parameters:
    return [tuple(jnp.asarray(one) for one in (each.weight, each.bias) if one is not None) for each in layers]


def _forward(layers: Sequence[Layer]) -> Callable[[Parameters, Any], Any]:
    def forward(parameters: Parameters, values: Any) -> Any:
        for layer, held in zip(layers, parameters, strict=True):
            match layer.kind:
                case "convolution":
                    padding = [(each, each) for each in layer.padding]
                    layout = ("NHWC", "HWIO", "NHWC")
                    values = jax.lax.conv_general_dilated(
                        values, held[0], layer.stride, padding, dimension_numbers=layout
                    )
                case "linear":
                    values = values @ held[0]
                case "relu":
                    values = jax.nn.relu(values)
                case "flatten":
                    values = values.reshape(len(values), -1)
            if len(held) > 1:
                values = values + held[1]
        return values

    return forward
