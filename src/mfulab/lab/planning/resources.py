"""Resources that Snakemake reserves for a run, and modules that the warm worker imports for it."""

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
    """Names of what runs with these configs import in addition to torch, in the form that
    `server.modules_for` takes."""
    names = set[str]()
    architectures = set[str]()
    for text in configs:
        for group in _groups(parse_json(text)):
            names.update(_frameworks(group))
            arguments = group.get("arguments") or {}
            if group.get("_target_") == BUILD and "architecture" in arguments:
                architectures.add(f"transformers:{arguments['architecture']}")
    order = ("jax", "tensorflow", "transformers", "dynamo")
    return [*(name for name in order if name in names), *sorted(architectures)]


def _groups(config: Values) -> Iterator[Values]:
    """Yields a run's config and all groups in it."""
    yield config
    for value in config.values():
        if isinstance(value, Mapping):
            yield from _groups(value)


def _frameworks(group: Values) -> Iterator[str]:
    """Yields what a group of a run's config imports in addition to torch. A user's own model may
    need transformers."""
    mode = group.get("mode")
    if isinstance(mode, str):
        yield from filter(mode.startswith, ("jax", "tensorflow"))
    target = group.get("_target_")
    if isinstance(target, str) and not _is_light(target):
        yield "transformers"
    if "model" in group or (isinstance(target, str) and target.startswith(COMPILED_KERNEL)):
        yield "dynamo"  # to count FLOPs, trace, train and compile


def _is_light(target: str) -> bool:
    """True for a class of torch, or of this package if it needs no other library."""
    return target.startswith(("torch.", "mfulab.")) and not target.startswith(TRANSFORMERS)


def device_resources(run: Run | None, hardware: str) -> Content:
    """Snakemake resources of a run on a device, named as in `OF_DEVICE`."""
    config = parse_json(run.text) if run else {}
    parallel = config.get("parallel") or {}
    processes = parallel.get("processes", 1)
    nodes = parallel.get("nodes", 1)
    on_gpu = is_gpu(kind_of(hardware))
    values: Content = {"gpu": processes * on_gpu, "cpu_measurement": int(not on_gpu)}
    if nodes > 1:  # one task per process; `mpi` lets the job start them itself, by srun
        values["nodes"] = nodes
        values["tasks"] = processes
        values["tasks_per_gpu"] = int(on_gpu) or None
        values["mpi"] = "srun"
    return values
