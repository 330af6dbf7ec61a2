"""What the Snakefile calls while it is parsed: the plans of the experiments asked for, composed once and remembered."""

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mfulab.hardware.identity import NoDeviceError, hardware_slug, resolve
from mfulab.planning import store
from mfulab.planning.overrides import from_snakemake
from mfulab.planning.runs import Plan, Run, plan
from mfulab.planning.sources import PACKAGE, locate
from mfulab.schema.errors import ConfigurationError

CONFIG = Path("config")
RESULTS = Path("results")


def load(config: Mapping[str, Any], folder: Path = CONFIG, results: Path = RESULTS, is_main: bool = True) -> list[Plan]:
    """Plans for Snakemake's `--config`, one an experiment, with every run's config written. Raises ConfigurationError.

    Composing imports Hydra and takes a second or more; the plans are remembered under the content of all that they are
    made from. A cluster's job, which parses the workflow too (`is_main` is false), reads them there and writes nothing.
    """
    overrides = from_snakemake(config)
    if is_main:
        store.check_writable(results)
    remembered = results / "plan" / f"{_fingerprint(overrides, folder)}.json"
    is_remembered = remembered.exists()
    plans = _recall(remembered) if is_remembered else _make(overrides, folder)
    if is_main:
        for each in plans:
            store.write(each, results)
        if not is_remembered:
            store.write_if_changed(remembered, _told(plans))
    return plans


def _make(overrides: Sequence[str], folder: Path) -> list[Plan]:
    from mfulab.planning.composition import compose_experiments

    plans = []
    for composition in compose_experiments(overrides, folder):
        hardware, device = place(composition.base)
        plans.append(plan(composition, hardware, device))
    for target in {run.target for each in plans for run in each.runs if run.target}:
        locate(target)
    return plans


def place(base: Mapping[str, Any]) -> tuple[str, str]:
    """(hardware slug, device type) of a composed config: this machine's, or what `hardware=` claims of another."""
    try:
        if base["hardware"]:
            claimed = "cuda" if base["hardware"].startswith("nvidia") else "cpu"
            return base["hardware"], base["device"]["type"].replace("auto", claimed)
        return hardware_slug(base["device"]["type"]), resolve(base["device"]["type"])
    except NoDeviceError as error:
        raise ConfigurationError(str(error)) from error


def _fingerprint(overrides: Sequence[str], folder: Path) -> str:
    """Of all that a plan is made from: the config tree, the planning code, the overrides, the machine unless given."""
    is_given = any(override.startswith("hardware=") for override in overrides)
    machine = [] if is_given else [hardware_slug("cpu"), resolve("auto"), hardware_slug("auto")]
    digest = hashlib.sha256(json.dumps([*overrides, *machine]).encode())
    rooms = [sorted((PACKAGE / room).glob("*.py")) for room in ("planning", "schema")]
    code = [PACKAGE / "language/__init__.py", *itertools.chain(*rooms)]
    for path in [*sorted(folder.rglob("*.yaml")), *code]:
        digest.update(str(path).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _told(plans: Sequence[Plan]) -> str:
    return json.dumps([{**vars(each), "runs": [vars(run) for run in each.runs]} for each in plans])


def _recall(path: Path) -> list[Plan]:
    plans = json.loads(path.read_text(encoding="utf-8"))
    return [Plan(**{**each, "runs": [Run(**run) for run in each["runs"]]}) for each in plans]
