"""Hooks that measuring puts on torch: harmless to the loop, kept from its compiler, and timed."""

import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import FunctionType
from typing import Any, ClassVar, NamedTuple, SupportsIndex
from unittest.mock import patch

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import optimizer as of_optimizers
from torch.utils._python_dispatch import _disable_current_modes

from mfulab.core.errors import drop_own_frames
from mfulab.device import is_gpu
from mfulab.flops.layers import compiled_models_unwarned
from mfulab.loop.interactive.structure import (
    Modules,
    graphs_compiled,
    hooks_are_guarded_against,
    is_compiled_in_place,
)

Hook = Callable[..., None]
_FIELDS_OF_HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)


class Call(NamedTuple):
    """A call of a model: the model's index, the module called, and its arguments."""

    model_index: int
    module: torch.nn.Module
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


class _Pair(NamedTuple):
    """Hooks before and after each call of a model."""

    model: torch.nn.Module
    before: Hook
    after: Hook | None

    def put_on(self, undo: ExitStack) -> None:
        """Puts the hooks on the model, unless they would be compiled with it."""
        if is_compiled_in_place(self.model):
            return
        undo.callback(self.model.register_forward_pre_hook(self.before, with_kwargs=True).remove)
        if self.after is not None:
            undo.callback(self.model.register_forward_hook(self.after, always_call=True).remove)

    def put_around(self, undo: ExitStack) -> None:
        """Calls the hooks around the call of a model compiled in place, outside of the compiled
        code."""
        call = self.model._compiled_call_impl
        if call is None:
            return
        called = _called_between(self, call)
        self.model._compiled_call_impl = called
        undo.callback(_restore_call, self.model, called, call)


def _called_between(pair: _Pair, call: Callable[..., object]) -> Callable[..., object]:
    """Wraps the call of a model so that the pair's hooks run before and after it."""
    model, before, after = pair

    def called(*args: object, **kwargs: object) -> object:
        before(model, args, kwargs)
        try:
            return call(*args, **kwargs)
        except BaseException as error:
            drop_own_frames(error)
            raise
        finally:
            if after is not None:
                after(model, args, None)

    skip_frame(called)
    return called


def _restore_call(
    model: torch.nn.Module, called: Callable[..., object], call: Callable[..., object]
) -> None:
    """Gives a model its own call back, unless the loop has compiled it again meanwhile."""
    if model._compiled_call_impl is called:
        model._compiled_call_impl = call


class _OnModules(NamedTuple):
    """Hooks on modules: on each call of a model, and before each call of any module."""

    pairs: Sequence[_Pair]
    every: Hook | None

    def put_on(self, undo: ExitStack, are_guarded: bool) -> None:
        """Puts the hooks on. Where compiled graphs are guarded against hooks, those that would
        compile them anew are left out."""
        for pair in self.pairs:
            has_own_call = type(pair.model).__call__ is not torch.nn.Module.__call__
            if not (are_guarded and has_own_call):
                pair.put_on(undo)
        if self.every is None or are_guarded:
            return
        if "torch._dynamo" in sys.modules:
            undo.enter_context(compiled_models_unwarned())
        undo.callback(register_module_forward_pre_hook(self.every).remove)


