"""Plans of the experiments asked for, composed once and remembered; the Snakefile calls this while
it is parsed. They are remembered in the user's own cache: a results folder may be a stranger's."""

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from pydantic import TypeAdapter

from mfulab.core.data import SHIPPED
from mfulab.core.errors import ConfigurationError
from mfulab.core.files import digests, found_files, read_text, write_json
from mfulab.core.parts import Values
from mfulab.core.said import Said
from mfulab.core.yaml_text import load_yaml
from mfulab.device import is_gpu, kind_of
from mfulab.device.emulation import emulated_here
from mfulab.device.identity import check, hardware_slug, memory_bytes, resolve
from mfulab.lab.planning.overrides import ROOT, from_snakemake
from mfulab.lab.planning.runs import ENDINGS, Plan, all_runs, plan
from mfulab.lab.planning.sources import PACKAGE, locate
from mfulab.measurements.published import PUBLISHED

# Else the workflow is another's module, or `mfulab run` is called without any.
IS_CHECKOUT = Path("workflow/rules/measure.smk").is_file() and Path("scripts/run.py").is_file()
# A tree that snakedeploy has copied counts as a checkout's does; a folder of something else does not.
CONFIG = Path("config") if Path("config/experiment/quickstart.yaml").is_file() else SHIPPED
RESULTS = Path("results")
PLANS = TypeAdapter(list[Plan])
MOST_REMEMBERED = 100  # commands whose plans are kept
# Code that plans are made by, in the package; kernels are among the choices, found by their
# modules.
PLANNING = (
    "lab/planning/*.py",
    "core/**/*.py",
    "measurements/**/__init__.py",
    "kernels/*.py",
    "device/vendors/*.py",
)


@dataclass(frozen=True)
class Planned:
    """The plans of one command, and the file that remembers them."""

    plans: list[Plan]
    memory: Path

    def remember(self) -> None:
        """Writes the plans where the next command, and a cluster's jobs, find them; nothing where
        the cache cannot be written."""
        if _recall(self.memory):
            return
        with suppress(ConfigurationError, OSError):
            write_json(self.memory, PLANS.dump_python(self.plans))
            kept = sorted(self.memory.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for path in kept[:-MOST_REMEMBERED]:
                path.unlink(missing_ok=True)


def load(config: Values, folder: Path = CONFIG) -> Planned:
    """Plans for Snakemake's config, remembered, as composing takes seconds. Raises
    ConfigurationError."""
    return of_overrides(asked_of(config, folder), folder)


def of_overrides(overrides: Sequence[str], folder: Path = CONFIG) -> Planned:
    """Plans for Hydra's overrides, remembered as by `load`. Raises ConfigurationError."""
    memory = _memory() / f"{_fingerprint(overrides, folder)}.json"
    if plans := _recall(memory):
        return Planned(plans, memory)
    from mfulab.lab.planning.composition import compose_experiments

    plans = []
    for composition in compose_experiments(overrides, folder):
        if (other := composition.base["on_gpu"]) and is_gpu(place(composition.base)[1]):
            rest = []
            for override in overrides:
                if not override.startswith("experiment="):
                    rest.append(override)
            (composition,) = compose_experiments([*rest, f"experiment={other}"], folder)
        plans.append(plan(composition, *place(composition.base)))
    for target in {run.target for run in all_runs(plans) if run.target}:
        locate(target)
    return Planned(plans, memory)


def asked_of(config: Values, folder: Path = CONFIG, typed: Values | None = None) -> list[str]:
    """Hydra overrides of Snakemake's config for the config tree `folder`; `typed` is `--config`
    alone."""
    is_whole_file = ROOT in config  # of a workflow that snakedeploy has deployed
    shipped = None
    if is_whole_file:
        shipped = load_yaml(folder / "config.yaml")
    result = from_snakemake(config, shipped, typed)
    return result + _of_slides(result)


def _of_slides(overrides: Sequence[str]) -> list[str]:
    """A lecture's slides are of recorded rows, unless an experiment is named."""
    keys = {override.partition("=")[0] for override in overrides}
    is_of_recordings = "report.text" in keys and "experiment" not in keys
    if is_of_recordings:
        return ["experiment=recorded"]
    return []


def words_of(overrides: Sequence[str]) -> list[str]:
    """Words of `--config` that ask for these overrides."""
    if overrides:
        return [f"overrides={shlex.join(overrides)}"]
    return []


def script(name: str) -> str:
    """The script `run` or `command` of a checkout in the current folder, else the package's."""
    if IS_CHECKOUT:
        return f"scripts/{name}.py"
    files = {"run": "lab/runtime/run.py", "command": "__main__.py"}
    return str(PACKAGE / files[name])


def _memory() -> Path:
    return platformdirs.user_cache_path(PACKAGE.name) / "plans"


def place(base: Values) -> tuple[str, str, Mapping[str, Said], float | None]:
    """(hardware slug, device type, emulated formats with the reasons, a GPU's bytes or None) of a
    composed config."""
    hardware = base["hardware"]
    device = base["device"]["type"]
    check(device)
    if hardware:
        return hardware, device.replace("auto", kind_of(hardware)), {}, None
    kind = resolve(device)
    return hardware_slug(device), kind, emulated_here(kind), memory_bytes(kind)


def _fingerprint(overrides: Sequence[str], folder: Path) -> str:
    """Digest of all that a plan is made from: config tree, planning code, overrides, the machine
    unless given."""
    here = str(Path.cwd())  # where a user's own modules and files are looked for
    tree = digests(folder, ".yaml")
    parts = [here, *overrides, *_machine(overrides), *tree, *_traces(overrides)]
    digest = hashlib.sha256(json.dumps(parts).encode())
    files = sorted(PUBLISHED.glob("*.csv"))
    for part in PLANNING:
        files += sorted(PACKAGE.glob(part))
    for path in files:
        digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _machine(overrides: Sequence[str]) -> list[str]:
    """Facts that a plan takes from this machine; none where another one is given."""
    if any(override.startswith("hardware=") for override in overrides):
        return []
    return [hardware_slug("cpu"), resolve("auto"), hardware_slug("auto"), *emulated_here("cpu")]


def _traces(overrides: Sequence[str]) -> list[tuple[str, int, int]]:
    """Path, size and time of each trace: one that came, went or changed makes another plan."""
    found = list[tuple[str, int, int]]()
    for override in overrides:
        key, _, words = override.partition("=")
        if key != "trace":
            continue
        for word in words.split(","):
            for path in found_files(word, ENDINGS):
                if path.exists():
                    status = path.stat()
                    found.append((str(path), status.st_size, status.st_mtime_ns))
    return found


def _recall(path: Path) -> list[Plan]:
    try:
        return PLANS.validate_json(read_text(path))
    except (FileNotFoundError, ValueError):
        return []
