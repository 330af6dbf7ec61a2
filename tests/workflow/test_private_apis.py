"""Private parts of libraries that this project leans on: named once, so that an upgrade which
removes one fails here.

docs/upstream.md says what each is for and what would replace it.
"""

import ast
import importlib
import inspect
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from support.workflow_copy import ROOT

LIBRARIES = {
    "hydra",
    "matplotlib",
    "numba",
    "omegaconf",
    "pandas",
    "pip",
    "pydantic",
    "seaborn",
    "snakemake",
    "torch",
    "transformers",
    "triton",
}
# Module, and the name in it.
PRIVATE = {
    ("pip._vendor.packaging.requirements", "Requirement"),
    ("pip._vendor.packaging.utils", "canonicalize_name"),
    ("torch", "_C.DispatchKey.CompositeImplicitAutograd"),
    ("torch", "_C._dispatch_has_kernel_for_dispatch_key"),
    ("torch", "_C._dispatch_key_for_device"),
    ("torch", "_C.DisableTorchFunction"),
    ("torch", "_C.DispatchKey.CompositeExplicitAutograd"),
    ("torch", "_C.DispatchKey.FuncTorchDynamicLayerFrontMode"),
    ("torch", "_C.DispatchKey.Python"),
    ("torch", "_C._autograd._get_sequence_nr"),
    ("torch", "_C._autograd._top_saved_tensors_default_hooks"),
    ("torch", "_C._current_autograd_node"),
    ("torch", "_C._will_engine_execute_node"),
    ("torch", "_C._dispatch_tls_is_dispatch_key_included"),
    ("torch", "_C._dynamo.eval_frame"),
    ("torch", "_C._functorch"),
    ("torch", "_C._functorch.CVmapInterpreterPtr"),
    ("torch", "_C._functorch.TransformType.Vmap"),
    ("torch", "_C._functorch.get_interpreter_stack"),
    ("torch", "_C._functorch.get_unwrapped"),
    ("torch", "_C._functorch.is_functorch_wrapped_tensor"),
    ("torch", "_C._is_any_autocast_enabled"),
    ("torch", "_C._len_torch_dispatch_stack"),
    ("torch", "_foreach_sub_"),
    ("torch", "_int_mm"),
    ("torch", "_ops.HigherOrderOperator"),
    ("torch", "_ops.OpOverloadPacket"),
    ("torch", "_ops.OperatorBase"),
    ("torch", "_ops.ops.aten._convert_weight_to_int4pack_for_cpu"),
    ("torch", "_ops.ops.aten._weight_int4pack_mm_for_cpu"),
    ("torch", "_scaled_mm"),
    ("torch", "_weight_int8pack_mm"),
    ("torch", "_C._dynamo.eval_frame._debug_get_cache_entry_list"),
    ("torch._dynamo", "explain"),
    ("torch._dynamo.decorators", "set_stance"),
    ("torch._dynamo.utils", "counters"),
    ("torch._higher_order_ops.associative_scan", "associative_scan_op"),
    ("torch._higher_order_ops.map", "map_impl"),
    ("torch._ops", "HigherOrderOperator"),
    ("torch._subclasses.fake_tensor", "FakeTensor"),
    ("torch._subclasses.fake_tensor", "FakeTensorMode"),
    ("torch.autograd", "_engine_run_backward"),
    ("torch.cuda", "_sleep"),
    ("torch.nn.modules.conv", "_ConvNd"),
    ("torch.testing._internal.distributed.fake_pg", "FakeStore"),
    ("torch.utils._python_dispatch", "TorchDispatchMode"),
    ("torch.utils._python_dispatch", "_disable_current_modes"),
    ("torch.utils._python_dispatch", "_get_current_dispatch_mode_stack"),
    ("torch.utils._python_dispatch", "_pop_mode"),
    ("torch.utils._python_dispatch", "_push_mode"),
    ("torch.utils._python_dispatch", "is_traceable_wrapper_subclass"),
    ("torch.utils._python_dispatch", "is_traceable_wrapper_subclass_type"),
    ("torch.utils._pytree", "tree_flatten"),
    ("torch.utils._pytree", "tree_leaves"),
    ("torch.utils._pytree", "tree_map_only"),
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter"),
}


@pytest.mark.parametrize(("module", "name"), sorted(PRIVATE))
def test_it_is_still_there(module, name):
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)


def test_snakemake_still_has_what_its_workarounds_touch():
    importlib.import_module("snakemake.api")  # first: its modules import one another
    from snakemake import cli
    from snakemake.dag import DAG
    from snakemake.jobs import Job
    from snakemake.persistence import PersistenceBase
    from snakemake.scheduling.job_scheduler import JobScheduler
    from snakemake.workflow import Workflow
    from snakemake_executor_plugin_slurm import Executor as SlurmExecutor
    from snakemake_executor_plugin_slurm import ExecutorSettings as SlurmSettings

    assert {"executor_plugin"} <= set(inspect.signature(Workflow.execute).parameters)
    assert callable(Workflow.unlock)
    assert callable(Workflow.get_rule)
    assert "workflow.scheduling_settings.max_jobs_per_timespan" in inspect.getsource(
        JobScheduler.__init__
    )
    assert "self._executor = executor_plugin.executor(" in inspect.getsource(JobScheduler.__init__)
    assert "self.run_uuid = " in inspect.getsource(SlurmExecutor)
    assert "status_command" in {field.name for field in fields(SlurmSettings)}
    assert callable(Workflow._prepare_dag)
    assert "self.dag_settings.target_jobs" in inspect.getsource(Workflow._prepare_dag)
    assert "await self.cleanup(" in inspect.getsource(Job.postprocess)
    assert callable(PersistenceBase._unmark_incomplete)
    assert "self.check_output_mtime(job, expanded_output)" in inspect.getsource(DAG)
    assert list(inspect.signature(cli.parse_config).parameters) == ["entries"]
    assert "config=parse_config(" in inspect.getsource(cli), "it is looked up when it is called"


def test_every_private_part_in_use_is_named_here():
    files = (
        path for folder in ("src", "scripts") for path in sorted((ROOT / folder).rglob("*.py"))
    )
    used = {found for path in files for found in _private(path)}
    assert used == PRIVATE


def _private(path: Path) -> Iterator[tuple[str, str]]:
    """Private names of the libraries in a file: imported ones, and attributes of what is
    imported."""
    modules: dict[str, str] = {}
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                modules[alias.asname or first] = alias.name if alias.asname else first
        elif (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.split(".")[0] in LIBRARIES
        ):
            for alias in node.names:
                modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                if _is_private(node.module) or _is_private(alias.name):
                    yield node.module, alias.name
    inner = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        parts = [] if node in inner else _dotted(node)
        root = modules.get(parts[0], "") if parts else ""
        if root.split(".")[0] in LIBRARIES and any(map(_is_private, parts[1:])):
            whole = [*root.split("."), *parts[1:]]
            first = next(place for place, part in enumerate(whole) if _is_private(part))
            if not any(map(_is_private, root.split("."))):
                yield ".".join(whole[:first]), ".".join(whole[first:])


def _dotted(node: ast.AST) -> list[str]:
    """The parts of `a.b.c`."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) and parts else []


def _is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))
