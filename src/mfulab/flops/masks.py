"""Attention masks and sequence lengths as tensors: which documents they hold, and how many
query-key pairs they leave."""

from dataclasses import replace
from typing import Any

from mfulab.flops.cost import Pairs, dense_pairs

MASKED = -1e4  # added to a score, this makes its softmax 0 in every format
_CACHED_PAIRS = "_mfulab_pairs"


def has_data(tensor: object) -> bool:
    """True if a tensor's values can be read: not on the meta device, not fake, and not a shape from
    a trace."""
    without = type(tensor).__name__ in ("FakeTensor", "FunctionalTensor")
    return hasattr(tensor, "device") and tensor.device.type != "meta" and not without


def lengths_of(ends: object) -> list[int] | None:
    """Lengths of packed sequences, from the boundaries between them (`cu_seqlens`). None if the
    values are unknown."""
    values = with_values(ends)
    if values is None:
        return None
    return list(map(int, values.diff().tolist()))


def with_values(tensor: object) -> Any:
    """Returns a tensor whose values can be read: `tensor` itself, or the values that were kept for
    it on the meta device. None if there are none."""
    import sys

    if has_data(tensor):
        return tensor
    # values are kept only if this module was imported
    values = sys.modules.get("mfulab.flops.values")
    if values:
        return values.value_of(tensor)
    return None


def mask_pairs(mask: Any, queries: int, keys: int) -> Pairs:
    """Query-key pairs of one head and sequence, averaged over those that the mask [..., queries,
    keys] distinguishes. A query sees a key where the mask is True, or above -10,000. Documents are
    the blocks along the diagonal that no query's keys reach across. In the full count, each query
    of a document counts as many keys as the one that sees most. Keys that no query sees, and
    queries that see no key, are padding of the document before them. So padding alone does not
    change a full count. Without data, all pairs count, as an upper bound."""
    mask = with_values(mask)
    if mask is None:
        return replace(dense_pairs(queries, keys, False), bound=True)
    import torch

    version, pairs = getattr(mask, _CACHED_PAIRS, (None, None))
    if version != mask._version or pairs is None:
        sees = mask.detach() if mask.dtype == torch.bool else mask.detach() > MASKED
        sees = sees.expand(*sees.shape[:-2], queries, keys).reshape(-1, queries, keys)
        if sees.numel():
            counts = [_count_sequence(sequence)[0] for sequence in sees]
            columns = zip(*counts, strict=True)
            full, attended, padding = (sum(column) / len(counts) for column in columns)
            executed = queries * keys
            pairs = Pairs(full, attended, executed, executed, padding=padding)
        else:
            pairs = Pairs(0, 0, 0)
        setattr(mask, _CACHED_PAIRS, (mask._version, pairs))  # every layer uses the same mask
    return pairs


def documents_of(mask: Any) -> list[list[int]]:
    """Number of real tokens in each document, for each sequence of `mask` [sequences, heads,
    tokens, tokens]. Tokens that no token sees are padding."""
    return [_count_sequence(sequence)[1] for sequence in mask.any(1)]


def _count_sequence(sees: Any) -> tuple[tuple[float, float, float], list[int]]:
    """Counts a mask [queries, keys]. Returns its full pairs, attended pairs, and full pairs that
    meet padding; and the number of real keys in each document."""
    import torch

    count = sees.sum(-1)
    rows = count.nonzero().squeeze(-1)
    if not len(rows):
        return (0.0, 0.0, 0.0), []
    keys = sees.shape[-1]
    seen = sees[rows].to(torch.uint8)
    first = seen.argmax(-1)
    last = keys - 1 - seen.flip(-1).argmax(-1)
    # A document ends between two keys if no row's span covers both.
    spans = torch.zeros(keys + 1, dtype=torch.long, device=sees.device)
    ones = torch.ones_like(first)
    spans.scatter_add_(0, first, ones)
    spans.scatter_add_(0, last, -ones)
    covered = spans.cumsum(0)[: keys - 1] > 0
    of_key = torch.cat(
        [torch.zeros(1, dtype=torch.long, device=sees.device), (~covered).long().cumsum(0)]
    )
    # Blocks without queries are padding. `used` are the numbers of the others, in order.
    used, of_row = torch.unique(of_key[first], return_inverse=True)
    if bool((of_row.diff() < 0).any()):  # interleaved documents form no blocks along the diagonal
        return (float(sees.shape[0] * keys), float(count.sum()), 0.0), [int(sees.any(0).sum())]
    numbers = torch.zeros(sees.shape[0], dtype=torch.long, device=sees.device)
    numbers[rows] = of_row  # a query that sees no key belongs to the document before it
    rows_of = torch.bincount(numbers.cummax(0).values, minlength=len(used))
    widest = torch.zeros(len(used), dtype=torch.long, device=sees.device)
    widest.scatter_reduce_(0, of_row, last - first + 1, "amax")
    document = (torch.searchsorted(used, of_key, right=True) - 1).clamp(min=0)  # of each key
    padding = torch.bincount(document[~torch.isin(of_key, used)], minlength=len(used))
    full = float((rows_of * (widest + padding)).sum())
    # Keys are real if some query sees them. If queries are the same tokens, so are theirs.
    real = sees.any(0)
    real_keys = torch.bincount(document[real], minlength=len(used))
    of_real_row = of_row[real[rows]] if len(sees) == keys else of_row
    real_rows = torch.bincount(of_real_row, minlength=len(used))
    useful = float((real_rows * torch.minimum(widest, real_keys)).sum())
    attended = float(count.sum())
    # Causal triangles: each row of a document sees one key more, beginning at its first key.
    begin = torch.searchsorted(of_key, used)[of_row]
    nth = torch.arange(len(rows), device=sees.device) - torch.searchsorted(of_row, of_row)
    triangular = (count[rows] == last - first + 1) & (first == begin) & (last - begin == nth)
    if bool(triangular.all()) and attended < float((rows_of * widest).sum()):
        attended -= len(rows) / 2
    return (full, attended, max(0.0, full - useful)), real_keys.tolist()
