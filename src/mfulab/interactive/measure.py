"""The ladder of whatever runs in a `with` block: for your own training loop, with no pipeline around it."""

import functools
import itertools
import json
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from mfulab.hardware.compute import allowed_precision, products_in
from mfulab.hardware.device_peak import peak_of
from mfulab.interactive.calls import CallLog, UncountedError, count_calls
from mfulab.interactive.show import show
from mfulab.samplers.memory import PeakMemory
from mfulab.samplers.reading import Reading, Readings, first_available
from mfulab.samplers.selection import per_step, restriction_of, samplers_for, strictest
from mfulab.samplers.series import Series
from mfulab.schema.configs import DeviceConfig
from mfulab.schema.errors import UnsupportedError
from mfulab.tables import headroom
from mfulab.tables.mfu import mfu_columns
from mfulab.tables.verdict import Verdict, judge
from mfulab.timing.best_matmul import best_product, sweep_products
from mfulab.timing.clocks import clock_for
from mfulab.timing.statistics import Stats, median_interval
from mfulab.tracing.operators import BlockTrace

# Steps are cut into as many stretches for the confidence interval.
_STRETCHES = 5


class Window:
    """`with mfulab.measure(model=model) as window:` measures the steps inside and prints their ladder at the end.

    Warm up before the block: compilation and autotuning inside it are measured with the rest. A step is one forward
    pass of the model, unless `window.step()` is called at the end of each.

    Args:
        model: the module that the loop calls; its FLOPs are counted from the shapes it is called with.
        batch: what one step eats, for loops that do not call the model itself (a replayed CUDA graph): the model's
            arguments as a tensor, a tuple or a dict. Each step is then one forward and, where the model is in
            training mode, one backward pass of it.
        ceiling_s: seconds to spend after the block on measuring the best matmul, 0 for none. On a CPU that is what
            MFU is reported against.
        peak_tflop_s: dense peaks by precision, for a device that is not known here.
        series: where to keep the time series as CSV; dropped where empty.
        trace: where to keep a Chrome trace of the block (`trace.json.gz`). It adds kernel-busy and the wait for a
            DataLoader to the ladder, and slows the steps down: measure times without it.
        quiet: print nothing.

    Attributes (after the block):
        row: every value by its column's name, in the units of the profile table; None where it was not measured.
        readings: the measured ones with source, window and reason.
        verdict: the likely cause, with numbers.
    """

    def __init__(
        self,
        *,
        model: torch.nn.Module,
        batch: Any = None,
        ceiling_s: float = 2.0,
        peak_tflop_s: dict[str, float] | None = None,
        series: str | Path | None = None,
        trace: str | Path | None = None,
        quiet: bool = False,
    ) -> None:
        self.model, self._batch, self._ceiling_s, self._quiet = model, batch, ceiling_s, quiet
        self.device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self._given = DeviceConfig(peak_tflop_s=peak_tflop_s or {})
        self._keep = Path(series) if series else None
        self._trace = BlockTrace(self.device, Path(trace)) if trace else None
        self._clock = clock_for(self.device)
        self._calls = CallLog(model, lambda: self._mark("forward"))
        self._marks: list[str] = []
        self.row: dict[str, float | str | None] = {}
        self.readings: Readings = {}
        self.verdict: Verdict | None = None

    def __enter__(self) -> "Window":
        self._folder = tempfile.TemporaryDirectory(prefix="mfulab-")
        self._series = Series(self.device, self._keep or Path(self._folder.name) / "series.csv").open()
        self._samplers = samplers_for(self.device, [self._series])
        self._memory = PeakMemory(self.device)
        self._clock.synchronise()
        if self._trace:
            self._trace.start()
        for sampler in self._samplers:
            sampler.start()
        self._calls.open()
        self._began = time.perf_counter()
        self._mark("begin")
        return self

    def step(self) -> None:
        """Marks the end of a step; then steps are counted by these calls alone."""
        self._mark("step")

    def _mark(self, what: str) -> None:
        self._clock.mark()
        self._marks.append(what)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls.close()
        self._mark("end")
        self._clock.synchronise()
        length_s = time.perf_counter() - self._began
        readings = [sampler.stop() for sampler in reversed(self._samplers)]
        traced = self._trace.stop() if self._trace else {}
        self._series.close()
        self._folder.cleanup()
        if error is None:
            self._finish({**first_available(reversed(readings)), **traced}, length_s)

    def _finish(self, readings: Readings, length_s: float) -> None:
        times = step_times(self._marks, self._clock.intervals())
        steps = len(times)
        if not steps:
            raise ValueError("the model was not called inside the window; call window.step() after each step")
        readings = {**per_step(readings, steps), "memory_bytes": self._memory.read()}
        self.readings = readings
        self.row = {name: reading.value for name, reading in readings.items()}
        self.row |= self._times(times, steps, length_s)
        self.row |= self._useful(length_s / steps, steps)
        if self._trace and self._trace.analysis:
            spent = json.dumps(self._trace.analysis.spent)
            self.row |= headroom.of_step({**self.row, "time_s": length_s / steps, "spent": spent})
        self.verdict = judge(self.row)
        if not self._quiet:
            show(self)

    def _times(self, times: list[float], steps: int, length_s: float) -> dict[str, float | str | None]:
        size = max(1, len(times) // _STRETCHES)
        stretches = [times[place : place + size] for place in range(0, size * min(_STRETCHES, len(times)), size)]
        interval = median_interval([Stats(stretch).median for stretch in stretches]) or (None, None)
        stats, samples = Stats(times), self._calls.samples
        return {
            "steps": steps,
            "window_s": length_s,
            "time_s": stats.median,
            "time_p5_s": stats.p5,
            "time_p95_s": stats.p95,
            "time_ci_low_s": interval[0],
            "time_ci_high_s": interval[1],
            "samples_per_s": None if samples is None else samples / length_s,
            "ladder": strictest(self.readings),
            "restriction": restriction_of(self.device) or None,
        }

    def _useful(self, mean_step_s: float, steps: int) -> dict[str, float | str | None]:
        """What the model's own arithmetic makes of the time; the mean step counts, since every step's FLOPs do."""
        if self._batch is not None and not self._calls.signatures:
            self._calls.assume(self._batch, steps, self.model.training)
        dtype = self._dtype()
        try:
            flops = count_calls(self._calls)
        except UncountedError as error:
            self.readings["flops"] = Reading(None, "", "counted on the meta device", reason=str(error))
            precision = allowed_precision(dtype, self.device, convolutions=False)
            mfu = mfu_columns(None, {}, None, self.device.type == "cuda")
            return {"effective_precision": precision, "flops": None, **mfu}
        precision = allowed_precision(dtype, self.device, convolutions=2 * flops.convolutions > flops.model)
        columns: dict[str, float | str | None] = {"effective_precision": precision}
        if flops.uncounted:
            columns["uncounted_operators"] = ", ".join(flops.uncounted)
        rate = flops.model / steps / mean_step_s / 1e12
        threads = torch.get_num_threads()
        peak = peak_of(self.device, threads, precision, self._given)
        measured = measured_ceiling(self.device, precision, threads, self._ceiling_s) if self._ceiling_s else None
        ceiling = {
            "computed_tflop_s": peak.spec,
            "computed_clock_mhz": peak.spec_clock_mhz,
            "max_clock_tflop_s": peak.max_clock,
            "measured_tflop_s": measured,
        }
        if peak.reason:
            self.readings["peak_tflop_s"] = Reading(None, "TFLOP/s", "computed peak", reason=peak.reason)
        clock = self.row.get("clock_mhz")
        mfu = mfu_columns(rate, ceiling, clock if isinstance(clock, float) else None, self.device.type == "cuda")
        basis = ceiling["computed_tflop_s" if self.device.type == "cuda" else "measured_tflop_s"]
        return {
            **columns,
            "flops": flops.model / steps,
            "executed_flops": flops.executed / steps,
            "bytes_moved": dtype.itemsize * flops.elements / steps,
            "tflop_s": rate,
            "peak_tflop_s": peak.spec,
            "peak_clock_mhz": peak.spec_clock_mhz,
            "ceiling_tflop_s": measured,
            **mfu,
            "hfu_percent": 100 * rate * flops.executed / flops.model / basis if basis and flops.model else None,
        }

    def _dtype(self) -> torch.dtype:
        """What most calls computed in."""
        common = self._calls.formats.most_common(1)
        return common[0][0] if common else next(self.model.parameters()).dtype


def step_times(marks: list[str], intervals: list[float]) -> list[float]:
    """Seconds of each step, from what was marked and the seconds between consecutive marks.

    Steps run from `begin` over each `step` where there are any, else from each `forward` to the next and to the `end`.
    """
    wanted = ("begin", "step") if "step" in marks else ("forward", "end")
    moments = itertools.accumulate(intervals, initial=0.0)
    chosen = [moment for mark, moment in zip(marks, moments, strict=True) if mark in wanted]
    return [after - before for before, after in itertools.pairwise(chosen)]


@functools.cache
def measured_ceiling(device: torch.device, precision: str, threads: int, limit_s: float) -> float | None:
    """The best matmul of this device in TFLOP/s, measured once a process; None where torch has none in the format."""
    del threads  # part of the key: the ceiling is that of as many threads
    with products_in(precision):
        try:
            return best_product(sweep_products(precision, device, limit_s), device).tflop_s
        except UnsupportedError:
            return None
