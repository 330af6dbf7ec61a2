"""Inputs and labels of the rules that draw, as functions of Snakemake's wildcards."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mfulab.core.language import Texts
from mfulab.lab.planning.sources import PACKAGE, closure


class FigureRules:
    """Inputs of the rules for figures and page, and texts for a figure in Snakemake's report, in
    one language."""

    def __init__(self, language: str) -> None:
        self.language = language

    def module_sources(self, *modules: str) -> Callable[[Any], list[str]]:
        """Input function: files of these modules and of all that they import. A `*` stands for the
        figure in the wildcards, or for every figure if there is none."""

        def files(wildcards: Any) -> list[str]:
            figures = [wildcards.get("figure")]
            if not figures[0]:
                scripts = (PACKAGE / "lab/report/figures").glob("[!_]*.py")
                figures = [path.stem for path in scripts]
            names: dict[str, None] = {}
            for module in modules:
                names |= dict.fromkeys(module.replace("*", figure) for figure in figures)
            here = Path.cwd()
            reached = []
            for file in closure(*names):
                is_here = file.is_relative_to(here)
                reached.append(str(file.relative_to(here) if is_here else file))
            return reached

        return files

    def category(self, wildcards: Any) -> str:
        """Section of a figure in Snakemake's report, as on the page. Read from the module's text,
        since importing it would import pandas."""
        code = (PACKAGE / f"lab/report/figures/{wildcards.figure}.py").read_text(encoding="utf-8")
        match = re.search(r'^TOPIC\b.* = "(\w+)"', code, flags=re.MULTILINE)
        if match:
            return Texts(self.language, "page")(f"topic_{match[1]}")
        return wildcards.figure

    def labels(self, wildcards: Any) -> dict[str, str]:
        """Labels of a figure in Snakemake's report: its title and its name."""
        return {"figure": Texts(self.language, wildcards.figure)("title"), "name": wildcards.figure}

    def reading(self, wildcards: Any) -> str:
        """Caption of a figure in Snakemake's report, which explains how to read it."""
        return Texts(self.language, wildcards.figure)("reading")
