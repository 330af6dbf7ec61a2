"""A training step in the style of TensorFlow 1: first a graph with placeholders, then a session
that runs it.

    pip install ".[frameworks]" && python examples/static_graph.py

Nothing is computed while the graph is built; `run` computes only what is requested. Eager
frameworks compute each line immediately, and `tf.function` and `torch.compile` record a graph from
such lines.
"""

import numpy as np
import tensorflow.compat.v1 as tf


def graph(width: int = 64, classes: int = 10) -> tuple[tf.Graph, dict[str, tf.Tensor]]:
    """Graph with one hidden layer, and its tensors by name, including the loss and a step of
    gradient descent."""
    built = tf.Graph()
    with built.as_default():
        images, labels = tf.placeholder(tf.float32, [None, width]), tf.placeholder(tf.int64, [None])
        drawn = tf.random_normal_initializer(stddev=width**-0.5, seed=0)
        first = tf.get_variable("first", [width, width], initializer=drawn)
        last = tf.get_variable("last", [width, classes], initializer=drawn)
        scores = tf.nn.relu(images @ first) @ last
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores))
        step = tf.train.GradientDescentOptimizer(0.5).minimize(loss)
        start = tf.global_variables_initializer()
    return built, {"images": images, "labels": labels, "loss": loss, "step": step, "start": start}


def main(steps: int = 20) -> list[float]:
    """Prints the number of operations in the graph, and the loss of every fifth step. Returns all
    losses."""
    built, named = graph()
    print(f"{len(built.get_operations())} operations, none of which has run")
    drawn = np.random.default_rng(0)
    batch = {
        named["images"]: drawn.standard_normal((128, 64)),
        named["labels"]: drawn.integers(0, 10, 128),
    }
    losses = []
    with tf.Session(graph=built) as session:
        session.run(named["start"])
        for number in range(steps):
            loss, _ = session.run([named["loss"], named["step"]], batch)
            losses.append(float(loss))
            if number % 5 == 0:
                print(f"step {number}: loss {loss:.3f}")
    return losses


if __name__ == "__main__":
    main()
