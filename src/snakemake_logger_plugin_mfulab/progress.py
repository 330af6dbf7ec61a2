"""Progress of a workflow, and an estimate of the remaining time."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

UNTOLD = "a rule that was not planned"


@dataclass
class Run:
    """A job that was started: `started` in seconds since the epoch; `number` counts starts from 1."""

    rule: str
    name: str
    started: float
    output: tuple[str, ...] = ()
    number: int = 0


class Progress:
    """Counts starts and ends of jobs by rule; times are seconds since the epoch."""

    def __init__(self) -> None:
        self.finished = 0
        self.started = 0.0  # of the first job
        self._remaining: Counter[str] = Counter()
        self._took: dict[str, list[float]] = {}  # seconds of each job, by rule
        self._runs: dict[int, Run] = {}
        self._numbers: dict[int, int] = {}

    @property
    def total(self) -> int:
        """Jobs planned, finished ones included."""
        return self.finished + self._remaining.total()

    def plan(self, jobs: Mapping[str, int]) -> None:
        """`jobs` of each rule are to be done."""
        self._remaining = Counter(jobs)

    def grow(self, total: int) -> None:
        """A checkpoint added jobs: there are `total` now, of rules that are not told."""
        self._remaining[UNTOLD] += max(0, total - self.total)

    def start(self, job_id: int, run: Run) -> Run:
        """A job starts; one that is tried again keeps its number."""
        self.started = self.started or run.started
        run.number = self._numbers.setdefault(job_id, len(self._numbers) + 1)
        self._runs[job_id] = run
        return run

    def finish(self, job_id: int, now: float) -> Run | None:
        """A job ended well; None if its start is not known."""
        self.finished += 1
        run = self._runs.pop(job_id, None)
        if run:
            self._remaining[run.rule if self._remaining[run.rule] > 0 else UNTOLD] -= 1
            self._took.setdefault(run.rule, []).append(now - run.started)
        return run

    def fail(self, job_id: int) -> Run | None:
        """A job failed; Snakemake may start it again."""
        return self._runs.pop(job_id, None)

    def left_s(self, now: float) -> float | None:
        """Seconds left if every rule goes on as it went and as many jobs run at a time; None before the first end.

        A rule of which no job has ended is taken to cost what the mean job did.
        """
        took = [seconds for each in self._took.values() for seconds in each]
        if not sum(took):
            return None
        work_left = sum(count * fmean(self._took.get(rule, took)) for rule, count in self._remaining.items())
        return (now - self.started) * work_left / sum(took)