class Hooks:
    """Hooks on models, optimisers and autograd's engine, whose errors, time and code do not affect
    the loop. No hook is on a module while torch compiles: compiled code would keep it, and be
    compiled anew without it. `failed` is called with an error of a hook itself, `compiles` when a
    compilation begins. `spent_s` is the host time inside hooks so far, `compiled` the number of
    compilations in all threads. Copies and pickles of a model, made meanwhile, have no hooks."""

    _put_on: ClassVar[set["Hooks"]] = set()

    def __init__(
        self,
        models: Modules,
        failed: Callable[[Exception], None],
        compiles: Callable[[], None],
    ) -> None:
        self._models = list[tuple[int, torch.nn.Module]]()
        for index, model in enumerate(models):
            # The module that torch.compile was given may be called beside its compiled twin, which
            # does not call its hooks. A script takes no hooks.
            for module in (model, getattr(model, "_orig_mod", None)):
                is_script = isinstance(module, torch.jit.ScriptModule)
                if isinstance(module, torch.nn.Module) and not is_script:
                    self._models.append((index, module))
        self._failed = failed
        self._began = compiles
        self.spent_s = 0.0
        self.compiled = 0
        self._on_modules, self._elsewhere = ExitStack(), ExitStack()
        self._of_modules: _OnModules | None = None
        self._compiler: Any = None
        self._guards = 0, False  # number of graphs, and whether they are guarded against hooks

    def put_on(
        self,
        before: Callable[[Call], None],
        after: Hook | None = None,
        called: Hook | None = None,
        optimizer: Sequence[Hook] = (),
        engine: Callable[..., object] | None = None,
    ) -> None:
        """Puts hooks on: `before` and `after` each call of a model, `called` before each call of
        any module. The two hooks in `optimizer` run before and after each optimiser's step;
        `engine` replaces autograd's backward function."""
        self.take_off()
        self._put_on.add(self)
        torch.nn.Module.__reduce_ex__ = _without_hooks  # type: ignore[assignment, method-assign]
        ends = after and self.guarded(after)
        pairs: list[_Pair] = []
        for index, model in self._models:
            begins = self.guarded(partial(_call_with, before, index))
            pairs.append(_Pair(model, begins, ends))
        self._of_modules = _OnModules(pairs, called and self.guarded(called))
        self._hook_modules()
        for pair in pairs:
            pair.put_around(self._elsewhere)
        registers = (
            of_optimizers.register_optimizer_step_pre_hook,
            of_optimizers.register_optimizer_step_post_hook,
        )
        for register, hook in zip(registers, optimizer, strict=False):
            self._elsewhere.callback(register(self.guarded(hook)).remove)
        if engine is not None:
            self._elsewhere.enter_context(
                patch.object(torch.autograd, "_engine_run_backward", engine)
            )
        self._follow_compiler()

    def _follow_compiler(self) -> None:
        # The compiler is imported with the first compiled code.
        module = sys.modules.get("torch._dynamo.callback")
        if self._compiler is None and module is not None:
            self._compiler = module.callback_handler
            self._compiler.register_start_callback(self._compiles)
            self._compiler.register_end_callback(self._hook_modules)

    def take_off(self) -> None:
        """Removes all hooks; compilations are still followed."""
        self._of_modules = None
        self._on_modules.close()
        self._elsewhere.close()
        self._put_on.discard(self)
        if not self._put_on and "__reduce_ex__" in vars(torch.nn.Module):
            del torch.nn.Module.__reduce_ex__

    def close(self) -> None:
        """Removes all hooks, and stops following compilations."""
        self.take_off()
        handler = self._compiler
        self._compiler = None
        if handler is not None:
            with suppress(ValueError):  # `torch._dynamo.reset` has removed them
                handler.remove_start_callback(self._compiles)
                handler.remove_end_callback(self._hook_modules)

    def guarded(self, hook: Hook) -> Hook:
        """Wraps a hook so that none of it is compiled, and the loop's function modes do not see it.
        Its errors go to `failed`, its time into `spent_s`."""
        compiler = torch._C._dynamo.eval_frame
        is_compiling = torch.compiler.is_compiling
        now = time.perf_counter

        def safe(*args: object) -> None:
            if is_compiling():  # first: nothing else may be traced into compiled code
                return
            began = now()
            active = compiler.set_eval_frame(None)
            try:
                with torch._C.DisableTorchFunction():
                    hook(*args)
            except Exception as error:
                self._failed(error)
            finally:
                compiler.set_eval_frame(active)
                self.spent_s += now() - began

        skip_frame(safe)
        return safe

    def _compiles(self, *_: object) -> None:
        self.compiled += 1
        with suppress(Exception):
            self._began()
            self._on_modules.close()

    def _hook_modules(self, *_: object) -> None:
        if self._of_modules is not None:
            with suppress(Exception), ExitStack() as undo:
                self._of_modules.put_on(undo, self._are_guarded_against())
                self._on_modules = undo.pop_all()

    def _are_guarded_against(self) -> bool:
        """True if compiled graphs are guarded against hooks; found out once for each number of
        graphs."""
        graphs = graphs_compiled()
        if self._guards[0] != graphs:
            self._guards = graphs, hooks_are_guarded_against()
        return self._guards[1]


def _call_with(before: Callable[[Call], None], model_index: int, *call: Any) -> None:
    """Calls `before` with the call of a model: its module, arguments and keywords."""
    before(Call(model_index, *call))


def _without_hooks(module: torch.nn.Module, protocol: SupportsIndex) -> str | tuple[object, ...]:
    """Reduces a module for copy and pickle as if it had none of our hooks."""
    fields = module.__dict__
    ours = set[int]()
    for name in ("_forward_pre_hooks", "_forward_hooks"):
        for key, hook in (fields.get(name) or {}).items():
            if getattr(hook, "__module__", "") == __name__:
                ours.add(key)
    if not ours:
        return object.__reduce_ex__(module, protocol)
    kept = {name: fields[name] for name in _FIELDS_OF_HOOKS if fields.get(name)}
    try:
        for name, hooks in kept.items():
            fields[name] = type(hooks)((key, hooks[key]) for key in hooks if key not in ours)
        reduced: Any = object.__reduce_ex__(module, protocol)
        made, arguments, *state = reduced
        return made, arguments, *(dict(part) if part is fields else part for part in state)
    finally:
        fields.update(kept)


@contextmanager
def apart(device: torch.device) -> Iterator[None]:
    """Keeps the body of a `with` block apart from the loop: outside the loop's contexts and modes,
    with random numbers of its own."""
    devices = list[torch.device]()
    options: dict[str, Any] = {}
    if is_gpu(device):
        devices = [device]
        options = {"device_type": device.type}
    autocast_type = "cpu"
    if torch.amp.is_autocast_available(device.type):
        autocast_type = device.type
    random_state = random.getstate()  # importing rich draws random numbers
    try:
        with (
            torch._C.DisableTorchFunction(),
            torch.random.fork_rng(devices, **options),
            torch.inference_mode(False),
            torch.autocast(autocast_type, enabled=False),
            _disable_current_modes(),
        ):
            yield
    finally:
        random.setstate(random_state)


def skip_frame(function: Callable[..., object]) -> None:
    """Makes torch's compiler skip a function in code that it runs; functions called inside are
    compiled as usual."""
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is not None and isinstance(function, FunctionType):
        compiler.skip_code(function.__code__)
