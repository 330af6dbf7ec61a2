"""Part of a step's FLOPs that serves real tokens: without padding, and without pairs across
documents packed into a row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

from torch.nn.attention.flex_attention import BlockMask

from mfulab.flops.counter import Key, Operations, Totals
from mfulab.flops.flex import block_mask_documents
from mfulab.flops.masks import lengths_of, with_values

IGNORED = -100  # label that losses ignore, the default of torch and transformers


@dataclass(frozen=True)
class RealTokens:
    """Documents of a batch."""

    lengths: tuple[int, ...]  # tokens of each document
    rows: int  # rows of the batch
    width: int  # tokens of each row, padding included
    source: str  # name of the model's argument that shows them

    @property
    def fraction(self) -> float:
        """Real tokens ÷ all tokens."""
        return sum(self.lengths) / (self.rows * self.width)

    @property
    def pair_fraction(self) -> float:
        """Pairs of tokens within documents ÷ pairs of tokens within rows."""
        return sum(length**2 for length in self.lengths) / (self.rows * self.width**2)


def real_tokens(arguments: Sequence[object], keywords: Mapping[str, object]) -> RealTokens | None:
    """Finds where documents begin and end from the arguments of a model call; None if nothing shows
    it. Tried in this order: flex_attention's `BlockMask`, unless it leaves nothing out;
    `cu_seqlens`; an `attention_mask` [rows, width] of zeros and ones, or of document numbers;
    `key_padding_mask` (True for padding); `position_ids` that restart with each document; an
    `attention_mask` that leaves nothing out; `labels`, if each row has one run of them, followed by
    padding. Masks of another shape than the tokens belong to a cache and are ignored. A mapping
    among the arguments is treated as keywords."""
    named: dict[str, Any] = dict(keywords)
    for argument in arguments:
        if isinstance(argument, Mapping):
            named = {**argument, **named}
    shape = _shape_of_tokens(arguments, named)
    if shape is None:
        return None
    blocks = _blocks((*arguments, *named.values()), shape)
    if blocks and min(blocks) < shape[1]:
        return RealTokens(blocks, *shape, "block_mask")
    for names, read in _READERS:
        for name in names:
            value = _fitting(name, named.get(name), shape)
            lengths = None
            if value is not None:
                lengths = read(value, shape)
            if lengths is not None:
                return RealTokens(tuple(filter(None, lengths)), *shape, name)
    if blocks:
        return RealTokens(blocks, *shape, "block_mask")
    return None


def _shape_of_tokens(arguments: Sequence[Any], named: Mapping[str, Any]) -> tuple[int, int] | None:
    """Rows and width of a call's tokens: `input_ids`, `inputs_embeds`, or the first tensor of two
    or more dimensions. None if there are none."""
    tokens = named.get("input_ids", named.get("inputs_embeds"))
    if tokens is None:
        wide = (argument for argument in arguments if getattr(argument, "ndim", 0) >= 2)
        tokens = next((argument for argument in wide if not argument.is_nested), None)
    if tokens is None:
        return None
    return int(tokens.shape[0]), int(tokens.shape[1])


def _fitting(name: str, argument: object, shape: tuple[int, int]) -> Any:
    """Values of an argument if its shape fits the tokens, else None."""
    if argument is None or isinstance(argument, BlockMask):
        return None
    value = with_values(argument)
    if value is None:
        return None
    fits = tuple(value.shape) == shape
    if name.startswith("cu_seq"):
        fits = value.ndim == 1
    if fits:
        return value
    return None


def _blocks(values: Sequence[object], shape: tuple[int, int]) -> tuple[int, ...] | None:
    """Document lengths from the first block mask in a call. None if there is none, or it does not
    fit the tokens."""
    flat = list[object]()
    for value in values:
        if isinstance(value, Mapping):
            flat.extend(value.values())
        else:
            flat.append(value)
    mask = next((value for value in flat if isinstance(value, BlockMask)), None)
    documents = None
    if mask is not None and mask.seq_lengths[0] == shape[1]:
        documents = block_mask_documents(mask)
    if documents is None or len(documents) not in (1, shape[0]):
        return None
    lengths = [length for length in chain.from_iterable(documents) if length]
    return tuple(lengths * (shape[0] // len(documents)))


def _mask(mask: Any, shape: tuple[int, int]) -> list[int] | None:
    """Document lengths from a mask of zeros and ones or of document numbers. None if it leaves
    nothing out."""
    if mask.is_floating_point():
        return None
    numbers = mask.long()
    if int(numbers.max()) <= 1:
        rows = numbers.sum(-1).tolist()
        if all(length == shape[1] for length in rows):
            return None  # other arguments may still show packed documents
        return rows
    lengths = []
    for row in numbers:
        for number in row.unique():
            if number:
                lengths.append(int((row == number).sum()))
    return lengths


def _positions(positions: Any, shape: tuple[int, int]) -> list[int] | None:
    """Document lengths from positions that restart at 0. None if each row is one document."""
    bounds = [[*(row == 0).nonzero().flatten().tolist(), len(row)] for row in positions]
    is_packed = any(len(row_bounds) > 2 for row_bounds in bounds)
    if not is_packed:
        return None
    lengths = []
    for row_bounds in bounds:
        for begin, end in pairwise(row_bounds):
            lengths.append(end - begin)
    return lengths


def _labels(labels: Any, shape: tuple[int, int]) -> list[int] | None:
    """Length of each row up to its last label. None if labels have gaps."""
    is_labelled = labels != IGNORED
    if bool((is_labelled.diff(dim=-1).sum(-1) > 2).any()):
        return None  # labels with gaps are masked words, or turns of a dialogue
    lengths = []
    for row in is_labelled:
        length = 0
        if bool(row.any()):
            length = int(row.nonzero().max()) + 1
        lengths.append(length)
    return lengths


# Names of arguments, and a function of (values, shape of the tokens) to document lengths or None.
_READERS: tuple[tuple[tuple[str, ...], Any], ...] = (
    (("cu_seqlens", "cu_seq_lens_q", "cu_seqlens_q"), lambda ends, shape: lengths_of(ends)),
    (("attention_mask",), _mask),
    (
        ("key_padding_mask", "src_key_padding_mask", "padding_mask"),
        lambda mask, shape: None if mask.is_floating_point() else (~mask).sum(-1).tolist(),
    ),
    (("position_ids",), _positions),
    (("attention_mask",), lambda mask, shape: [shape[1]] * shape[0]),
    (("labels",), _labels),
)


def useful_flops(operations: Operations, real: RealTokens | None) -> float | None:
    """FLOPs of forward and backward that serve real tokens; None if nothing shows which tokens are
    real. Without documents, all FLOPs serve real tokens except those on slots of a static cache
    that no query sees. Work per token or per row counts by the share of real tokens; attention by
    the pairs within documents. If no mask shows padding, a window's pairs count by the tokens.
    Kernels that take lengths compute no padding, so all of their FLOPs count."""
    if real is None:
        unfilled = operations.sum("forward").unfilled_flops
        unfilled += operations.sum("backward").unfilled_flops
        if unfilled:
            return operations.model_flops - unfilled
        return None
    total = 0.0
    for key, sums in operations.totals.items():
        if key.direction in ("forward", "backward"):
            total += (sums.flops - sums.attention_flops) * real.fraction
            total += _useful_attention(key, sums, real)
    return total


def _useful_attention(key: Key, sums: Totals, real: RealTokens) -> float:
    """FLOPs of attention that serve real tokens."""
    by_token = sums.attention_flops * real.fraction
    # squares of a chunk or head, whose number grows with tokens
    if key.side not in (0, real.width):
        return by_token
    if not sums.rectangle_flops:
        return sums.attention_flops
    by_mask = by_token
    if sums.padding_flops:
        by_mask = sums.attention_flops - sums.padding_flops
    return min(by_mask, sums.rectangle_flops * real.pair_fraction)
