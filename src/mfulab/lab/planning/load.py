"""Plans of the requested experiments, composed once and cached; called while the Snakefile is
parsed. They are cached in the user's own cache folder, as a results folder may come from a
stranger."""

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

# False if the workflow is a module of another project, or `mfulab run` is used without a workflow.
IS_CHECKOUT = Path("workflow/rules/measure.smk").is_file() and Path("scripts/run.py").is_file()
# A config tree copied by snakedeploy is used like a checkout's; an unrelated `config/` is not.
CONFIG = Path("config") if Path("config/experiment/quickstart.yaml").is_file() else SHIPPED
RESULTS = Path("results")
PLANS = TypeAdapter(list[Plan])
MOST_REMEMBERED = 100  # commands whose plans are cached
# Code of the package that plans depend on, including kernels, whose modules are choices.
PLANNING = (
    "lab/planning/*.py",
    "core/**/*.py",
    "measurements/**/__init__.py",
    "kernels/*.py",
    "device/vendors/*.py",
)


@dataclass(frozen=True)
class Planned:
    """The plans of one command, and the file that caches them."""

    plans: list[Plan]
    cached: Path

    def remember(self) -> None:
        """Caches the plans for the next command and for jobs on a cluster. Does nothing if the
        cache cannot be written."""
        if _read_plans(self.cached):
            return
        with suppress(ConfigurationError, OSError):
            write_json(self.cached, PLANS.dump_python(self.plans))
            files = sorted(self.cached.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for path in files[:-MOST_REMEMBERED]:
                path.unlink(missing_ok=True)


def load(config: Values, folder: Path = CONFIG) -> Planned:
    """Plans for Snakemake's config, from the cache if possible, as composing takes seconds. Raises
    ConfigurationError."""
    return of_overrides(overrides_of(config, folder), folder)


def of_overrides(overrides: Sequence[str], folder: Path = CONFIG) -> Planned:
    """Plans for Hydra's overrides, from the cache if possible. Raises ConfigurationError."""
    plans_folder = platformdirs.user_cache_path(PACKAGE.name) / "plans"
    cached = plans_folder / f"{_fingerprint(overrides, folder)}.json"
    plans = _read_plans(cached)
    if plans:
        return Planned(plans, cached)
    from mfulab.lab.planning.composition import compose_experiments

    for composition in compose_experiments(overrides, folder):
        on_gpu = composition.base["on_gpu"]
        if on_gpu and is_gpu(device_of(composition.base)[1]):
            rest = [word for word in overrides if not word.startswith("experiment=")]
            (composition,) = compose_experiments([*rest, f"experiment={on_gpu}"], folder)
        plans.append(plan(composition, *device_of(composition.base)))
    for target in {run.target for run in all_runs(plans) if run.target}:
        locate(target)
    return Planned(plans, cached)


def overrides_of(config: Values, folder: Path = CONFIG, typed: Values | None = None) -> list[str]:
    """Hydra overrides of Snakemake's config for the config tree `folder`; `typed` is the part given
    by `--config`."""
    is_whole_file = ROOT in config  # of a workflow that snakedeploy has deployed
    shipped = load_yaml(folder / "config.yaml") if is_whole_file else None
    result = from_snakemake(config, shipped, typed)
    keys = {override.partition("=")[0] for override in result}
    # A lecture's slides show recorded rows unless an experiment is given.
    if "report.text" in keys and "experiment" not in keys:
        result.append("experiment=recorded")
    return result


def words_of(overrides: Sequence[str]) -> list[str]:
    """Words of Snakemake's `--config` for these overrides."""
    if overrides:
        return [f"overrides={shlex.join(overrides)}"]
    return []


def script(name: str) -> str:
    """Path of the script `run` or `command`: of a checkout in the current folder, or of the
    package."""
    if IS_CHECKOUT:
        return f"scripts/{name}.py"
    files = {"run": "lab/runtime/run.py", "command": "__main__.py"}
    return str(PACKAGE / files[name])


def device_of(base: Values) -> tuple[str, str, Mapping[str, Said], float | None]:
    """Device of a composed config: hardware slug, device type, emulated formats with the reasons,
    and memory bytes of a GPU or None."""
    hardware = base["hardware"]
    device = base["device"]["type"]
    check(device)
    if hardware:
        return hardware, device.replace("auto", kind_of(hardware)), {}, None
    kind = resolve(device)
    return hardware_slug(device), kind, emulated_here(kind), memory_bytes(kind)


def _fingerprint(overrides: Sequence[str], folder: Path) -> str:
    """Digest of all that a plan depends on: config tree, planning code, overrides, and the machine
    unless another is given."""
    here = str(Path.cwd())  # a user's own modules and files are searched there
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
    """Facts of this machine that a plan depends on; empty if another machine is given."""
    if any(override.startswith("hardware=") for override in overrides):
        return []
    return [hardware_slug("cpu"), resolve("auto"), hardware_slug("auto"), *emulated_here("cpu")]


def _traces(overrides: Sequence[str]) -> list[tuple[str, int, int]]:
    """Path, size and time of each trace, as any change of them makes another plan."""
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


def _read_plans(path: Path) -> list[Plan]:
    """Cached plans; empty if there are none."""
    try:
        return PLANS.validate_json(read_text(path))
    except (FileNotFoundError, ValueError):
        return []
