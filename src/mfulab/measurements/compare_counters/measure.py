"""Counts a model's forward pass with another tool, and explains the difference from our count."""

import collections
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from io import StringIO
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from mfulab.core.errors import UnsupportedError, is_out_of_memory
from mfulab.core.measurement import Measured
from mfulab.core.said import Said, cell_of, joined
from mfulab.flops.counter import Operations
from mfulab.measurements.compare_counters import CompareCountersConfig, Counter, CounterRow
from mfulab.models.build import LogitsOnly, build, make_batch
from mfulab.models.counted import count_model

PACKAGES = {"torch_profiler": "torch"}  # counters whose package has another name


class OtherCount(NamedTuple):
    """Result of a tool for one forward pass."""

    printed: float  # the tool's own number
    unit: str  # of that number: `FLOP`, `MAC`, `MAC a sample`, or `MAC, called FLOP`
    flops: float  # `printed` converted to FLOPs, two per multiply-add
    # operators that the tool reports as not counted, with their number of calls
    uncounted: dict[str, int]


def count_by(counter: Counter, model: nn.Module, inputs: torch.Tensor) -> OtherCount:
    """Counts one forward pass with a tool, with the tool's own prints suppressed. The model must
    return a tensor and be in evaluation mode. Raises whatever the tool raises, and ImportError if
    it is not installed."""
    with redirect_stdout(StringIO()):
        printed, unit, *uncounted = _tool_count(counter, model, inputs)
    factor = {"FLOP": 1, "MAC a sample": 2 * len(inputs)}.get(unit, 2)
    return OtherCount(printed, unit, factor * printed, dict(*uncounted))


def _tool_count(counter: Counter, model: nn.Module, inputs: torch.Tensor) -> tuple[Any, ...]:
    """Returns the number that a tool reports, its unit, and uncounted operators if the tool reports
    them."""
    match counter:
        case "torch":
            from torch.utils.flop_counter import FlopCounterMode

            # Not under no_grad, as in torch's documentation of the counter.
            with FlopCounterMode(display=False) as mode:
                model(inputs)
            return mode.get_total_flops(), "FLOP"
        case "fvcore":
            from fvcore.nn import FlopCountAnalysis

            analysis = FlopCountAnalysis(model, inputs)
            analysis.unsupported_ops_warnings(False)
            analysis.uncalled_modules_warnings(False)
            analysis.tracer_warnings("none")
            return analysis.total(), "MAC, called FLOP", analysis.unsupported_ops()
        case "torch_profiler":
            with torch.profiler.profile(with_flops=True) as profiler:
                model(inputs)
            return sum(operator.flops for operator in profiler.key_averages()), "FLOP"
        case "calflops":
            from calflops import calculate_flops

            silent = {"print_results": False, "print_detailed": False, "output_as_string": False}
            flops, *_ = calculate_flops(model, args=[inputs], **silent)
            return flops, "FLOP"
        case "ptflops":
            from ptflops import get_model_complexity_info

            silent = {"as_strings": False, "print_per_layer_stat": False, "verbose": False}
            shape = tuple(inputs.shape[1:])
            macs, _ = get_model_complexity_info(
                model, shape, input_constructor=lambda shape: inputs, **silent
            )
            if macs is None:
                raise RuntimeError("ptflops gave no number and no reason")
            return macs, "MAC a sample"
        case "thop":
            from thop import profile

            macs, *_ = profile(model, inputs=(inputs,), verbose=False)
            return macs, "MAC"
        case "deepspeed":
            from deepspeed.profiling.flops_profiler import get_model_profile

            silent = {"print_profile": False, "as_string": False}
            flops, *_ = get_model_profile(model, args=[inputs], **silent)
            return flops, "FLOP"


@dataclass(frozen=True)
class Explanation:
    """Explanation of the difference between a tool's count and ours."""

    left_out: Mapping[str, int]  # kinds of layers that the tool does not count, with their FLOPs
    other_flops: float  # remaining difference, attributed to elementwise operators
    holds: bool  # whether that remainder is small enough for elementwise operators
    # kinds counted twice: in the layer and again in its function, or for another rank too
    twice: Mapping[str, int] = field(default_factory=dict)

    @property
    def said(self) -> Said:
        """The explanation as one sentence."""
        if not self.holds:
            return Said("unexplained_count")
        parts = []
        if self.left_out:
            parts.append(Said("leaves_out", kinds=_listed(self.left_out)))
        if self.twice:
            parts.append(Said("counts_twice", kinds=_listed(self.twice)))
        if self.other_flops:
            parts.append(Said("counts_elementwise", flops=self.other_flops))
        return joined(parts) or Said("counts_the_same")


