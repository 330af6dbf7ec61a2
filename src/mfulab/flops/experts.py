"""Mixtures of experts: parameters that a token meets, experts that a batch reads, and tokens that
are dropped."""

from collections.abc import Sequence
from contextlib import ExitStack
from statistics import fmean

import torch
from torch.nn.modules import module as global_hooks

from mfulab.flops.formulas import expected_experts_read

# What transformers' configs call the number of experts, and of those a token is sent to.
_NAMES = (
    ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "moe_top_k"),
)


def expert_numbers(model: torch.nn.Module) -> tuple[int, int] | None:
    """Routed experts of a layer, and how many of them a token meets, by the model's config; None
    for a dense one."""
    config = getattr(model, "config", None)
    config = getattr(config, "text_config", config)
    experts, active = (
        next(filter(None, (getattr(config, name, None) for name in names)), None)
        for names in _NAMES
    )
    if experts and active:
        return (int(experts), int(active))
    return None


def active_parameters(model: torch.nn.Module) -> int:
    """Parameters that one token meets: of routed experts those it is sent to, all of the rest,
    shared experts too."""
    experts, active = expert_numbers(model) or (1, 1)
    routed = sum(weight.numel() for name, weight in model.named_parameters() if ".experts." in name)
    return (
        sum(weight.numel() for weight in model.parameters()) - routed + routed * active // experts
    )


class RoutedTokens(ExitStack):
    """Notes inside it how tokens are routed: `unread_parameters`, the weights of experts that no
    token is sent to, and `imbalance`, since a step waits in each layer for its busiest expert. A
    layer of experts has stacked weights, [experts, …], and is called with the chosen experts'
    numbers, as in transformers. Both are None if none was called, as under a compiler or a CUDA
    graph."""

    def __init__(self) -> None:
        super().__init__()
        self.unread_parameters: int | None = None
        self._imbalances: list[float] = []
        self.callback(global_hooks.register_module_forward_pre_hook(self._note).remove)

    def _note(self, module: torch.nn.Module, arguments: tuple[object, ...]) -> None:
        stacked = []
        for weight in module.parameters(recurse=False):
            if weight.ndim == 3:
                stacked.append(weight)
        given = (tensor for tensor in arguments[1:] if isinstance(tensor, torch.Tensor))
        chosen = next(
            (tensor for tensor in given if tensor.dtype in (torch.int32, torch.int64)), None
        )
        if not stacked or chosen is None:
            return
        experts = stacked[0].shape[0]
        # Ranks mark what is another's by a number beyond.
        tokens_of = torch.bincount(chosen[chosen < experts].long(), minlength=experts).tolist()
        unread = sum(weight.numel() // experts for weight in stacked) * tokens_of.count(0)
        self.unread_parameters = (self.unread_parameters or 0) + unread
        if any(tokens_of):
            self._imbalances.append(imbalance(tokens_of))

    @property
    def imbalance(self) -> float | None:
        """Busiest expert ÷ mean, the mean over the layers that were called."""
        if self._imbalances:
            return fmean(self._imbalances)
        return None


def unread_elements(
    numbers: tuple[int, int] | None, rows: torch.Tensor, experts: torch.Tensor
) -> int:
    """Elements of stacked weights [E, …] that no row reads, of k·n rows of n tokens routed evenly
    at random; `numbers` as `expert_numbers` gives them, of other groups each row chooses one."""
    count = experts.shape[0]
    active = 1
    if numbers and numbers[0] == count:
        active = numbers[1]
    read = expected_experts_read(count, active, rows.shape[0] / active)
    return round(experts.numel() * (1 - read / count))


def imbalance(tokens_of: Sequence[int]) -> float:
    """Busiest expert ÷ mean: by as much the slowest rank of an expert-parallel layer holds the
    others up."""
    if not any(tokens_of):
        raise ValueError("no token was sent to any expert")
    return max(tokens_of) * len(tokens_of) / sum(tokens_of)
