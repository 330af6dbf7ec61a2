"""Finds the batch of a step: the samples that the loop gave its models, however many models saw
them, and how often."""

from collections.abc import Iterable, Mapping, Sequence

from mfulab.core.parts import drop_none
from mfulab.core.said import Said
from mfulab.loop.interactive.costs import Phase

UNKNOWN = Said("batch_unknown")


def of_models(passed: Iterable[Phase]) -> dict[int, int | None]:
    """Batch of each model, by index, in the forward passes that one backward pass goes through;
    None if its calls differ. Calls without a tensor are ignored."""
    batches: dict[int, int | None] = {}
    for phase in passed:
        if phase.model_index is not None and phase.samples is not None:
            known = batches.setdefault(phase.model_index, phase.samples)
            batches[phase.model_index] = known if known == phase.samples else None
    return batches


def samples_of(phases: Sequence[Phase]) -> int | None:
    """Samples of a step: those of its backward passes, else of its forward passes; of several
    models the fewest. None if unknown.

    A model that is called several times before one backward pass sees one batch: a critic on real
    and on generated samples, a cell at each time step. Each further backward pass of a model adds
    its own batch, as in gradient accumulation. Evaluations inside a training do not count.
    """
    passes = drop_none(phase.through for phase in phases)
    if not any(passes):
        passes = [of_models([phase]) for phase in phases]
    return _fewest(passes)


def _fewest(passes: Sequence[Mapping[int, int | None]]) -> int | None:
    """Sums the batches of each model; returns the smallest sum, or None if a batch is unknown."""
    sums: dict[int, int] = {}
    for batches in passes:
        for index, samples in batches.items():
            if samples is None:
                return None
            sums[index] = sums.get(index, 0) + samples
    return min(sums.values(), default=None)
