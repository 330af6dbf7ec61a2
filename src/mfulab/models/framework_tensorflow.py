"""Steps in TensorFlow: one operation after another, or traced once into a graph by
`tf.function`."""

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import torch

from mfulab.core.groups import WorkloadConfig
from mfulab.models.framework_layers import Layer, channels_first, forward, parameters_of


def _convolution(values: Any, layer: Layer, weight: Any) -> Any:
    rows, columns = layer.padding
    padding = [[0, 0], [rows, rows], [columns, columns], [0, 0]]
    return tf.nn.conv2d(values, weight, layer.stride, padding)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "convolution": _convolution,
    "linear": lambda values, _, weight: values @ weight,
    "relu": lambda values, _: tf.nn.relu(values),
    "flatten": lambda values, _: tf.reshape(values, (values.shape[0], -1)),
    "bias": tf.nn.bias_add,
}


def use_threads(threads: int) -> None:
    """Limits the threads of an operation, and runs one operation at a time. Has an effect only
    before TensorFlow's first operation."""
    with contextlib.suppress(RuntimeError):  # a second model in the process keeps the first one's
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)


def inference_step(
    layers: Sequence[Layer], images: np.ndarray, compiled: bool
) -> Callable[[], torch.Tensor]:
    """Returns the forward pass."""
    inputs = tf.constant(images)
    parameters = parameters_of(layers, tf.Variable)

    def compute() -> Any:
        return forward(layers, parameters, inputs, OPERATIONS)

    call = tf.function(compute, autograph=False) if compiled else compute
    return lambda: channels_first(torch.from_numpy(call().numpy()))


def training_step(
    layers: Sequence[Layer],
    images: np.ndarray,
    targets: np.ndarray,
    workload: WorkloadConfig,
    compiled: bool,
) -> Callable[[], torch.Tensor]:
    """Returns forward, loss, backward and Keras' Adam with torch's constants as one function, which
    returns the loss."""
    inputs = tf.constant(images)
    labels = tf.constant(targets)
    parameters = parameters_of(layers, tf.Variable)
    trained = list(itertools.chain.from_iterable(parameters))
    optimizer = tf.keras.optimizers.Adam(workload.learning_rate, epsilon=1e-8)
    optimizer.build(trained)

    def compute() -> Any:
        with tf.GradientTape() as tape:
            output = forward(layers, parameters, inputs, OPERATIONS)
            if len(output.shape) == 4:
                output = tf.transpose(output, (0, 3, 1, 2))
            output = tf.reshape(output, (len(images), -1))
            value = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, output))
        optimizer.apply_gradients(zip(tape.gradient(value, trained), trained, strict=True))
        return value

    call = tf.function(compute, autograph=False) if compiled else compute
    return lambda *_: torch.tensor(float(call().numpy()))
