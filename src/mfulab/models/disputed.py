"""One attention layer in forms that FLOP counters disagree on, and a layer that is split over
ranks."""

from typing import Literal, get_args

import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from mfulab.models.build import ModelError

Form = Literal["packed", "flex", "two_dimensional", "window"]


class Attention(nn.Module):
    """One attention layer between projections, and a classifier of the mean: [batch, tokens, width]
    → [batch, classes]. Forward FLOPs per sequence are 2·tokens·4·width² + 4·pairs·width +
    2·width·classes. `packed` and `flex` hold documents of `document` tokens, which makes
    tokens·document pairs. `window` attends to the last `document` tokens. `two_dimensional` calls
    attention once for each head."""

    def __init__(
        self, form: Form, width: int = 256, heads: int = 4, document: int = 32, classes: int = 10
    ) -> None:
        super().__init__()
        if form not in get_args(Form):
            raise ModelError(f"model.arguments.form={form}: choose {', '.join(get_args(Form))}")
        self.form = form
        self.heads = heads
        self.document = document
        self.enter = nn.Linear(width, 3 * width)
        self.leave = nn.Linear(width, width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        batch, length, width = tokens.shape
        projected = self.enter(tokens).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = projected.permute(2, 0, 3, 1, 4).unbind()
        attended = self._attend(query, key, value)
        merged = attended.transpose(1, 2).reshape(batch, length, width)
        return self.classifier(self.leave(merged).mean(1))

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if self.form == "flex":
            return self._attend_in_blocks(query, key, value)
        if self.form == "two_dimensional":
            attended = []
            for row in range(query.shape[0]):
                for head in range(self.heads):
                    operands = query[row, head], key[row, head], value[row, head]
                    attended.append(scaled_dot_product_attention(*operands))
            return torch.stack(attended).view(value.shape)
        position = torch.arange(query.shape[-2], device=query.device)
        distance = position[:, None] - position[None, :]
        visible = (distance >= 0) & (distance < self.document)
        if self.form == "packed":
            visible = (position[:, None] // self.document) == (position[None, :] // self.document)
        return scaled_dot_product_attention(query, key, value, attn_mask=visible)

    def _attend_in_blocks(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        length = query.shape[-2]
        document = self.document

        def same_document(
            batch: object, head: object, query_index: torch.Tensor, key_index: torch.Tensor
        ) -> torch.Tensor:
            return query_index // document == key_index // document

        blocks = create_block_mask(
            same_document, None, None, length, length, query.device, BLOCK_SIZE=document
        )
        return flex_attention(query, key, value, block_mask=blocks)


class TensorParallel(nn.Module):
    """One of two ranks of a pair of layers, split by columns and then by rows: [batch, width] →
    [batch, classes]. The other rank is simulated. Forward takes 2·hidden·(width + classes) ÷ 2
    FLOPs per sample."""

    def __init__(self, width: int = 512, hidden: int = 2048, classes: int = 10) -> None:
        super().__init__()
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        from mfulab.flops.sharded import pretend_ranks

        if not torch.distributed.is_initialized():
            pretend_ranks(2)
        block = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, classes))
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        self.block = parallelize_module(block, init_device_mesh("cpu", (2,)), plan)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.block(inputs)
