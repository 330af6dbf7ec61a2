"""Demands of a run on the machine that Snakemake sends it to, and on the worker that it is forked
from."""

import itertools
from collections.abc import Collection, Iterator, Mapping

from mfulab.core.json_text import parse_json
from mfulab.core.parts import Content, Values
from mfulab.device import is_gpu, kind_of
from mfulab.lab.planning.runs import Run

TRANSFORMERS = ("mfulab.models.huggingface.", "mfulab.models.lora.")
BUILD = "mfulab.models.huggingface.build"
COMPILED_KERNEL = "mfulab.kernels.torch_compiled."
OF_DEVICE = ("gpu", "cpu_measurement", "nodes", "tasks", "tasks_per_gpu", "mpi")


def imported(configs: Collection[str]) -> list[str]:
    """Names what runs with these configs import beside torch, as `server.modules_for`."""
    names = set[str]()
    architectures = set[str]()
    for group in itertools.chain.from_iterable(_groups(parse_json(text)) for text in configs):
        names.update(_frameworks(group))
        arguments = group.get("arguments") or {}
        if group.get("_target_") == BUILD and "architecture" in arguments:
            architectures.add(f"transformers:{arguments['architecture']}")
    order = ("jax", "tensorflow", "transformers", "dynamo")
    return [*(name for name in order if name in names), *sorted(architectures)]


def _groups(config: Values) -> Iterator[Values]:
    """A run's config and all groups in it."""
    yield config
    for value in config.values():
        if isinstance(value, Mapping):
            yield from _groups(value)


def _frameworks(group: Values) -> Iterator[str]:
    """Modules that a group of a run's config imports beside torch; a model from elsewhere may import
    anything."""
    mode = group.get("mode")
    if isinstance(mode, str):
        yield from filter(mode.startswith, ("jax", "tensorflow"))
    target = group.get("_target_")
    if isinstance(target, str) and not _is_light(target):
        yield "transformers"
    if "model" in group or (isinstance(target, str) and target.startswith(COMPILED_KERNEL)):
        yield "dynamo"  # to count FLOPs, trace, train and compile


def _is_light(target: str) -> bool:
    """True for a class of torch, or of ours that needs no library beside it."""
    return target.startswith(("torch.", "mfulab.")) and not target.startswith(TRANSFORMERS)


def device_resources(run: Run | None, hardware: str) -> Content:
    """Resources of a run on a device, of those that `OF_DEVICE` names."""
    config = {}
    if run:
        config = parse_json(run.text)
    jointly = config.get("parallel") or {}
    processes = jointly.get("processes", 1)
    nodes = jointly.get("nodes", 1)
    on_gpu = is_gpu(kind_of(hardware))
    values: Content = {"gpu": processes * on_gpu, "cpu_measurement": int(not on_gpu)}
    if nodes > 1:  # a task a process; `mpi` has the job start them itself, by srun
        values["nodes"] = nodes
        values["tasks"] = processes
        values["tasks_per_gpu"] = int(on_gpu) or None
        values["mpi"] = "srun"
    return values
