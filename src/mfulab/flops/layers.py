"""Finds the layer and pass that an operator belongs to: forward, backward, recomputed, or the
optimiser's."""

import re
import sys
import threading
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, Self
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules import module as global_hooks
from torch.optim import optimizer as optimizer_hooks

from mfulab.core.errors import drop_own_frames

ROOT = ""

Pass = Literal["forward", "backward", "recomputed", "optimizer"]


@dataclass(frozen=True)
class _Frame:
    """A module's forward, a run of the autograd engine, or an optimiser's step that is running.
    `owner` is the id of the module or optimiser."""

    kind: Literal["layer", "engine", "optimizer"]
    layer: str = ROOT
    owner: int = 0
    makes_graph: bool = False


@contextmanager
def compiled_models_unwarned() -> Iterator[None]:
    """Suppresses compiled models' warning about global hooks, even if the user's loop saves and
    restores the warning filters meanwhile."""
    before = list(warnings.filters)
    warnings.filterwarnings("ignore", "Using `torch.compile")
    filters_inside = warnings.filters
    added = warnings.filters[0]
    try:
        yield
    finally:
        for filters in (filters_inside, warnings.filters):  # catch_warnings restores an old list
            if added in filters and added not in before:
                filters.remove(added)  # type: ignore[attr-defined]