def _listed(kinds: Mapping[str, int]) -> Said:
    """Joins kinds of layers, each with its FLOPs, into one text."""
    named, *others = [
        Said("kind_of_layer", kind=name, flops=flops) for name, flops in kinds.items()
    ]
    for other in others:
        named = Said("and", first=named, second=other)
    return named


MOST_KINDS_WITH_DOUBLES = 2
"""Most kinds that an explanation with double counting may name; with more, any number has one."""


def kinds_of_layers(model: torch.nn.Module, operations: Operations) -> dict[str, int]:
    """Returns forward FLOPs per kind of layer, which is its class name. Attention itself is a kind
    apart from its projections."""
    kinds = collections.Counter[str]()
    for key, total in operations.totals.items():
        if key.direction == "forward" and total.flops:
            kind = type(model.get_submodule(key.layer)).__name__
            if "attention" in key.operator:
                kind = "attention"
            kinds[kind] += total.flops
    return dict(kinds)


def explain(counted: float, kinds: Mapping[str, int], other_flops: int) -> Explanation:
    """Finds the fewest kinds of layers, left out or counted twice, whose remainder elementwise
    operators can explain. `counted` are the tool's FLOPs, `kinds` ours per kind of layer. The
    remainder may be up to 8 × `other_flops`, since tools differ by a few FLOPs per element, and
    doubled MACs double them too."""
    total = sum(kinds.values())
    for missing_names, doubled_names in _candidates(list(kinds)):
        missing = {name: kinds[name] for name in missing_names}
        twice = {name: kinds[name] for name in doubled_names}
        remainder = counted - (total - sum(missing.values()) + sum(twice.values()))
        if -1e-6 * total <= remainder <= 8 * other_flops:
            return Explanation(missing, max(remainder, 0.0), True, twice)
    return Explanation({}, counted - total, False)


def _candidates(kinds: Sequence[str]) -> Iterator[tuple[list[str], tuple[str, ...]]]:
    """Yields kinds that a tool may leave out, and kinds that it may count twice; fewest kinds
    first."""
    for size in range(len(kinds) + 1):
        for names in combinations(kinds, size):
            # No double counting first, as leaving out is the simpler explanation.
            most_doubled = size if size <= MOST_KINDS_WITH_DOUBLES else 0
            for count in range(most_doubled + 1):
                for doubled in combinations(names, count):
                    yield [name for name in names if name not in doubled], doubled


def measure(config: CompareCountersConfig, folder: Path) -> Measured:
    """Counts the model with `config.counter` on the CPU. Samples are our FLOPs per kind of layer.
    Raises UnsupportedError if the tool is not installed or fails."""
    try:
        installed = version(PACKAGES.get(config.counter, config.counter))
    except PackageNotFoundError:
        name = str(config.counter)
        raise UnsupportedError(Said("counter_not_installed", counter=name, package=name)) from None
    ours = count_model(config.model, config.batch_size, config.sequence_length, mode="inference")
    operations = ours.count.operations
    kinds = kinds_of_layers(ours.model, operations)
    forward = operations.sum("forward")
    # The tools hook, trace and patch the model, so they get a copy of their own on a real device.
    model = LogitsOnly(build(config.model)).eval()
    inputs = make_batch(config.model, config.batch_size, config.sequence_length).inputs
    try:
        theirs = count_by(config.counter, model, inputs)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise UnsupportedError(
            Said(
                "counter_cannot_count",
                counter=str(config.counter),
                version=str(installed),
                model=config.model.name,
                error=str(error),
            )
        ) from error
    row = CounterRow.of(
        config,
        version=installed,
        printed=theirs.printed,
        printed_unit=theirs.unit,
        flops=theirs.flops,
        reference_flops=forward.flops,
        deviation_percent=100 * (theirs.flops / forward.flops - 1) if forward.flops else None,
        explanation=cell_of(explain(theirs.flops, kinds, forward.other_flops).said),
        uncounted_operators=json.dumps(theirs.uncounted) if theirs.uncounted else None,
    )
    return Measured(row, [{"kind": kind, "flops": flops} for kind, flops in kinds.items()])
