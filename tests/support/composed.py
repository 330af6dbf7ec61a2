"""Caches Hydra's compositions per process, because tests request the same ones repeatedly."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from mfulab.lab.planning import keys


def composed_once(compose: Callable[..., DictConfig]) -> Callable[..., DictConfig]:
    """Wraps `compose` with a cache, keyed by its arguments and everything that a composition
    depends on."""
    made: dict[str, DictConfig] = {}

    def once(name: str, overrides: Sequence[str], return_hydra_config: bool = False) -> DictConfig:
        depends_on = [name, *overrides, return_hydra_config, *_read_by_hydra()]
        key = json.dumps(depends_on, default=str)
        if key not in made:
            made[key] = compose(name, overrides, return_hydra_config=return_hydra_config)
        return made[key]

    return once


def _read_by_hydra() -> list[object]:
    """Everything that a composition in Hydra's current config folder depends on."""
    elements = GlobalHydra.instance().config_loader().get_search_path().get_path()
    (folder,) = (
        Path(unquote(urlsplit(element.path).path))
        for element in elements
        if element.provider == "main"
    )
    files = []
    for path in sorted(folder.rglob("*.yaml")):
        seen = path.stat()
        files.append((path, seen.st_mtime_ns, seen.st_size))
    lines = {group: keys.derived(folder, group) for group in sorted(keys.groups(folder))}
    return [files, keys.defaults(), lines]