class Opened(ExitStack):
    """A context made of several others, which `parts` yields. They are entered in order, and left
    again if a later one fails to enter."""

    def parts(self) -> Iterator[AbstractContextManager[Any]]:
        """Yields the contexts. Each is made after those before it were entered."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            for part in self.parts():
                undo.enter_context(part)
            self.push(undo.pop_all())
        return self


class LayerTracker(Opened):
    """Tracks a model during its step, and remembers which layer made each node of the autograd
    graph. Autograd numbers its nodes in order, so the numbers at which layers begin and end show
    which layer a gradient belongs to. A module used twice goes by its first name. A module that is
    not part of the model counts for the layer that called it. Hooks are global, so neither the
    model nor a compiled form of it is modified. To track several models, put them in one
    `torch.nn.ModuleDict`."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._names = {id(module): name for name, module in model.named_modules()}
        self.model = model  # keeps the modules alive, so that ids stay unique
        self._frames: list[_Frame] = []
        self._numbers = [-1]
        self._layers = [ROOT]
        self._thread = threading.get_ident()
        self._ran: set[str] = set()
        # storages of unread weights → modules that hold them; None before the first call
        self._unread: dict[int, set[str]] | None = None
        self.failed = ROOT  # name of the innermost layer whose forward failed

    @property
    def current(self) -> str:
        """Name of the innermost layer whose forward is running, as in `model.named_modules()`."""
        for frame in reversed(self._frames):
            if frame.kind == "layer":
                return frame.layer
        return ROOT

    def layer_and_pass(self) -> tuple[str, Pass]:
        """Returns layer and pass of the operator that is running now."""
        node = torch._C._current_autograd_node()
        frame = None
        if self._frames:
            frame = self._frames[-1]
        in_engine = node is not None and (frame is None or frame.kind == "engine")
        layer = self._made_by(node) if in_engine else self.current
        if frame is not None and in_engine and torch.is_grad_enabled() and not frame.makes_graph:
            # A backward pass builds no graph unless asked to (create_graph), but recomputation by
            # a checkpoint does.
            return layer, "recomputed"
        # A counter entered inside the backward pass, as by a hook, has not seen it begin.
        begins_backward = node is not None and frame is None
        return layer, self._pass("backward" if begins_backward else "forward")

    def _made_by(self, node: Any) -> str:
        """Layer that made an autograd node. Nodes that accumulate a leaf's gradient have the
        largest number, and belong to no layer."""
        number = node._sequence_nr()
        if number >= 2**63:
            return ROOT
        return self._layers[bisect_right(self._numbers, number) - 1]

    def _pass(self, direction: Pass) -> Pass:
        """Pass of the operator that is running now, from the frames around it; `direction` if there
        are none."""
        inside = False
        engine_inside = False
        for frame in self._frames:
            if frame.kind == "optimizer":
                # Only its closure runs with gradients enabled, here outside any layer.
                direction = "forward" if torch.is_grad_enabled() else "optimizer"
            elif frame.kind == "layer":
                if direction == "backward" or engine_inside:
                    return "recomputed"
                # An optimiser's closure is a step of its own.
                direction = "forward"
                inside = True
            elif inside:
                engine_inside = True  # gradients inside a forward, such as forces
            else:
                direction = "backward"
        return direction

    def node(self, read: Iterable[torch.Tensor]) -> int:
        """Sequence number of the autograd node that is running, or that the operator reading these
        tensors just made. -1 if there is none."""
        node = torch._C._current_autograd_node()
        if node is not None:
            return node._sequence_nr()
        makes_node = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in read)
        if makes_node:
            return torch._C._autograd._get_sequence_nr() - 1
        return -1

    @property
    def is_idle(self) -> bool:
        """True if neither a layer nor an optimiser nor autograd is running."""
        return not self._frames and torch._C._current_autograd_node() is None

    def read(self, tensors: Iterable[torch.Tensor]) -> None:
        """Marks the modules whose weights an operator reads as used. A parent may read them without
        calling the module."""
        if self._unread and not self.is_idle:
            for tensor in tensors:
                if tensor.layout == torch.strided and not tensor.is_nested:
                    self._ran |= self._unread.pop(tensor.untyped_storage()._cdata, set())

    @property
    def unused(self) -> set[str] | None:
        """Names of modules with weights that were neither called nor read. None before the model
        was called."""
        if not self._ran:
            return None
        used = {ROOT}
        for name in self._ran:
            used |= set(accumulate(name.split("."), "{}.{}".format))
        unused = set()
        for name, module in self.model.named_modules():
            if name not in used and next(module.parameters(), None) is not None:
                unused.add(name)
        return unused

    def begin(self, running: torch.nn.Module | torch.optim.Optimizer) -> None:
        """Notes a module's forward or an optimiser's step that began before the tracker was
        entered."""
        if isinstance(running, torch.optim.Optimizer):
            self._enter_optimizer(running)
        else:
            self._enter_layer(running, ())

    def parts(self) -> Iterator[AbstractContextManager[Any]]:
        self.callback(self._frames.clear)
        yield global_hooks.register_module_forward_pre_hook(self._enter_layer)
        yield global_hooks.register_module_forward_hook(self._leave_layer, always_call=True)
        yield optimizer_hooks.register_optimizer_step_pre_hook(self._enter_optimizer)
        yield optimizer_hooks.register_optimizer_step_post_hook(
            lambda owner, *_: self._leave("optimizer", id(owner))
        )
        yield compiled_models_unwarned()
        yield patch.object(torch.autograd, "_engine_run_backward", self._engine())

    def _engine(self) -> Callable[..., Any]:
        """Returns a replacement for the autograd engine's entry point that notes when it runs."""
        run = torch.autograd._engine_run_backward

        def tracked(
            outputs: Any, gradients: Any, keep: Any, create_graph: bool, *rest: Any, **options: Any
        ) -> Any:
            depth = len(self._frames)
            self._frames.append(_Frame("engine", makes_graph=bool(create_graph)))
            try:
                return run(outputs, gradients, keep, create_graph, *rest, **options)
            except BaseException as error:
                drop_own_frames(error)
                raise
            finally:
                del self._frames[depth:]

        return tracked

    def _enter_layer(self, module: torch.nn.Module, arguments: object) -> None:
        if self._in_other_thread():
            return
        name = self._names.get(id(module))
        if name is not None:
            self._ran.add(name)
            # only now, since torch.func.functional_call replaces the weights during a call
            if self._unread is None:
                # hidden from function modes of the user's loop
                with torch._C.DisableTorchFunction():
                    self._unread = _modules_by_storage(self.model)
        self._frames.append(_Frame("layer", self.current if name is None else name, id(module)))
        self._mark()

    def _leave_layer(self, module: torch.nn.Module, arguments: object, output: object) -> None:
        if self._in_other_thread():
            return
        # Hooks also run after a forward that failed, the innermost layer's first.
        error = sys.exc_info()[1]
        if error is not None and type(error).__name__ != "_StopRecomputationError":
            self.failed = self.failed or self._names.get(id(module), self.current)
        self._leave("layer", id(module))
        self._mark()

    def _enter_optimizer(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self._frames.append(_Frame("optimizer", owner=id(optimizer)))

    def _leave(self, kind: str, owner: int) -> None:
        """Removes the innermost frame of this kind and owner, and those inside it."""
        for index in reversed(range(len(self._frames))):
            frame = self._frames[index]
            if (frame.kind, frame.owner) == (kind, owner):
                del self._frames[index:]
                return

    def _in_other_thread(self) -> bool:
        """True in another thread than the tracker's, whose calls are no part of this step, unless
        autograd recomputes there."""
        return threading.get_ident() != self._thread and torch._C._current_autograd_node() is None

    def _mark(self) -> None:
        """Records which layer new autograd nodes belong to from now on."""
        # On a GPU the backward pass runs in another thread, which numbers its own nodes.
        if threading.get_ident() == self._thread:
            self._numbers.append(torch._C._autograd._get_sequence_nr())
            self._layers.append(self.current)


def _modules_by_storage(model: torch.nn.Module) -> dict[int, set[str]]:
    """Storages of the model's weights → names of the modules that hold them."""
    holders: dict[int, set[str]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        plain = type(weight) in (torch.Tensor, torch.nn.Parameter) or isinstance(weight, FakeTensor)
        if not plain or weight.layout != torch.strided:
            continue
        if torch._C._functorch.is_functorch_wrapped_tensor(weight):
            continue
        storage = weight.untyped_storage()._cdata
        holders.setdefault(storage, set()).add(name.rpartition(".")[0])
    return holders


def outermost(names: Iterable[str]) -> list[str]:
    """Returns names of modules without those inside another one, in order. Numbers are merged:
    `blocks.0` and `blocks.1` become `blocks.*`."""
    outer: list[str] = []
    for name in sorted(names):
        if not outer or not name.startswith(outer[-1] + "."):
            outer.append(name)
    return list(dict.fromkeys(re.sub(r"\b\d+\b", "*", name) for name in outer))
