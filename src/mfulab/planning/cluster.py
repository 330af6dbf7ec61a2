"""What a job of a cluster needs to know its run by: Snakemake splits the names of its wildcards at commas."""

from collections.abc import Iterable
from typing import Any

WILDCARDS = ("hardware", "run", "figure")


def keep_commas(workflow: Any) -> None:
    """Lets the jobs of this Snakemake workflow have runs with commas in their names; nothing once Snakemake does.

    It tells a job `run="kernel=torch,size=64"` and understands the wildcards `run` and `size` there (its issue 2366,
    open since 2023). A job asks for its rule just before it uses these.
    """
    get_rule = workflow.get_rule

    def get_rule_with_whole_names(name: str) -> Any:
        if workflow.dag_settings is not None:
            restore_commas(target.wildcards_dict for target in workflow.dag_settings.target_jobs)
        return get_rule(name)

    workflow.get_rule = get_rule_with_whole_names


def restore_commas(targets: Iterable[dict[str, str]]) -> None:
    """Puts back in place what was split off `run`: `{run: kernel=torch, size: 64}` → `{run: kernel=torch,size=64}`."""
    for wildcards in targets:
        parts = [key for key in wildcards if key not in WILDCARDS]
        if parts:
            wildcards["run"] = ",".join([wildcards["run"], *(f"{key}={wildcards.pop(key)}" for key in parts)])
