"""Checks of what was measured on a GPU: each says ok, differs or not measurable, and why.

    python validation/gpu_validity.py [--tables results/tables] [--hardware SLUG] [--executed executed.json]
        [--clocks clocks.json]

Reads the tables of the experiments `validity` and any other, and what validation/executed_operations.py and
validation/second_clock.py wrote. Ends with status 1 where something differs.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, TypeGuard

import pandas as pd

from mfulab.lab.report import frames
from mfulab.mfu.causes import CROSS_CHECK

Row = Mapping[str, Any]
OK, DIFFERS, NOT_MEASURABLE = "ok", "differs", "not measurable"
# Dense TFLOP/s of large matmuls that others have published for a device, as a range.
PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    "nvidia-h100-80gb-hbm3": {"bf16": (789, 797), "tf32": (372, 402), "fp32": (51.9, 52)},
    "nvidia-h200": {"bf16": (769, 798)},  # 8192³ by torch 2.11 on random data, on several cards
}
PRODUCT_MODEL, PRODUCT_KERNEL = "large_product", "torch"
TENSOR_FORMATS = ("tf32", "bf16", "fp16", "fp8")
AGREE = 0.02  # of executed and counted operations
SAME = 0.01  # of the same product through two paths
CEILING = 0.03
# percent: steps in which the tensor pipe does less are not dominated by products
LEAST_ACTIVE = 20.0
SPREAD = 0.01
LEAST_POLLED = 10  # samples: two seconds
ENERGY = 0.05  # between the energy counter and polled power; some cards' counters are further off
CLOCKS = 0.03  # between CUDA events and Proton


@dataclass(frozen=True)
class Line:
    """One check of one subject."""

    check: str
    subject: str
    verdict: str
    because: str

    def __str__(self) -> str:
        return f"{self.verdict:15} {self.check}: {self.subject}: {self.because}"


def known(value: Any) -> TypeGuard[float]:
    """True if a cell holds a number."""
    return isinstance(value, int | float) and value == value


def products_agree(profile: Sequence[Row], matmul: Sequence[Row]) -> Iterator[Line]:
    """One product as a model's step and as a matmul: TFLOP/s within SAME of the matmul's."""
    check = "profile_step against bench_matmul"
    steps = [row for row in profile if row["model"] == PRODUCT_MODEL and known(row["tflop_s"])]
    if not steps:
        yield Line(
            check,
            PRODUCT_MODEL,
            NOT_MEASURABLE,
            "no such step was measured: run experiment=validity",
        )
    for row in steps:
        same = [
            other["tflop_s"]
            for other in matmul
            if other["kernel"] == PRODUCT_KERNEL
            and (other["precision"], other["flops"]) == (row["precision"], row["flops"])
            and known(other["tflop_s"])
        ]
        if not same:
            yield Line(
                check,
                row["run"],
                NOT_MEASURABLE,
                f"no product of {PRODUCT_KERNEL} with as many FLOPs",
            )
            continue
        other = sorted(same)[len(same) // 2]
        ratio = row["tflop_s"] / other
        verdict = OK if abs(ratio - 1) <= SAME else DIFFERS
        yield Line(
            check,
            row["run"],
            verdict,
            f"{row['tflop_s']:.4g} against {other:.4g} TFLOP/s: {ratio:.4f}",
        )


def ceilings_as_published(
    ceilings: Sequence[Row], published: Mapping[str, tuple[float, float]]
) -> Iterator[Line]:
    """Measured ceilings within CEILING of the published range.

    One below it is explained where a clock gave as much as the published rate has of the spec
    clock: then what is missing is clock, which power or heat took.
    """
    check = "ceiling against published"
    if not published:
        yield Line(
            check, "all precisions", NOT_MEASURABLE, "nothing is published here for this device"
        )
    rows = {row["ceiling"]: row for row in ceilings}
    for precision, (low, high) in published.items():
        row = rows.get(precision, {})
        measured = row.get("measured_tflop_s")
        if not known(measured):
            yield Line(check, precision, NOT_MEASURABLE, "this ceiling was not measured")
            continue
        words = f"{measured:.4g} TFLOP/s, published {low:g} to {high:g}"
        clock, spec_clock = row.get("clock_mhz"), row.get("computed_clock_mhz")
        if known(clock):
            words += f", mean SM clock {clock:.0f} MHz"
        if low * (1 - CEILING) <= measured <= high * (1 + CEILING):
            yield Line(check, precision, OK, words)
        elif (
            known(clock) and known(spec_clock) and clock < spec_clock and _as_fast_a_clock(row, low)
        ):
            yield Line(
                check,
                precision,
                OK,
                f"{words}: explained by a clock under the {spec_clock:.0f} MHz of its peak",
            )
        else:
            yield Line(check, precision, DIFFERS, f"{words}: the clock does not explain it")


def _as_fast_a_clock(row: Row, published: float) -> bool:
    own = row["measured_tflop_s"] / row["clock_mhz"]
    return (
        row["measured_tflop_s"] < published
        and own >= (1 - CEILING) * published / row["computed_clock_mhz"]
    )


def executed_as_counted(cases: Sequence[Row]) -> Iterator[Line]:
    """Operations that the hardware counted within AGREE of HFU's FLOPs × what kernels execute
    beyond them."""
    check = "executed operations against counted FLOPs"
    if not cases:
        yield Line(
            check,
            "all cases",
            NOT_MEASURABLE,
            "give --executed, from validation/executed_operations.py",
        )
    for case in cases:
        executed, counted = (
            case["executed_operations"],
            case["counted_flops"] * case.get("executed_ratio", 1.0),
        )
        if not known(executed):
            yield Line(check, case["case"], NOT_MEASURABLE, case["reason"])
            continue
        verdict = OK if abs(executed / counted - 1) <= AGREE else DIFFERS
        yield Line(
            check,
            case["case"],
            verdict,
            f"{executed:.6g} against {counted:.6g}: {executed / counted:.4f}",
        )


def tensor_pipe_as_hfu(profile: Sequence[Row], ceilings: Sequence[Row]) -> Iterator[Line]:
    """Tensor active × mean clock ÷ the peak's clock within CROSS_CHECK of issued instructions, or
    else of HFU."""
    check = "tensor active × clock against HFU"
    clocks = {row["ceiling"]: row.get("computed_clock_mhz") for row in ceilings}
    found = False
    for row in profile:
        active, clock, spec_clock = (
            row["tensor_active_percent"],
            row["clock_mhz"],
            clocks.get(row["ceiling"]),
        )
        # Issued instructions where the trace tells them; HFU includes recomputation, which keeps
        # the pipe active, too.
        name, hfu = "issued", row.get("issued_percent")
        if not known(hfu):
            name, hfu = "HFU", row["hfu_percent"]
        if row["effective_precision"] not in TENSOR_FORMATS:
            continue
        if (
            not (known(active) and known(clock) and known(spec_clock) and known(hfu))
            or active < LEAST_ACTIVE
        ):
            continue
        found = True
        expected = active * clock / spec_clock
        verdict = OK if hfu > 0 and 1 / CROSS_CHECK <= expected / hfu <= CROSS_CHECK else DIFFERS
        words = f"{active:.1f} % × {clock:.0f} ÷ {spec_clock:.0f} MHz = {expected:.1f} %, {name} {hfu:.1f} %"
        yield Line(check, row["run"], verdict, words)
    if not found:
        because = f"no step has GPM's tensor pipe active for {LEAST_ACTIVE:g} % or more"
        yield Line(check, "all steps", NOT_MEASURABLE, because)


def runs_repeat(rows: Sequence[Row]) -> Iterator[Line]:
    """(largest − smallest) ÷ median of the times of runs that differ in their seed alone, at most
    SPREAD."""
    check = "run-to-run spread"
    found = False
    timed = sorted(
        (without_seed(row["run"]), row["time_s"]) for row in rows if known(row["time_s"])
    )
    for run, group in groupby(timed, key=lambda pair: pair[0]):
        times = sorted(time for _, time in group)
        if len(times) < 2:
            continue
        found = True
        spread = (times[-1] - times[0]) / times[len(times) // 2]
        verdict = OK if spread <= SPREAD else DIFFERS
        yield Line(check, run, verdict, f"{100 * spread:.2f} % over {len(times)} runs")
    if not found:
        yield Line(
            check,
            "all runs",
            NOT_MEASURABLE,
            "no run was repeated with another seed: run experiment=validity",
        )


def counter_as_power(profile: Sequence[Row], series: Sequence[Row]) -> Iterator[Line]:
    """Mean power by the energy counter, which rows hold, within ENERGY of that of polled power in
    the same window."""
    check = "energy counter against integrated power"
    polled: dict[str, list[float]] = {}
    for sample in series:
        if sample["in_window"] and known(sample.get("power_w")):
            polled.setdefault(sample["run"], []).append(sample["power_w"])
    found = False
    for row in profile:
        counted, samples = row["power_w"], polled.get(row["run"], [])
        if not known(row["energy_j"]) or not known(counted) or len(samples) < LEAST_POLLED:
            continue
        found = True
        mean = sum(samples) / len(samples)
        verdict = OK if abs(counted / mean - 1) <= ENERGY else DIFFERS
        yield Line(
            check,
            row["run"],
            verdict,
            f"{counted:.1f} W by the counter (used), {mean:.1f} W polled",
        )
    if not found:
        yield Line(
            check,
            "all steps",
            NOT_MEASURABLE,
            "no step has both the counter's energy and polled power",
        )


def clocks_agree(cases: Sequence[Row]) -> Iterator[Line]:
    """A kernel's time by CUDA events within CLOCKS of Proton's."""
    check = "CUDA events against Proton"
    if not cases:
        yield Line(
            check, "all rungs", NOT_MEASURABLE, "give --clocks, from validation/second_clock.py"
        )
    for case in cases:
        events, proton = case["events_s"], case["proton_s"]
        if not (known(events) and known(proton)):
            yield Line(check, case["case"], NOT_MEASURABLE, case["reason"])
            continue
        verdict = OK if abs(events / proton - 1) <= CLOCKS else DIFFERS
        yield Line(
            check, case["case"], verdict, f"{1e3 * events:.4g} against {1e3 * proton:.4g} ms"
        )


def without_seed(run: str) -> str:
    """A run's name without its seed: equal for repetitions."""
    return re.sub(r",seed=\d+", "", run)


