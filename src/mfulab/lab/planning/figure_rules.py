"""Inputs and labels of the rules that draw, as functions of Snakemake's wildcards."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mfulab.core.language import Texts
from mfulab.lab.planning.sources import PACKAGE, closure


class FigureRules:
    """Inputs of the rules of figures and page, and a figure's names in Snakemake's report, in a
    `language`."""

    def __init__(self, language: str) -> None:
        self.language = language

    def module_sources(self, *modules: str) -> Callable[[Any], list[str]]:
        """An input function: files of modules and of all that they import; `*` is the wildcards'
        figure, or each."""

        def files(wildcards: Any) -> list[str]:
            figures = [wildcards.get("figure")]
            if not figures[0]:
                scripts = (PACKAGE / "lab/report/figures").glob("[!_]*.py")
                figures = [path.stem for path in scripts]
            named: dict[str, None] = {}
            for module in modules:
                named |= dict.fromkeys(module.replace("*", name) for name in figures)
            here = Path.cwd()
            reached = []
            for file in closure(*named):
                is_here = file.is_relative_to(here)
                reached.append(str(file.relative_to(here) if is_here else file))
            return reached

        return files

    def category(self, wildcards: Any) -> str:
        """The figure's section in Snakemake's report: the page's. Its topic is read, as importing
        it imports pandas."""
        code = (PACKAGE / f"lab/report/figures/{wildcards.figure}.py").read_text(encoding="utf-8")
        match = re.search(r'^TOPIC\b.* = "(\w+)"', code, flags=re.MULTILINE)
        if match:
            return Texts(self.language, "page")(f"topic_{match[1]}")
        return wildcards.figure

    def labels(self, wildcards: Any) -> dict[str, str]:
        """Labels of the figure in Snakemake's report: its title and its name."""
        return {"figure": Texts(self.language, wildcards.figure)("title"), "name": wildcards.figure}

    def reading(self, wildcards: Any) -> str:
        """Caption of the figure in Snakemake's report: how to read it."""
        return Texts(self.language, wildcards.figure)("reading")
