"""A pointer chase by one thread of a GPU."""

from numba import cuda


@cuda.jit
def chase_kernel(following, steps, end):
    """Writes the place after `steps` steps to end[0]; each needs the one before."""
    place = following[0]
    for _ in range(steps - 1):
        place = following[place]
    end[0] = place
