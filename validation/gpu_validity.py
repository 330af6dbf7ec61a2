"""Checks the measurements of a GPU. Each check reports ok, differs or not measurable, and why.

    python validation/gpu_validity.py [--tables results/tables] [--hardware SLUG] [--executed executed.json]
        [--clocks clocks.json]

Reads the tables of the experiment `validity` or any other, and the output of
validation/executed_operations.py and validation/second_clock.py. Exit status 1 means that something
differs.
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
# Published dense TFLOP/s of large matmuls by device, as a range.
PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    "nvidia-h100-80gb-hbm3": {"bf16": (789, 797), "tf32": (372, 402), "fp32": (51.9, 52)},
    "nvidia-h200": {"bf16": (769, 798)},  # 8192³ by torch 2.11 on random data, on several cards
}
PRODUCT_MODEL, PRODUCT_KERNEL = "large_product", "torch"
TENSOR_FORMATS = ("tf32", "bf16", "fp16", "fp8")
AGREE = 0.02  # between executed and counted operations
SAME = 0.01  # between two ways to measure the same product
CEILING = 0.03
# percent: steps with a less active tensor pipe are not dominated by matmuls
LEAST_ACTIVE = 20.0
SPREAD = 0.01
LEAST_POLLED = 10  # samples, which take two seconds
ENERGY = 0.05  # between the energy counter and polled power; some cards differ by more
CLOCKS = 0.03  # between CUDA events and Proton


@dataclass(frozen=True)
class Line:
    """Result of one check for one subject."""

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
    """Compares the same product as a model's step and as a matmul: TFLOP/s within SAME."""
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
        speeds = [
            product["tflop_s"]
            for product in matmul
            if product["kernel"] == PRODUCT_KERNEL
            and (product["precision"], product["flops"]) == (row["precision"], row["flops"])
            and known(product["tflop_s"])
        ]
        if not speeds:
            yield Line(
                check,
                row["run"],
                NOT_MEASURABLE,
                f"no product of {PRODUCT_KERNEL} with as many FLOPs",
            )
            continue
        by_matmul = sorted(speeds)[len(speeds) // 2]
        ratio = row["tflop_s"] / by_matmul
        verdict = OK if abs(ratio - 1) <= SAME else DIFFERS
        yield Line(
            check,
            row["run"],
            verdict,
            f"{row['tflop_s']:.4g} against {by_matmul:.4g} TFLOP/s: {ratio:.4f}",
        )


def ceilings_as_published(
    ceilings: Sequence[Row], published: Mapping[str, tuple[float, float]]
) -> Iterator[Line]:
    """Compares measured ceilings with the published range, within CEILING.

    A lower ceiling is explained if the TFLOP/s per clock match the published rate at the spec
    clock. Then only the clock was lower, because of power or heat.
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
        description = f"{measured:.4g} TFLOP/s, published {low:g} to {high:g}"
        clock = row.get("clock_mhz")
        spec_clock = row.get("computed_clock_mhz")
        is_slower = known(clock) and known(spec_clock) and clock < spec_clock
        if known(clock):
            description += f", mean SM clock {clock:.0f} MHz"
        if low * (1 - CEILING) <= measured <= high * (1 + CEILING):
            yield Line(check, precision, OK, description)
        elif is_slower and _as_fast_a_clock(row, low):
            why = f"explained by a clock under the {spec_clock:.0f} MHz of its peak"
            yield Line(check, precision, OK, f"{description}: {why}")
        else:
            yield Line(check, precision, DIFFERS, f"{description}: the clock does not explain it")


def _as_fast_a_clock(row: Row, published: float) -> bool:
    rate_per_mhz = row["measured_tflop_s"] / row["clock_mhz"]
    return (
        row["measured_tflop_s"] < published
        and rate_per_mhz >= (1 - CEILING) * published / row["computed_clock_mhz"]
    )


def executed_as_counted(cases: Sequence[Row]) -> Iterator[Line]:
    """Compares operations counted by the hardware with HFU's FLOPs × the executed ratio, within
    AGREE."""
    check = "executed operations against counted FLOPs"
    if not cases:
        yield Line(
            check,
            "all cases",
            NOT_MEASURABLE,
            "give --executed, from validation/executed_operations.py",
        )
    for case in cases:
        executed = case["executed_operations"]
        counted = case["counted_flops"] * case.get("executed_ratio", 1.0)
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
    """Compares tensor active × mean clock ÷ the peak's clock with issued instructions, or else with
    HFU. They may differ by a factor of CROSS_CHECK."""
    check = "tensor active × clock against HFU"
    clocks = {row["ceiling"]: row.get("computed_clock_mhz") for row in ceilings}
    found = False
    for row in profile:
        active = row["tensor_active_percent"]
        clock = row["clock_mhz"]
        spec_clock = clocks.get(row["ceiling"])
        # Issued instructions, if the trace has them. Otherwise HFU, as it includes recomputation,
        # which also keeps the pipe active.
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
        description = f"{active:.1f} % × {clock:.0f} ÷ {spec_clock:.0f} MHz = {expected:.1f} %, {name} {hfu:.1f} %"
        yield Line(check, row["run"], verdict, description)
    if not found:
        because = f"no step has GPM's tensor pipe active for {LEAST_ACTIVE:g} % or more"
        yield Line(check, "all steps", NOT_MEASURABLE, because)


def runs_repeat(rows: Sequence[Row]) -> Iterator[Line]:
    """Checks that times of runs that differ only in their seed have (largest − smallest) ÷ median
    of at most SPREAD."""
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
    """Compares mean power from the energy counter with polled power in the same window, within
    ENERGY."""
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
    """Compares kernel times by CUDA events and by Proton, within CLOCKS."""
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
    """Name of a run without its seed, which is equal for repetitions."""
    return re.sub(r",seed=\d+", "", run)


def judge(
    tables: frames.Tables, hardware: str, executed: Sequence[Row], clocks: Sequence[Row] = ()
) -> list[Line]:
    """Results of all checks for one machine."""
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
    if not len(here):
        return []
    # If a machine is both measured and recorded, only the measured rows are checked.
    return here[here["recorded"] == here["recorded"].min()].to_dict("records")


def only_machine(tables: frames.Tables) -> str:
    """Default machine to check: the only GPU in the tables, or the only machine. Exits if there are
    several."""
    machines = tables["environment"]
    gpus = machines[machines["device"] == "cuda"]
    names = list(dict.fromkeys((gpus if len(gpus) else machines)["hardware"]))
    if len(names) != 1:
        sys.exit(f"mfulab: give --hardware, one of: {', '.join(names) or 'none was measured'}")
    return names[0]


def _cases(path: Path | None) -> list[Row]:
    if path is None:
        return []
    cases: list[Row] = json.loads(path.read_text(encoding="utf-8"))
    return cases


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line per check. Returns 1 if any differs."""
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
    executed, clocks = map(_cases, (options.executed, options.clocks))
    lines = judge(tables, options.hardware or only_machine(tables), executed, clocks)
    print("\n".join(map(str, lines)))
    return int(any(line.verdict == DIFFERS for line in lines))


if __name__ == "__main__":
    sys.exit(main())
