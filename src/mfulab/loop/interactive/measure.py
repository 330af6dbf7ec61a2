"""Measures whatever runs in a `with` block: your own training loop, with no pipeline around it."""

import functools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from numbers import Real
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch

from mfulab.core.errors import warn
from mfulab.core.language import LANGUAGES
from mfulab.core.parts import Record, Row
from mfulab.device.compute import has_ranks, is_first_rank
from mfulab.device.samplers.reading import Reading, Readings
from mfulab.device.samplers.selection import per_step
from mfulab.loop.goodput.journal import Journal, journal_of
from mfulab.loop.interactive import row
from mfulab.loop.interactive.costs import PhaseCost
from mfulab.loop.interactive.given import Given, peaks_given
from mfulab.loop.interactive.hooks import apart
from mfulab.loop.interactive.loop import Loop
from mfulab.loop.interactive.open_window import Laps, OpenWindow
from mfulab.loop.interactive.row import LoopStep, WindowWork
from mfulab.mfu import job as jobs
from mfulab.mfu.account import Account, Judged
from mfulab.mfu.utilization import product, ratio
from mfulab.timing.clocks import clock_for
from mfulab.tracing.analysis import Analysis

_METRICS = {name: f"{name}_percent" for name in ("mfu", "hfu", "useful_mfu", "utilization")}
_METRICS |= {"tflops": "tflop_s", "step_time": "time_s", "samples_per_second": "samples_per_s"}

R = TypeVar("R")
Models = torch.nn.Module | Sequence[torch.nn.Module] | Mapping[str, torch.nn.Module]


class MeasureWarning(UserWarning):
    """Something in a block could not be measured; the loop itself went on."""