def judge(
    tables: frames.Tables, hardware: str, executed: Sequence[Row], clocks: Sequence[Row] = ()
) -> list[Line]:
    """Every check of one machine's rows."""
    rows = {name: _of(tables[name], hardware) for name in ("ceilings", "profile", "matmul")}
    series = tables["series"][tables["series"]["hardware"] == hardware].to_dict("records")
    return [
        *products_agree(rows["profile"], rows["matmul"]),
        *ceilings_as_published(rows["ceilings"], PUBLISHED.get(hardware, {})),
        *executed_as_counted(executed),
        *tensor_pipe_as_hfu(rows["profile"], rows["ceilings"]),
        *runs_repeat([*rows["profile"], *rows["matmul"]]),
        *counter_as_power(rows["profile"], series),
        *clocks_agree(clocks),
    ]


def _of(table: pd.DataFrame, hardware: str) -> list[Row]:
    here = table[(table["hardware"] == hardware) & (table["status"] == "ok")]
    # Where a machine is both measured and recorded, what was measured is judged.
    return here[here["recorded"] == here["recorded"].min()].to_dict("records") if len(here) else []


def only_machine(tables: frames.Tables) -> str:
    """The machine to judge where none is named: the GPU of the tables, or whatever is there."""
    machines = tables["environment"]
    gpus = machines[machines["device"] == "cuda"]
    names = list(dict.fromkeys((gpus if len(gpus) else machines)["hardware"]))
    if len(names) != 1:
        sys.exit(f"mfulab: give --hardware, one of: {', '.join(names) or 'none was measured'}")
    return names[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line a check."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=Path, default=Path("results/tables"))
    parser.add_argument("--hardware", help="the machine to judge; the only GPU where none is named")
    parser.add_argument(
        "--executed", type=Path, help="what validation/executed_operations.py --out wrote"
    )
    parser.add_argument("--clocks", type=Path, help="what validation/second_clock.py --out wrote")
    options = parser.parse_args(arguments)
    tables, _ = frames.read(options.tables)
    executed, clocks = (
        json.loads(path.read_text(encoding="utf-8")) if path else []
        for path in (options.executed, options.clocks)
    )
    lines = judge(tables, options.hardware or only_machine(tables), executed, clocks)
    print("\n".join(map(str, lines)))
    return int(any(line.verdict == DIFFERS for line in lines))


if __name__ == "__main__":
    sys.exit(main())
