"""Mixtures of experts: parameters that a token uses, experts that a batch reads, and imbalance of
the routing."""

from collections.abc import Sequence
from contextlib import ExitStack
from statistics import fmean

import torch
from torch.nn.modules import module as global_hooks

from mfulab.flops.formulas import expected_experts_read

# Names in transformers' configs: the number of experts, and the number that a token is routed to.
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_ACTIVE = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "moe_top_k")


def expert_numbers(model: torch.nn.Module) -> tuple[int, int] | None:
    """Returns the number of routed experts in a layer, and how many of them a token uses, from the
    model's config. None for a dense model."""
    config = getattr(model, "config", None)
    config = getattr(config, "text_config", config)
    experts = _first_known(config, _EXPERTS)
    active = _first_known(config, _ACTIVE)
    if experts and active:
        return experts, active
    return None


def _first_known(config: object, names: Sequence[str]) -> int:
    """The first of a config's values under these names that is not 0; 0 if there is none."""
    for name in names:
        value = getattr(config, name, None)
        if value:
            return int(value)
    return 0


def active_parameters(model: torch.nn.Module) -> int:
    """Parameters that one token uses: its share of the routed experts, and all others, including
    shared experts."""
    experts, active = expert_numbers(model) or (1, 1)
    routed = sum(weight.numel() for name, weight in model.named_parameters() if ".experts." in name)
    total = sum(weight.numel() for weight in model.parameters())
    return total - routed + routed * active // experts


class RoutedTokens(ExitStack):
    """Records how tokens are routed while entered: `unread_parameters`, the weights of experts that
    no token is sent to, and `imbalance`. A layer of experts is a module with stacked weights,
    [experts, …], that is called with the chosen experts' numbers, as in transformers. Both are None
    if no such module was called, as under a compiler or a CUDA graph."""

    def __init__(self) -> None:
        super().__init__()
        self.unread_parameters: int | None = None
        self._imbalances: list[float] = []
        self.callback(global_hooks.register_module_forward_pre_hook(self._note).remove)

    def _note(self, module: torch.nn.Module, arguments: tuple[object, ...]) -> None:
        stacked = [weight for weight in module.parameters(recurse=False) if weight.ndim == 3]
        chosen = next(filter(_is_integer_tensor, arguments[1:]), None)
        if not stacked or not isinstance(chosen, torch.Tensor):
            return
        experts = stacked[0].shape[0]
        # Numbers beyond the local experts mark tokens for other ranks.
        tokens_of = torch.bincount(chosen[chosen < experts].long(), minlength=experts).tolist()
        unread = sum(weight.numel() // experts for weight in stacked) * tokens_of.count(0)
        self.unread_parameters = (self.unread_parameters or 0) + unread
        if any(tokens_of):
            self._imbalances.append(imbalance(tokens_of))

    @property
    def imbalance(self) -> float | None:
        """Tokens of the busiest expert ÷ mean of all, averaged over the layers that were called.
        None if none was."""
        if self._imbalances:
            return fmean(self._imbalances)
        return None


def _is_integer_tensor(argument: object) -> bool:
    return isinstance(argument, torch.Tensor) and argument.dtype in (torch.int32, torch.int64)


def unread_elements(
    numbers: tuple[int, int] | None, rows: torch.Tensor, experts: torch.Tensor
) -> int:
    """Elements of stacked weights [E, …] that are expected to be unread, with tokens routed evenly
    at random. `rows` has a row per token and chosen expert. `numbers` is the result of
    `expert_numbers`; with another number of experts than E, each row is a token of its own."""
    count = experts.shape[0]
    active = 1
    if numbers and numbers[0] == count:
        active = numbers[1]
    read = expected_experts_read(count, active, rows.shape[0] / active)
    return round(experts.numel() * (1 - read / count))


def imbalance(tokens_of: Sequence[int]) -> float:
    """Tokens of the busiest expert ÷ mean: the factor by which the slowest rank of an
    expert-parallel layer delays the others. Raises ValueError if there are no tokens."""
    if not any(tokens_of):
        raise ValueError("no token was sent to any expert")
    return max(tokens_of) * len(tokens_of) / sum(tokens_of)
