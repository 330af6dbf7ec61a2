"""A FLOP counter that is switched on and off in the middle of a loop, whatever contexts open and
close there meanwhile."""

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
    is_traceable_wrapper_subclass,
)
from torch.utils._pytree import tree_leaves

from mfulab.core.errors import drop_own_frames
from mfulab.core.parts import drop_none, leave_out
from mfulab.core.said import Said, as_told, of_source
from mfulab.flops.counter import Dispatch, OperatorCounter, eager_stance
from mfulab.flops.layers import LayerTracker


class LoopCounter(OperatorCounter):
    """Counts FLOPs without letting its own errors reach the loop. Ignores fake and meta tensors,
    which compute nothing. Its dispatch mode lies below the loop's own modes, so that those end in
    the order in which they began."""

    def __init__(self, layers: LayerTracker) -> None:
        super().__init__(layers, memory=False)
        self.layers = layers
        self.error: Said | None = None
        self._gradients: dict[int, Any] = {}
        self._weights: set[int] = set()

    @contextmanager
    def _listening(self) -> Iterator[None]:
        self._begin()
        try:
            with states_kept_apart(self):
                yield
        finally:
            self._end()

    def _begin(self) -> None:
        self._stance = eager_stance()
        self._mode = Dispatch(self)
        _replace_modes(lambda modes: [self._mode, *modes])

    def _end(self) -> None:
        _replace_modes(lambda modes: [mode for mode in modes if mode is not self._mode])
        if self._holds_stance:  # else an older stance of the loop has ended, and is in force again
            self._stance.__exit__(None, None, None)

    @property
    def _holds_stance(self) -> bool:
        stance = getattr(self._stance, "stance", None)
        return stance is None or sys.modules["torch._dynamo.eval_frame"]._stance is stance

    @property
    def sees_all(self) -> bool:
        """True if the counter still sees operators. A context that began before the counter and
        ended under it makes it blind."""
        return self._holds_stance and torch._C._dispatch_tls_is_dispatch_key_included(
            torch._C.DispatchKey.Python
        )

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Restores the thread's state inside a `with` block as if there were no counter; does
        nothing if the counter is off."""
        if self._mode not in _get_current_dispatch_mode_stack():
            yield
            return
        self._end()
        try:
            yield
        finally:
            self._begin()

    def add(
        self, operator: object, out: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        if self.error:
            return
        try:
            # A model on the meta device, or one that only tries shapes, computes nothing.
            computes = not any(map(_is_without_data, tree_leaves((out, args))))
            if computes and not self._optimises(operator, out, args):
                super().add(operator, out, args, kwargs)
        except Exception as error:
            why = as_told(f"{type(error).__name__}: {error}")
            self.error = of_source(str(operator), why)

    def follow(self, gradients: Iterable[object], weights: Iterable[torch.Tensor]) -> None:
        """Leaves out the optimiser's work: operators outside modules and autograd whose inputs
        derive from `gradients`. Results written into `weights` no longer count as derived."""
        self._gradients = {}
        self._weights = {storage.cdata for storage in drop_none(map(_storage, weights))}
        self._note_gradients(gradients)

    def _note_gradients(self, tensors: Iterable[object]) -> None:
        # The weak references are kept, since the address of freed memory can be reused.
        storages = {storage.cdata: storage for storage in drop_none(map(_storage, tensors))}
        self._gradients |= leave_out(storages, self._weights)

    def _optimises(self, operator: object, out: object, args: Sequence[object]) -> bool:
        node = torch._C._current_autograd_node()
        if node is not None and node.name() == "torch::autograd::AccumulateGrad":
            # a hook on a complete gradient: the model itself only adds to it
            return True
        if not self._gradients or torch.is_grad_enabled() or not self.layers.is_idle:
            return False
        inputs = {storage.cdata for storage in drop_none(map(_storage, tree_leaves(args)))}
        if self._gradients.keys().isdisjoint(inputs):
            return False
        in_place = None
        if args and str(operator).endswith("_"):
            in_place = args[0]
        self._note_gradients(tree_leaves((out, in_place)))
        return True


def _is_without_data(value: object) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    return value.is_meta or isinstance(value, FakeTensor)


def in_compiled_code() -> bool:
    """True if compiled code is on the call stack; at its end it restores the dispatch state that it
    began with."""
    frame_of_caller = None
    if "torch._dynamo.eval_frame" in sys.modules:
        frame_of_caller = sys._getframe(1)
    while frame_of_caller is not None:
        code = frame_of_caller.f_code
        if code.co_name == "compile_wrapper" and code.co_filename.endswith("eval_frame.py"):
            return True
        frame_of_caller = frame_of_caller.f_back
    return False


def _storage(value: object) -> StorageWeakRef | None:
    """Weak reference to a tensor's memory; None for what has no memory of its own."""
    if not isinstance(value, torch.Tensor):
        return None
    while torch._C._functorch.is_functorch_wrapped_tensor(value):
        value = torch._C._functorch.get_unwrapped(value)
    if value.layout == torch.strided and not is_traceable_wrapper_subclass(value):
        return StorageWeakRef(value.untyped_storage())
    return None


def state(counter: LoopCounter | None) -> tuple[object, ...]:
    """State that decides how the thread computes: gradients, inference mode, autocast, and the
    loop's own dispatch modes."""
    modes = []
    if torch._C._len_torch_dispatch_stack():
        modes = _get_current_dispatch_mode_stack()
    own = tuple(type(mode) for mode in modes if counter is None or mode is not counter._mode)
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch._C._is_any_autocast_enabled(),
        own,
    )


def _replace_modes(change: Callable[[list[TorchDispatchMode]], list[TorchDispatchMode]]) -> None:
    """Changes the thread's stack of dispatch modes; modes of torch's own tracing stay at the
    bottom."""
    modes = [mode for mode in _get_current_dispatch_mode_stack() if not mode.is_infra_mode()]
    for _ in modes:
        _pop_mode()
    for mode in change(modes):
        _push_mode(mode)


@contextmanager
def states_kept_apart(counter: LoopCounter) -> Iterator[None]:
    """Pauses the counter, inside a `with` block, while a context begins or ends that saves or
    restores what the counter changes. That is the dispatch state of `torch.inference_mode`, and the
    stance of `torch.compiler.set_stance`."""
    methods: list[tuple[type, str]] = [
        (torch.inference_mode, "__enter__"),
        (torch.inference_mode, "__exit__"),
    ]
    if "torch._dynamo" in sys.modules:
        from torch._dynamo.decorators import set_stance

        for name in ("__init__", "__call__", "__enter__", "__exit__"):
            methods.append((set_stance, name))

    def apart(change: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(change)
        def changed(*args: object, **kwargs: object) -> object:
            try:
                with counter.paused():
                    return change(*args, **kwargs)
            except BaseException as error:
                drop_own_frames(error)
                raise

        return changed

    with ExitStack() as undo:
        for kind, name in methods:
            undo.enter_context(patch.object(kind, name, apart(getattr(kind, name))))
        yield
