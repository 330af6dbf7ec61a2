"""A pointer chase by one thread of a GPU."""

from numba import cuda


@cuda.jit
def chase_kernel(following, place, steps):
    """Moves place[0] by `steps` steps, each of which needs the one before."""
    at = place[0]
    for _ in range(steps):
        at = following[at]
    place[0] = at
