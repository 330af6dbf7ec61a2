"""Builds any model from its config, makes random inputs for it, and computes its loss."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any, Literal

import torch
from torch.nn.parameter import UninitializedParameter
from torch.utils.checkpoint import checkpoint

from mfulab.core.errors import UnsupportedError
from mfulab.core.groups import ModelConfig
from mfulab.core.said import Said
from mfulab.models.by_name import ByName
from mfulab.models.pruning import prune

Task = Literal["classification", "language_modeling"]


class ModelError(ValueError):
    """Raised if a model cannot be built or run as its config says. The message names the key to
    change."""


@dataclass(frozen=True)
class Batch:
    """Inputs and targets of one step."""

    # [batch, *sample_shape] of floats, or [batch, sequence_length] of token ids
    inputs: torch.Tensor
    targets: torch.Tensor  # [batch] class labels, or [batch, sequence_length] token ids

    def double(self) -> "Batch":
        """Returns the batch with float inputs in float64. Token ids do not change."""
        if self.inputs.is_floating_point():
            return replace(self, inputs=self.inputs.double())
        return self


def resolve(target: str) -> Callable[..., Any]:
    """Imports the callable at a dotted path such as `package.module.Class.method`. Raises
    ModelError if it cannot be imported or is not callable."""
    parts = target.split(".")
    for length in range(len(parts) - 1, 0, -1):
        module_name = ".".join(parts[:length])
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            is_module_missing = error.name and f"{module_name}.".startswith(f"{error.name}.")
            if is_module_missing:
                continue  # a shorter path may be a module
            why = f"importing {module_name} needs {error.name}"
            raise ModelError(f"model._target_={target}: {why}") from error
        except (SyntaxError, NameError) as error:
            why = f"importing {module_name}: {error}"
            raise ModelError(f"model._target_={target}: {why}") from error
        return _callable_in(module, parts[length:], target)
    raise ModelError(
        f"model._target_={target}: cannot be imported; give a dotted path such as my_module.build "
        "to a file in this folder or to an installed package"
    )


def _callable_in(module: ModuleType, attributes: list[str], target: str) -> Callable[..., Any]:
    """Returns the callable at a path of attributes of a module. Raises ModelError if there is
    none."""
    builder: Any = module
    for attribute in attributes:
        if not hasattr(builder, attribute):
            why = f"{module.__name__} has no {'.'.join(attributes)}"
            raise ModelError(f"model._target_={target}: {why}")
        builder = getattr(builder, attribute)
    if not callable(builder):
        why = f"is a {type(builder).__name__}, not a callable"
        raise ModelError(f"model._target_={target}: {why}")
    return builder


def load(config: ModelConfig, is_compiled: bool) -> None:
    """Imports everything that building, training, tracing and compiling a model need. Raises
    ModelError as `resolve` does. Loading this code early keeps its 60 to 170 MB out of the model's
    memory."""
    importlib.import_module("torch._inductor.compile_fx" if is_compiled else "torch._dynamo")
    resolve(config.target)
    architecture = config.arguments.get("architecture")
    if config.target.startswith("mfulab.") and architecture:
        getattr(importlib.import_module("transformers"), architecture, None)


def build(config: ModelConfig) -> torch.nn.Module:
    """Builds the model with random weights on torch's default device, in training mode. Raises
    ModelError if it cannot be built, and UnsupportedError if it cannot be pruned."""
    builder = resolve(config.target)
    try:
        model = builder(**config.arguments)
    except (TypeError, NameError, ImportError) as error:
        # other errors may come from the meta device, and not occur on another one
        raise ModelError(
            f"model._target_={config.target} with arguments {config.arguments}: {error}"
        ) from error
    if not isinstance(model, torch.nn.Module):
        raise ModelError(
            f"model._target_={config.target}: returned a {type(model).__name__}, not a torch.nn.Module"
        )
    if config.inputs is not None:
        model = ByName(model, config.inputs, config.input_vocabularies)
    if any(isinstance(parameter, UninitializedParameter) for parameter in model.parameters()):
        # a layer such as LazyLinear needs a forward pass to make its parameters
        with torch.no_grad():
            batch = make_batch(config, 2, device=torch.get_default_device())
            model(batch.inputs)
    if config.pruning != "none":
        prune(model, config)
    return model.train()


def make_batch(
    config: ModelConfig,
    batch_size: int,
    sequence_length: int | None = None,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Batch:
    """Makes a batch of random normal floats in `dtype`, or uniform token ids; also on the meta
    device. Never zeros, which draw less power and run faster. `sequence_length` defaults to the
    config's."""
    if config.vocabulary_size is not None:
        draw = partial(torch.randint, config.vocabulary_size, device=device)
        shape = (batch_size, sequence_length or config.sequence_length or 1)
        inputs = draw(shape)
        if config.task == "language_modeling":
            return Batch(inputs, draw(shape))
    else:
        inputs = torch.randn((batch_size, *config.sample_shape), device=device, dtype=dtype)
    # The targets' values do not change the arithmetic, and every classifier has at least two.
    return Batch(inputs, torch.randint(2, (batch_size,), device=device))


