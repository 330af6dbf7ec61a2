"""The planned sweep as the rules see it: paths, and functions of wildcards; imports neither torch nor pandas."""

import re
import shlex
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from mfulab.language import Texts
from mfulab.planning.load import RESULTS, load
from mfulab.planning.runs import Plan, Run
from mfulab.planning.sources import PACKAGE, closure, step_sources, target_sources, write_digests
from mfulab.runtime import client
from mfulab.schema.errors import ConfigurationError

TABLES = ("environment", "ceilings", "flops", "counters", "profile", "matmul", "formats")


class Workflow:
    """What Snakemake's `--config` plans; a mistake in it ends the process with one message."""

    def __init__(self, config: Mapping[str, Any], is_main: bool = True) -> None:
        try:
            self.plans: list[Plan] = load(config, is_main=is_main)
        except ConfigurationError as error:
            sys.exit(f"mfulab: {error}")
        self._is_main = is_main
        self._runs: dict[str, Run] = {run.folder: run for plan in self.plans for run in plan.runs}

    @property
    def warm(self) -> str:
        """A shell function that runs a script in the warm worker, or directly where there is none."""
        command = shlex.join([sys.executable, "-S", "-E", client.__file__])
        return f'warm() {{{{ {command} "$@"; }}}}; '  # Snakemake formats a prefix: braces are doubled

    @property
    def rows(self) -> list[str]:
        """The row of every planned run."""
        return [f"{RESULTS}/{folder}/row.csv" for folder in self._runs]

    @property
    def planned_manifests(self) -> list[str]:
        """Where each planned experiment lists its runs."""
        return [f"{RESULTS}/{plan.hardware}/plan/{plan.experiment}.json" for plan in self.plans]

    @property
    def other_manifests(self) -> list[str]:
        """Plans of other experiments and of other machines, whose finished rows are shown beside ours."""
        found = {str(path) for path in RESULTS.glob("*/plan/*.json")} if self._runs else set()
        return sorted(found - set(self.planned_manifests))

    @property
    def recorded(self) -> list[str]:
        """The tables of recorded machines."""
        return sorted(map(str, RESULTS.glob("reference/*/*.csv")))

    @property
    def measures(self) -> bool:
        """Whether anything is to be measured: recorded machines alone need a report."""
        return bool(self._runs)

    @property
    def unplanned(self) -> list[str]:
        """The option that also shows folders copied from machines without a plan; none where nothing is measured."""
        return ["--results", str(RESULTS)] if self.measures else []

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that every experiment makes, some of them perhaps with a header alone."""
        return TABLES

    @property
    def language(self) -> str:
        """Of the page and the figures: the first experiment's, where several are asked for."""
        return self.plans[0].language

    @property
    def comparison(self) -> list[str]:
        """What scripts/compare.py left for the page, if it did."""
        return [str(path) for path in [RESULTS / "tables/comparison.csv"] if path.exists()]

    def figures(self, listed: str) -> list[str]:
        """The figures that have something to draw, as the tables listed them."""
        return [f"reports/figures/{name}.svg" for name in Path(listed).read_text(encoding="utf-8").split()]

    def sources(self, step: str) -> Callable[[Any], list[str]]:
        """An input function: one file that holds digests of the step's sources and those of the run's model or kernel.

        One file, because Snakemake takes a time for each input of each run: sixteen of them made a sweep of 5,000
        three times as slow to find that nothing is to be done.
        """

        @cache
        def digests(target: str | None) -> str:
            path = RESULTS / "plan" / "sources" / f"{step},{target or 'itself'}.txt"
            if self._is_main or not path.exists():
                write_digests(path, [*step_sources(step), *(target_sources(target) if target else ())])
            return str(path)

        def files(wildcards: Any) -> list[str]:
            run = self._runs.get("/".join(filter(None, (wildcards.get("hardware"), step, wildcards.get("run")))))
            return [digests(run.target if run else None)]

        return files

    def module_sources(self, module: str) -> Callable[[Any], list[str]]:
        """An input function: the source files of a module of this package and of all that it imports of it."""
        return lambda wildcards: _relative(closure(module))

    def page_sources(self, wildcards: Any) -> list[str]:
        """An input function: the page's module, what it imports, and every figure's, found by their being there."""
        figures = [f"mfulab.report.figures.{path.stem}" for path in (PACKAGE / "report/figures").glob("[!_]*.py")]
        return _relative(path for module in ["mfulab.report.page.document", *figures] for path in closure(module))

    def category(self, wildcards: Any) -> str:
        """The figure's section in Snakemake's report: the page's. Its topic is read, as importing it imports pandas."""
        code = (PACKAGE / f"report/figures/{wildcards.figure}.py").read_text(encoding="utf-8")
        found = re.search(r'^TOPIC = "(\w+)"$', code, flags=re.MULTILINE)
        return Texts(self.language, "page")(f"topic_{found[1]}") if found else wildcards.figure

    def labels(self, wildcards: Any) -> dict[str, str]:
        """What the figure is listed as in Snakemake's report: its title and its name."""
        return {"figure": Texts(self.language, wildcards.figure)("title"), "name": wildcards.figure}

    def reading(self, wildcards: Any) -> str:
        """How the figure is read: its caption in Snakemake's report, as on the page."""
        return Texts(self.language, wildcards.figure)("reading")

    def figure_sources(self, wildcards: Any) -> list[str]:
        """An input function: the figure's module, what draws and saves it, and what these import."""
        modules = ("mfulab.report.figures", f"mfulab.report.figures.{wildcards.figure}")
        return _relative(path for module in modules for path in closure(module))

    def gpus(self, wildcards: Any) -> int:
        """How many GPUs a run of this hardware takes."""
        return int(wildcards.hardware.startswith("nvidia"))

    def cpus(self, wildcards: Any) -> int:
        """1 where a run measures the CPU, so that no two of these overlap."""
        return 1 - self.gpus(wildcards)


def _relative(paths: Any) -> list[str]:
    here = Path.cwd()
    return [str(path.relative_to(here)) if path.is_relative_to(here) else str(path) for path in dict.fromkeys(paths)]
