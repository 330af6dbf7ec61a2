"""Plans of the experiments asked for, composed once and remembered; the Snakefile calls this while it is parsed."""

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from mfulab.core.errors import ConfigurationError
from mfulab.core.files import digests, read_text, write_json
from mfulab.device import is_gpu, kind_of
from mfulab.device.emulation import emulated_here
from mfulab.device.identity import NoDeviceError, check, hardware_slug, memory_bytes, resolve
from mfulab.lab.planning import traces
from mfulab.lab.planning.overrides import from_snakemake
from mfulab.lab.planning.runs import Plan, plan
from mfulab.lab.planning.sources import PACKAGE, locate
from mfulab.measurements.published import PUBLISHED

CONFIG = Path("config")
RESULTS = Path("results")
PLANS = TypeAdapter(list[Plan])


@dataclass(frozen=True)
class Planned:
    """The plans of one command, and the file that remembers them."""

    plans: list[Plan]
    memory: Path

    def remember(self) -> None:
        """Writes the plans where the next command, and a cluster's jobs, find them."""
        if not _recall(self.memory):
            write_json(self.memory, PLANS.dump_python(self.plans))


def load(config: Mapping[str, Any], folder: Path = CONFIG, results: Path = RESULTS) -> Planned:
    """Plans for Snakemake's `--config`, one an experiment. Writes nothing. Raises ConfigurationError.

    Composing imports Hydra and takes a second or more; plans are remembered under the content of all that they are made
    from. What is remembered and cannot be read is planned anew.
    """
    overrides = from_snakemake(config)
    memory = results / "plan" / f"{_fingerprint(overrides, folder)}.json"
    if plans := _recall(memory):
        return Planned(plans, memory)
    from mfulab.lab.planning.composition import compose_experiments

    plans = []
    for each in compose_experiments(overrides, folder):
        if (other := each.base["on_gpu"]) and is_gpu(place(each.base)[1]):
            rest = [override for override in overrides if not override.startswith("experiment=")]
            (each,) = compose_experiments([*rest, f"experiment={other}"], folder)
        plans.append(plan(each, *place(each.base)))
    for target in {run.target for each in plans for run in each.runs if run.target}:
        locate(target)
    return Planned(plans, memory)


def place(base: Mapping[str, Any]) -> tuple[str, str, Mapping[str, str], float | None]:
    """(hardware slug, device type, formats that it emulates with the reasons, its bytes) of a composed config.

    They are this machine's, or what `hardware=` claims of another, of which no emulated format is known. Bytes are a
    GPU's memory, None where it is not told.
    """
    hardware, device = base["hardware"], base["device"]["type"]
    try:
        check(device)
    except NoDeviceError as error:
        raise ConfigurationError(str(error)) from error
    if hardware:
        return hardware, device.replace("auto", kind_of(hardware)), {}, None
    try:
        kind = resolve(device)
        return hardware_slug(device), kind, emulated_here(kind), memory_bytes(kind)
    except NoDeviceError as error:
        raise ConfigurationError(str(error)) from error


def _fingerprint(overrides: Sequence[str], folder: Path) -> str:
    """Digest of all that a plan is made from: config tree, planning code, overrides, the machine unless given."""
    is_given = any(override.startswith("hardware=") for override in overrides)
    machine = [] if is_given else [hardware_slug("cpu"), resolve("auto"), hardware_slug("auto"), *emulated_here("cpu")]
    digest = hashlib.sha256(json.dumps([*overrides, *machine, *digests(folder, ".yaml")]).encode())
    # Kernels are among the choices, found by their modules.
    each_of = (
        "lab/planning/*.py",
        "core/**/*.py",
        "measurements/**/__init__.py",
        "kernels/*.py",
        "device/vendors/*.py",
    )
    code = (sorted(PACKAGE.glob(each)) for each in each_of)
    for path in [*sorted(PUBLISHED.glob("*.csv")), *itertools.chain(*code)]:
        digest.update(str(path).encode())
        digest.update(path.read_bytes())
    for override in overrides:
        if override.startswith("trace="):  # a file that came, went or changed makes another plan
            digest.update(json.dumps(traces.stamps(override.partition("=")[2])).encode())
    return digest.hexdigest()[:16]


def _recall(path: Path) -> list[Plan]:
    """The remembered plans; none if nothing readable is remembered."""
    try:
        return PLANS.validate_json(read_text(path))
    except (FileNotFoundError, ValueError):
        return []
