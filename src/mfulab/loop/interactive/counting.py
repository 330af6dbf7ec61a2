"""A counter that is switched on and off in the middle of a loop, whatever contexts open and close
there meanwhile."""

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
from mfulab.core.parts import leave_out
from mfulab.core.said import Said, as_told, of_source
from mfulab.flops.counter import Dispatch, OperatorCounter, eager_stance
from mfulab.flops.layers import LayerTracker


class LoopCounter(OperatorCounter):
    """A counter whose own errors do not reach the loop, and that counts what computes: no fake or
    meta tensors. Its dispatch mode lies below the loop's own, which thus end in the order that they
    began in."""

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
        if self._holds_stance:  # else an older one of the loop has ended meanwhile, and stands
            self._stance.__exit__(None, None, None)

    @property
    def _holds_stance(self) -> bool:
        own = getattr(self._stance, "stance", None)
        return own is None or sys.modules["torch._dynamo.eval_frame"]._stance is own

    @property
    def sees_all(self) -> bool:
        """True if the counter still sees operators; a context begun before it and ended under it
        takes that away."""
        return self._holds_stance and torch._C._dispatch_tls_is_dispatch_key_included(
            torch._C.DispatchKey.Python
        )

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Makes the thread's state, inside it, as if there were no counter; does nothing where it
        does not listen."""
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
            # A model on the meta device, and one that only tries shapes, computes nothing.
            tensors = (leaf for leaf in tree_leaves((out, args)) if isinstance(leaf, torch.Tensor))
            computes = not any(
                tensor.is_meta or isinstance(tensor, FakeTensor) for tensor in tensors
            )
            if computes and not self._optimises(operator, out, args):
                super().add(operator, out, args, kwargs)
        except Exception as error:
            why = as_told(f"{type(error).__name__}: {error}")
            self.error = of_source(str(operator), why)

    def follow(self, gradients: Iterable[object], weights: Iterable[torch.Tensor]) -> None:
        """Counts nothing that follows from `gradients` outside modules and autograd, unless written
        into `weights`."""
        self._gradients = {}
        self._weights = {storage.cdata for storage in map(_storage, weights) if storage is not None}
        self._note_gradients(gradients)

    def _note_gradients(self, tensors: Iterable[object]) -> None:
        # Kept, since an address that is free can be another tensor's next.
        storages = {}
        for storage in map(_storage, tensors):
            if storage is not None:
                storages[storage.cdata] = storage
        self._gradients |= leave_out(storages, self._weights)

    def _optimises(self, operator: object, out: object, args: Sequence[object]) -> bool:
        node = torch._C._current_autograd_node()
        if node is not None and node.name() == "torch::autograd::AccumulateGrad":
            # a hook on a gradient that is complete: the model's own part of it is a sum
            return True
        if not self._gradients or torch.is_grad_enabled() or not self.layers.is_idle:
            return False
        if all(
            storage is None or storage.cdata not in self._gradients
            for storage in map(_storage, tree_leaves(args))
        ):
            return False
        in_place = None
        if args and str(operator).endswith("_"):
            in_place = args[0]
        self._note_gradients(tree_leaves((out, in_place)))
        return True


def in_compiled_code() -> bool:
    """Says whether compiled code calls this: as it ends, it brings back the dispatch state that it
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
    """A tensor's memory, without keeping it alive; None for what has none of its own."""
    if not isinstance(value, torch.Tensor):
        return None
    while torch._C._functorch.is_functorch_wrapped_tensor(value):
        value = torch._C._functorch.get_unwrapped(value)
    if value.layout == torch.strided and not is_traceable_wrapper_subclass(value):
        return StorageWeakRef(value.untyped_storage())
    return None


def state(counter: LoopCounter | None) -> tuple[object, ...]:
    """State that decides how the thread computes: gradients, inference, autocast, the loop's own
    dispatch modes."""
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
    """Changes the thread's stack of dispatch modes, those of torch's own tracing left where they
    lie, at the bottom."""
    modes = []
    for mode in _get_current_dispatch_mode_stack():
        if not mode.is_infra_mode():
            modes.append(mode)
    for _ in modes:
        _pop_mode()
    for mode in change(modes):
        _push_mode(mode)


@contextmanager
def states_kept_apart(counter: LoopCounter) -> Iterator[None]:
    """Pauses a counter inside it while a context begins or ends that keeps, or brings back, what
    the counter changes: the dispatch state of `torch.inference_mode`, or the stance of
    `torch.compiler.set_stance`."""
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
