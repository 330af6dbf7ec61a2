"""Attention masks and sequence lengths as tensors: which documents they hold, and how many
query-key pairs they leave."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mfulab.flops.cost import Pairs, dense_pairs

if TYPE_CHECKING:
    from torch import Tensor

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
    version, pairs = getattr(mask, _CACHED_PAIRS, (None, None))
    if version != mask._version or pairs is None:
        pairs = _mean_pairs(mask, queries, keys)
        setattr(mask, _CACHED_PAIRS, (mask._version, pairs))  # every layer uses the same mask
    return pairs


def _mean_pairs(mask: Any, queries: int, keys: int) -> Pairs:
    """Mean of the pairs of all heads and sequences of a mask."""
    import torch

    sees = mask.detach()
    if mask.dtype != torch.bool:
        sees = sees > MASKED
    sees = sees.expand(*sees.shape[:-2], queries, keys).reshape(-1, queries, keys)
    if not sees.numel():
        return Pairs(0, 0, 0)
    counts = [_count_sequence(sequence) for sequence in sees]
    full = sum(count.full for count in counts) / len(counts)
    attended = sum(count.attended for count in counts) / len(counts)
    padding = sum(count.padding for count in counts) / len(counts)
    executed = queries * keys
    return Pairs(full, attended, executed, executed, padding=padding)


def documents_of(mask: Any) -> list[list[int]]:
    """Number of real tokens in each document, for each sequence of `mask` [sequences, heads,
    tokens, tokens]. Tokens that no token sees are padding."""
    return [_count_sequence(sequence).real_keys for sequence in mask.any(1)]


@dataclass(frozen=True)
class _SequenceCount:
    """Pairs of a mask [queries, keys], and the number of real keys in each document."""

    full: float
    attended: float
    padding: float  # full pairs that meet padding
    real_keys: list[int]


@dataclass(frozen=True)
class _Spans:
    """Queries that see a key, and what each of them sees, as tensors with one element per query."""

    query: Tensor
    seen: Tensor  # number of keys
    first: Tensor  # first key
    last: Tensor  # last key

    @property
    def width(self) -> Tensor:
        """Number of keys from the first to the last."""
        return self.last - self.first + 1


@dataclass(frozen=True)
class _Documents:
    """Documents of a mask, in order: the blocks of keys that some query sees. Blocks without
    queries are padding of the document before them."""

    block_of_key: Tensor
    block: Tensor  # of each document
    of_span: Tensor  # document of each query that sees a key

    def of_key(self) -> Tensor:
        """Document of each key; those before the first document belong to it."""
        import torch

        blocks_until = torch.searchsorted(self.block, self.block_of_key, right=True)
        return (blocks_until - 1).clamp(min=0)

    def count(self, documents: Tensor) -> Tensor:
        """Number of times that each document is among the given ones."""
        return documents.bincount(minlength=len(self.block))


def _count_sequence(sees: Tensor) -> _SequenceCount:
    """Counts a mask [queries, keys]."""
    import torch

    seen = sees.sum(-1)
    query = seen.nonzero().squeeze(-1)
    if not len(query):
        return _SequenceCount(0.0, 0.0, 0.0, [])
    attended = float(seen.sum())
    spans = _spans_of(sees, query, seen)
    block_of_key = _blocks(spans, sees.shape[-1])
    block, of_span = torch.unique(block_of_key[spans.first], return_inverse=True)
    documents = _Documents(block_of_key, block, of_span)
    is_real_key = sees.any(0)
    if bool((of_span.diff() < 0).any()):  # interleaved documents form no blocks along the diagonal
        return _SequenceCount(float(sees.numel()), attended, 0.0, [int(is_real_key.sum())])

    queries = documents.count(_document_of_query(sees, spans, documents))
    widest = torch.zeros_like(queries)
    widest.scatter_reduce_(0, of_span, spans.width, "amax")
    document_of_key = documents.of_key()
    is_padding = ~torch.isin(block_of_key, block)
    padding_keys = documents.count(document_of_key[is_padding])
    full = float((queries * (widest + padding_keys)).sum())

    real_keys = documents.count(document_of_key[is_real_key])
    of_real_query = of_span
    if sees.shape[0] == sees.shape[1]:  # queries and keys are the same tokens
        of_real_query = of_span[is_real_key[query]]
    real_queries = documents.count(of_real_query)
    useful = float((real_queries * torch.minimum(widest, real_keys)).sum())

    if _is_causal(spans, documents) and attended < float((queries * widest).sum()):
        attended -= len(query) / 2
    return _SequenceCount(full, attended, max(0.0, full - useful), real_keys.tolist())


def _spans_of(sees: Tensor, query: Tensor, seen: Tensor) -> _Spans:
    """Spans of the given queries; `seen` is the number of keys that each query of the mask sees."""
    import torch

    rows = sees[query].to(torch.uint8)
    first = rows.argmax(-1)
    last = sees.shape[-1] - 1 - rows.flip(-1).argmax(-1)
    return _Spans(query, seen[query], first, last)


def _blocks(spans: _Spans, keys: int) -> Tensor:
    """Block of each key. A block ends between two keys if no query's span covers both."""
    import torch

    changes = torch.zeros(keys + 1, dtype=torch.long, device=spans.first.device)
    ones = torch.ones_like(spans.first)
    changes.scatter_add_(0, spans.first, ones)
    changes.scatter_add_(0, spans.last, -ones)
    open_spans = changes.cumsum(0)[: keys - 1]
    begins_block = (open_spans <= 0).long()
    return torch.cat([begins_block.new_zeros(1), begins_block.cumsum(0)])


def _document_of_query(sees: Tensor, spans: _Spans, documents: _Documents) -> Tensor:
    """Document of each query. One that sees no key belongs to the document before it."""
    import torch

    document = torch.zeros(sees.shape[0], dtype=torch.long, device=sees.device)
    document[spans.query] = documents.of_span
    return document.cummax(0).values


def _is_causal(spans: _Spans, documents: _Documents) -> bool:
    """True if each query of a document sees one key more than the one before it, beginning with
    its first key."""
    import torch

    of_span = documents.of_span
    first_key = torch.searchsorted(documents.block_of_key, documents.block)[of_span]
    first_query = torch.searchsorted(of_span, of_span)
    number = torch.arange(len(of_span), device=of_span.device) - first_query
    sees_all = spans.seen == spans.width
    grows = (spans.first == first_key) & (spans.last - first_key == number)
    return bool((sees_all & grows).all())
