"""Exact zeros in the second moments of Adam and AdamW: means of each gradient's square. A weight whose
gradient has always been zero keeps one."""

import torch

SECOND_MOMENTS = "exp_avg_sq"  # key of a parameter's state in torch's Adam and AdamW


def zeros_percent(optimizer: torch.optim.Optimizer) -> float | None:
    """Share of exact zeros in an optimiser's second moments, in percent; of a sharded state, in this
    process's shards. None if it keeps no second moments, or has made no step."""
    count = 0
    zeros = 0
    for state in optimizer.state.values():
        if SECOND_MOMENTS not in state:
            continue
        moments = _held_here(state[SECOND_MOMENTS])
        count += moments.numel()
        zeros += moments.numel() - int(torch.count_nonzero(moments))
    if not count:
        return None
    return 100 * zeros / count


def _held_here(moments: torch.Tensor) -> torch.Tensor:
    """A tensor's part that this process holds: all of it, unless FSDP shards it."""
    to_local = getattr(moments, "to_local", None)
    if callable(to_local):
        return to_local()  # type: ignore[no-any-return]
    return moments
