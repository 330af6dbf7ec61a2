"""Plans of the experiments asked for, composed once and remembered; the Snakefile calls this while it is parsed."""

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from mfulab.core.data import SHIPPED
from mfulab.core.errors import ConfigurationError
from mfulab.core.files import digests, found_files, read_text, write_json
from mfulab.device import is_gpu, kind_of
from mfulab.device.emulation import emulated_here
from mfulab.device.identity import check, hardware_slug, memory_bytes, resolve
from mfulab.lab.planning.runs import ENDINGS, Plan, plan
from mfulab.lab.planning.sources import PACKAGE, locate
from mfulab.measurements.published import PUBLISHED

IS_CHECKOUT = Path("scripts/run.py").is_file()  # else only `mfulab run` is of use, by what the package ships
CONFIG = Path("config") if IS_CHECKOUT else SHIPPED
RESULTS = Path("results")
PLANS = TypeAdapter(list[Plan])
# Code that plans are made by, in the package; kernels are among the choices, found by their modules.
PLANNING = ("lab/planning/*.py", "core/**/*.py", "measurements/**/__init__.py", "kernels/*.py", "device/vendors/*.py")


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
    """Plans for Snakemake's `--config`, remembered, as composing takes seconds. Raises ConfigurationError."""
    overrides = from_snakemake(config)
    memory = results / "plan" / f"{_fingerprint(overrides, folder)}.json"
    if plans := _recall(memory):
        return Planned(plans, memory)
    from mfulab.lab.planning.composition import compose_experiments

    plans = []
    for composition in compose_experiments(overrides, folder):
        if (other := composition.base["on_gpu"]) and is_gpu(place(composition.base)[1]):
            rest = [override for override in overrides if not override.startswith("experiment=")]
            (composition,) = compose_experiments([*rest, f"experiment={other}"], folder)
        plans.append(plan(composition, *place(composition.base)))
    for target in {run.target for planned in plans for run in planned.runs if run.target}:
        locate(target)
    return Planned(plans, memory)


def from_snakemake(config: Mapping[str, Any]) -> list[str]:
    """Hydra overrides of `--config key=value …`; `overrides="a.b=1 …"` holds dotted keys, which Snakemake refuses."""
    result = []
    for key, value in config.items():
        if key == "overrides":
            try:
                result += shlex.split(str(value))
            except ValueError as error:
                raise ConfigurationError(f"overrides={value}: {error}. Quote a value that holds spaces.") from error
        elif isinstance(value, Mapping):
            raise ConfigurationError(f"{key}={value}: write --config overrides='{key}.KEY=VALUE …' for a nested key.")
        else:
            result.append(f"{key}={_hydra_value(value)}")
    return result


def _hydra_value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_hydra_value, value))}]"
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def place(base: Mapping[str, Any]) -> tuple[str, str, Mapping[str, str], float | None]:
    """(hardware slug, device type, emulated formats with the reasons, a GPU's bytes or None) of a composed config."""
    hardware, device = base["hardware"], base["device"]["type"]
    check(device)
    if hardware:
        return hardware, device.replace("auto", kind_of(hardware)), {}, None
    kind = resolve(device)
    return hardware_slug(device), kind, emulated_here(kind), memory_bytes(kind)


def _fingerprint(overrides: Sequence[str], folder: Path) -> str:
    """Digest of all that a plan is made from: config tree, planning code, overrides, the machine unless given."""
    is_given = any(override.startswith("hardware=") for override in overrides)
    machine = [] if is_given else [hardware_slug("cpu"), resolve("auto"), hardware_slug("auto"), *emulated_here("cpu")]
    digest = hashlib.sha256(json.dumps([*overrides, *machine, *digests(folder, ".yaml")]).encode())
    for path in [*sorted(PUBLISHED.glob("*.csv")), *(path for part in PLANNING for path in sorted(PACKAGE.glob(part)))]:
        digest.update(str(path).encode() + path.read_bytes())
    for override in overrides:
        if override.startswith("trace="):  # a file that came, went or changed makes another plan
            paths = [path for word in override.partition("=")[2].split(",") for path in found_files(word, ENDINGS)]
            stats = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths if path.exists()]
            digest.update(json.dumps(stats).encode())
    return digest.hexdigest()[:16]


def _recall(path: Path) -> list[Plan]:
    try:
        return PLANS.validate_json(read_text(path))
    except (FileNotFoundError, ValueError):
        return []