class Measurement:
    """`with mfulab.measure(model=model) as window:` measures the steps inside and prints their
    ladder at the end.

    The first step of each kind (other shapes, other losses, evaluation) runs under a counter that
    sees every operator; it is slower and left out of the times. All others run undisturbed. Warm up
    before the block: compilation and autotuning inside it are measured too. A step is one forward
    pass of a model, unless `window.step()` is called at the end of each. A window can be used again
    and then knows what it has counted. No error in measuring reaches the loop: a `MeasureWarning`
    says what is missing and why.

    Args:
        model: the module that the loop calls, in its compiled or parallel form, or a list or
            dictionary of modules. None if the loop calls no module: then call `window.step()`.
        batch: the model's arguments in one step (tensor, tuple, dict), for loops that do not call
            it, such as a replayed CUDA graph. Each step is then a forward pass, in training mode
            also a backward pass, counted without data.
        flops_per_step: FLOPs that the model needs for a step, if they cannot be counted; nothing
            is counted then.
        ceiling_s: seconds to spend after the block on the best matmul, 0 for none. It is MFU's
            denominator on a CPU.
        peak_tflop_s: dense peaks by precision, for a device that is not known here.
        device: the device to watch; by default that of the model's parameters.
        series: where to keep the time series as CSV; by default it is dropped.
        trace: where to keep a Chrome trace (`trace.json.gz`). It adds kernel-busy and the wait for
            a DataLoader to the ladder, and slows the steps down.
        job: a folder for the journal, or a `mfulab.Journal`, for `mfulab goodput`;
            `window.step()` ends a step.
        quiet: print nothing.
        language: what to print in, `en` or `ko`.

    Raises ValueError or TypeError for an invalid argument, before the loop begins.

    Ctrl-C prints the ladder of the steps until then; after any other exception nothing is printed.
    After the block `row` holds every value by its column's name, None if it was not measured.
    `readings` are the measured ones with source, window and reason. `verdict` is the likely cause,
    and `account` all of the mean step; both are None if no step was seen. `phases` holds a row for
    each name that `phase` was given.
    """

    _running: "Measurement | None" = None

    def __init__(
        self,
        model: Models | None = None,
        *,
        batch: object = None,
        flops_per_step: float | None = None,
        ceiling_s: float = 2.0,
        peak_tflop_s: dict[str, float] | None = None,
        device: torch.device | str | None = None,
        series: str | Path | None = None,
        trace: str | Path | None = None,
        job: str | Path | Journal | None = None,
        quiet: bool = False,
        language: str = "en",
    ) -> None:
        if language not in LANGUAGES:
            raise ValueError(f"language={language!r}: choose {' or '.join(LANGUAGES)}")
        if flops_per_step is not None and not (_is_number(flops_per_step) and flops_per_step > 0):
            raise ValueError(f"flops_per_step={flops_per_step}: give a number above 0")
        if not (_is_number(ceiling_s) and ceiling_s >= 0):
            raise ValueError(f"ceiling_s={ceiling_s}: give seconds, 0 for none")
        self.models = _listed(model)
        devices = dict[torch.device, None]()
        with torch._C.DisableTorchFunction():
            for module in self.models:
                for parameter in module.parameters():
                    devices[parameter.device] = None
            if device is None:
                device = next(iter(devices), "cpu")
            self.device = torch.device(device)
        self._given = Given(
            batch=batch,
            flops_per_step=flops_per_step,
            ceiling_s=ceiling_s,
            peaks=peaks_given(peak_tflop_s),
            lies_on=list(devices),
            series=series,
            trace=trace,
            quiet=quiet,
            language=language,
        )
        clock = clock_for(self.device)
        self._loop = Loop(self.models, self.device, clock, self._given.is_counted)
        self.journal = journal_of(job)
        self._open: OpenWindow | None = None
        self._laps = Laps()
        self.row: Record = {}
        self.readings: Readings = {}
        self.verdict: Judged | None = None
        self.account: Account | None = None
        self.phases: dict[str, Record] = {}

    def __repr__(self) -> str:
        """The ladder after the block; one line before that."""
        from mfulab.loop.interactive.show import as_text

        state = "still open" if self._open is not None else "nothing measured"
        return self._shown(as_text) or f"<mfulab.measure: {state}>"

    def _repr_html_(self) -> str | None:
        """The ladder for a notebook, as HTML; None if there is none yet."""
        from mfulab.loop.interactive.show import as_html

        return self._shown(as_html)

    def _shown(self, render: Callable[..., str]) -> str | None:
        if not self.row or self._open is not None:
            return None
        try:
            with apart(self.device):
                return render(self, self._given.language)
        except Exception as failure:
            return f"<mfulab.measure: {type(failure).__name__}: {failure}>"

    def __enter__(self) -> "Measurement":
        self.row = {}
        self.readings = {}
        self.verdict = None
        self.account = None
        if Measurement._running is not None:
            _warn(
                "another window is open: this one measures nothing; close the first, or use it alone"
            )
            return self
        Measurement._running = self
        with ExitStack() as undo:
            undo.callback(setattr, Measurement, "_running", None)
            try:
                with torch._C.DisableTorchFunction():
                    self._laps = Laps()
                    opened = OpenWindow(
                        self._loop, self.device, self._given, self._dtype, self._laps, undo
                    )
            except Exception as error:
                _warn(f"nothing is measured here: {type(error).__name__}: {error}")
                return self
            opened.keep()
            self._open = opened
        self._note("setup")
        return self

    def _note(self, span: str, facts: Row | None = None) -> None:
        if self.journal:
            self.journal.mark(span, **(facts or {}))

    @property
    def _steps(self) -> Sequence[LoopStep]:
        return self._laps.steps

    def _safely(self, call: Callable[..., R], *args: object) -> R | None:
        """Calls a function, inside the block only. After an error in it the loop goes on, and the
        window closes."""
        if self._open is not None and self._open.is_own_process():
            try:
                with torch._C.DisableTorchFunction():
                    return call(*args)
            except Exception as error:
                _warn(f"measuring stopped: {type(error).__name__}: {error}", stacklevel=3)
                self.__exit__(type(error), error, error.__traceback__)
        return None

    def step(self) -> None:
        """Marks the end of a step. From then on only these calls end steps."""
        unwatched = self._loop.unwatched
        if unwatched is None or unwatched.of_forwards or not unwatched.tick():
            self._safely(self._loop.step)
        if self.journal:
            self._safely(self.journal.step)

    def note(self, batch: object) -> None:
        """Distinguishes steps by their shapes: call it with `batch` before a step that calls no
        model given to the window."""
        self._safely(self._loop.note, batch)

    def skip(self, span: str = "other") -> None:
        """Leaves out what ran since the last step. `span` names it in the journal, such as
        `checkpoint` or `evaluation`."""
        self._safely(self._note, span)
        self._safely(self._loop.skip)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Gives what runs inside a `with` block a row of its own in `phases`, such as `rollout` or
        `train`. A phase inside another belongs to both."""
        self._safely(self._loop.named_phase, name, "phase")
        try:
            yield
        finally:
            self._safely(self._loop.named_phase, name, "phase end")

    def __exit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        opened = self._open
        # a fork that leaves the block measured nothing
        if opened is None or not opened.is_own_process():
            return
        self._open = None
        try:
            with torch._C.DisableTorchFunction(), opened.undo:
                self._finish(opened, error)
        except Exception as failure:
            if error is None:
                _warn(f"the block was not measured: {type(failure).__name__}: {failure}")
        self._note("measuring", facts_of(self.row))
        if self.is_shown(error) and self.row and not self._given.quiet and is_first_rank():
            try:
                with apart(self.device):
                    from mfulab.loop.interactive.show import show

                    show(self, language=self._given.language)
            except Exception as failure:  # such as a terminal without these characters
                _warn(f"the ladder could not be printed: {type(failure).__name__}: {failure}")

    def lap(self) -> dict[str, float]:
        """Numbers for a logger over the steps since the last lap, after `step()`; empty if there
        are none. `mfu`, `hfu` and `utilization` are in percent, `tflops` in TFLOP/s, `step_time` in
        s; the verdict is `verdict/<cause>` = 1. Until the block ends, `row` and `verdict` are those
        of the lap. Waits for a GPU."""
        return self._safely(self._lap) or {}

    def _lap(self) -> dict[str, float]:
        opened = self._open
        assert opened is not None
        self._loop.wake()
        steps = opened.cut()
        if steps:
            with apart(self.device):
                self._fill(self._laps.last, steps, opened.analysis, last=False)
            self._note("measuring", facts_of(self.row))
        opened.begin_lap()
        if steps:
            return self.metrics()
        return {}

    def metrics(self) -> dict[str, float]:
        """The measured values under the names that `lap` uses."""
        metrics = dict[str, float]()
        for key, name in _METRICS.items():
            value = self.row.get(name)
            if isinstance(value, float | int):
                metrics[key] = value
        if self.verdict:
            metrics[f"verdict/{self.verdict.cause}"] = 1.0
        return metrics

    def job(self) -> dict[str, object]:
        """The job's values over all ranks of torch.distributed, after the block; None for what a
        rank does not know. Every rank must call it. MFU is the FLOPs of all ranks ÷ (the slowest
        rank's time × the peaks of all ranks), in percent. The keys are `ranks`, `tflop_s`,
        `mfu_percent`, `hfu_percent`, `slowest_rank`, `rank_mfu_percent` and `rank_step_s`."""
        seconds = ratio(ratio(self.row.get("flops"), self.row.get("tflop_s")), 1e12)
        share = jobs.RankShare(
            time_s=seconds or self.row.get("time_s"),
            flops=self.row.get("flops"),
            executed_flops=self.row.get("executed_flops"),
            mfu_percent=self.row.get("mfu_percent"),
            peak_tflop_s=self.account.facts.peaks.tflop_s if self.account else None,
        )
        ranks: list[Any] = [share]
        if has_ranks():
            ranks = [None] * torch.distributed.get_world_size()
            torch.distributed.all_gather_object(ranks, share)
        return jobs.as_job(ranks)

    @staticmethod
    def is_shown(error: BaseException | None) -> bool:
        """True if the steps before `error` are shown: without an error, or after Ctrl-C, which may
        end a training early."""
        return error is None or isinstance(error, KeyboardInterrupt)

    def _finish(self, opened: OpenWindow, error: BaseException | None) -> None:
        if error is not None:
            self._loop.phases.forget()
            if self.is_shown(error):
                self._loop.skip()  # half a step does not count
        self._loop.phases.close()
        opened.cut()
        traced = opened.stop_trace()
        if not self.is_shown(error):
            return
        if not self._steps:
            if error is None:
                _warn(
                    "this thread called no model given to the window inside it; call window.step() after each step"
                )
            return
        with apart(self.device):
            self._fill({**self._laps.merged, **traced}, self._steps, opened.analysis)

    def _fill(
        self,
        readings: Readings,
        steps: Sequence[LoopStep],
        analysis: Analysis | None,
        last: bool = True,
    ) -> None:
        timed = row.steady(steps, self._loop.watch_s)
        self.readings = per_step(readings, len(timed))
        self.row = {name: reading.value for name, reading in self.readings.items()}
        self.row |= row.times(timed, self.readings, self.device) | row.left_out(steps, timed)
        self.row["measuring_percent"] = row.measuring_percent(
            timed, self._loop.watch_s, self._loop.tick_s
        )
        site = self._given.site(self._dtype(), self.device, anew=last)
        seen = self.row | {"mean_s": sum(step.seconds for step in timed) / len(timed)}
        if analysis is not None:
            self.row["misaligned"] = analysis.misaligned()
            seen |= analysis.ratios() | {"spent": json.dumps(analysis.spent)}
            seen["misaligned"] = self.row["misaligned"]
        window = row.accounted(self._work(timed), site, seen)
        self.account = window.account
        self.row |= window.columns
        if self._loop.is_noted:
            self.row["unshown_flops"] = None
        clock_mhz = self.row.get("clock_mhz")
        self.phases = {
            name: row.named_row(stretches, self._steps, self._loop.phases, site, clock_mhz)
            for name, stretches in self._loop.named.items()
        }
        self.readings |= window.readings | row.samples_reading(timed)
        if analysis is not None:
            self.row |= window.account.budget_columns() | window.account.executed_columns()
        self.row["expected_mfu_percent"] = window.account.shares.expected_mfu_percent
        self.row["ofu_percent"] = window.account.shares.ofu_percent
        self.verdict = window.account.verdict

    def _work(self, steps: Sequence[LoopStep]) -> WindowWork:
        flops = self._given.flops_per_step
        if flops is not None:
            formats = {(self._dtype(), False): int(flops)}
            return row.same_work(steps, PhaseCost(formats, formats), Reading(flops, "", "given"))
        if self._given.batch is not None:
            return row.work_of_batch(steps, self.models, self._given.batch)
        return row.counted_work(steps, self._loop.phases)

    def _dtype(self) -> torch.dtype:
        for model in self.models:
            for parameter in model.parameters():
                return parameter.dtype
        return torch.get_default_dtype()


def facts_of(row: Row) -> Record:
    """Facts of a lap for the journal: a step's FLOPs, the peak under MFU, the share of useful
    tokens, the number of steps."""
    mfu = row.get("mfu_percent")
    useful = row.get("useful_mfu_percent")
    peak = ratio(product(100, row.get("tflop_s")), mfu)
    facts = {
        "flops": row.get("flops"),
        "peak_tflop_s": peak,
        "useful": ratio(useful, mfu),
        "steps": row.get("steps"),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def _listed(model: Models | None) -> list[torch.nn.Module]:
    if model is None:
        return []
    several: Any = model.values() if isinstance(model, Mapping) else model
    models: list[Any] = [model]
    if isinstance(several, Iterable) and not isinstance(model, torch.nn.Module):
        models = list(several)
    for module in models:
        if not isinstance(module, torch.nn.Module):
            raise TypeError(
                f"model={type(module).__name__}: give a torch.nn.Module, or a list or dictionary of them"
            )
    return models


_warn = functools.partial(warn, category=MeasureWarning)
