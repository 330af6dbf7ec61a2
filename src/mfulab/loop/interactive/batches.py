"""The batch of a step: what the loop gave its models, however many of them saw it, and how often."""

from collections.abc import Iterable, Mapping, Sequence

from mfulab.core.said import Said
from mfulab.loop.interactive.costs import Phase

UNKNOWN = Said("batch_unknown")


def of_models(passed: Iterable[Phase]) -> dict[int, int | None]:
    """Batch of each model, by its place, in the forward passes that one backward pass goes
    through; None for calls that differ. A call without a tensor says nothing."""
    batches: dict[int, int | None] = {}
    for phase in passed:
        if phase.place is not None and phase.samples is not None:
            known = batches.setdefault(phase.place, phase.samples)
            batches[phase.place] = known if known == phase.samples else None
    return batches


def samples_of(phases: Sequence[Phase]) -> int | None:
    """Samples of a step: what each backward pass went through, else what went forward, and of
    several models the fewest; None where it cannot be told.

    A model that is called several times before one backward pass sees one batch: a critic on real
    and on made samples, a cell of each time step. Each further backward pass of a model adds
    its own, as where gradients are accumulated. Evaluations inside a training count for nothing.
    """
    passes = []
    for phase in phases:
        if phase.through is not None:
            passes.append(phase.through)
    if not any(passes):
        passes = [of_models([phase]) for phase in phases]
    return _fewest(passes)


def _fewest(passes: Sequence[Mapping[int, int | None]]) -> int | None:
    sums: dict[int, int] = {}
    for batches in passes:
        for index, samples in batches.items():
            if samples is None:
                return None
            sums[index] = sums.get(index, 0) + samples
    return min(sums.values(), default=None)
