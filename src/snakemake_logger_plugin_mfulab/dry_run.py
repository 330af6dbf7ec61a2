"""Lines of a dry run: one for each distinct run, then the number of jobs of each rule."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from textwrap import shorten
from typing import Any, NamedTuple

from mfulab.core.language import Texts
from mfulab.core.replicates import base_name
from snakemake_logger_plugin_mfulab.snakemake_words import is_obvious

LISTED = 60  # runs that are named; of the others the number is told
LONGEST_REASON = 90  # letters


class Planned(NamedTuple):
    """Rule and name of a run, the same for all its processes."""

    rule: str
    name: str


@dataclass
class DryRun:
    """Jobs that a dry run announces, until it ends."""

    text: Texts
    processes: Counter[Planned] = field(default_factory=Counter)
    reasons: dict[Planned, str] = field(default_factory=dict)  # of the last process
    jobs: Mapping[str, int] = field(default_factory=dict)  # by rule, and their total

    def add(self, job: Mapping[str, Any]) -> None:
        """Adds a job that would run."""
        rule = job["rule_name"]
        name = str(job["rule_msg"] or f"{rule} {name_of(job)}")
        run = Planned(rule, base_name(name.strip()))
        self.processes[run] += 1
        self.reasons[run] = str(job.get("reason") or "")

    def counted(self, jobs: Mapping[str, int]) -> str:
        """Takes the number of jobs of each rule, which Snakemake tells before the jobs and after
        them. Returns what to print: nothing the first time."""
        is_end = bool(self.jobs)
        self.jobs = jobs
        if not is_end:
            return ""
        lines = list(self._runs())
        listed = lines[:LISTED]
        if len(lines) > LISTED:
            listed.append(self.text("more", count=len(lines) - LISTED))
        counts = [f"{rule:<18} {count}" for rule, count in jobs.items()]
        return "\n".join([*listed, "", *counts])

    def _runs(self) -> Iterator[str]:
        """Yields a line for each run, in the order of the rules: name, processes and reason."""
        ranks = {rule: rank for rank, rule in enumerate(self.jobs)}
        for run in sorted(self.processes, key=lambda run: ranks.get(run.rule, len(ranks))):
            line = run.name
            count = self.processes[run]
            if count > 1:
                line += f" × {count}"
            reason = self.reasons[run]
            if reason and not is_obvious(reason):
                line += f"  ({shorten(reason, LONGEST_REASON, placeholder=' …')})"
            yield line


def name_of(job: Mapping[str, Any]) -> str:
    """The run that a job measures, else its first output."""
    return str(job["wildcards"].get("run") or ", ".join(job["output"][:1]))