def require_positions(model: torch.nn.Module, batch: Batch) -> None:
    """Raises ModelError if a sample has more tokens than a learned table has positions. A GPU would
    only report a failed assertion."""
    limit = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    tokens = batch.inputs.shape[-1] if not batch.inputs.is_floating_point() else 0
    if not limit or tokens <= limit:
        return
    tables = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    if any(table.num_embeddings == limit for table in tables):
        raise ModelError(
            f"sequence_length={tokens}: {type(model).__name__} has positions for {limit} tokens"
        )


def first_tensor(output: Any) -> torch.Tensor:
    """Returns the logits from a model's output: a tensor, tuple, mapping or ModelOutput. Raises
    ModelError if there is no tensor."""
    if isinstance(output, torch.Tensor):
        return output
    if getattr(output, "logits", None) is not None:
        return output.logits
    values: Iterable[Any]
    if isinstance(output, Mapping):
        values = output.values()
    elif isinstance(output, (tuple, list)):
        values = output
    else:
        values = ()
    for value in values:
        if isinstance(value, torch.Tensor):
            return value
    raise ModelError(
        f"the model returned a {type(output).__name__} with no tensor in it; wrap it to return its logits"
    )


class LogitsOnly(torch.nn.Module):
    """Wraps a model to return only its logits, a plain tensor that tracing and other FLOP counters
    can follow."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return first_tensor(self.model(inputs))


def loss(output: Any, targets: torch.Tensor, task: Task = "classification") -> torch.Tensor:
    """Mean cross-entropy of logits [batch, classes, …], or for language modeling [batch,
    sequence_length, vocabulary_size]. Raises ModelError if the output has no class scores."""
    logits = first_tensor(output)
    class_dimension = 1 if task == "classification" else targets.ndim
    if logits.ndim <= class_dimension:
        raise ModelError(
            f"task={task}: the model's output has shape {list(logits.shape)}, which holds no class scores"
        )
    scores = logits.flatten(class_dimension).flatten(0, -2)  # [samples, classes]
    return torch.nn.functional.cross_entropy(scores, targets.flatten())


def enable_checkpointing(model: torch.nn.Module) -> int:
    """Makes each of the `outermost_blocks` recompute its activations, and returns their number.
    Raises UnsupportedError if there are none."""
    blocks = outermost_blocks(model)
    if not blocks:
        raise UnsupportedError(Said("no_blocks_to_recompute", model=str(type(model).__name__)))
    for block in blocks:
        # The instance attribute shadows the class's forward, so that hooks stay outside of the
        # recomputed part.
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]
    return len(blocks)


def outermost_blocks(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Returns the children with parameters of each ModuleList or Sequential that is not inside
    another one."""
    if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
        return [child for child in module.children() if next(child.parameters(), None) is not None]
    blocks = []
    for child in module.children():
        blocks += outermost_blocks(child)
    return blocks
