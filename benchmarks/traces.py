"""Compares `mfulab trace` with HolisticTraceAnalysis 0.5.0: busy, compute and other time, and how
long each takes.

    python -m venv /tmp/hta && /tmp/hta/bin/pip install HolisticTraceAnalysis==0.5.0
    python benchmarks/traces.py --hta /tmp/hta/bin/python FILE…

HTA rounds begin and length of a kernel down to microseconds. So each kernel may lose up to 1 µs,
and gaps between kernels gain it. Both tools cover the time from the first to the last activity of
the device.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from mfulab.tracing.chrome import TraceError
from mfulab.tracing.events import read
from mfulab.tracing.intervals import Intervals, exclusive, length
from mfulab.tracing.trace import COMPUTE

HTA = """
import json, logging, os, shutil, sys, tempfile, warnings
warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
folder = tempfile.mkdtemp()
shutil.copy(sys.argv[1], folder)
try:
    analysis = TraceAnalysis({0: os.path.basename(sys.argv[1])}, folder, include_last_profiler_step=True)
    row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    names = ("idle_time(us)", "compute_time(us)", "non_compute_time(us)")
    print(json.dumps([float(row[name]) for name in names]))
finally:
    shutil.rmtree(folder)
"""


def timed(command: list[str]) -> tuple[tuple[float, float, float], str, bool]:
    """Runs a process. Returns (wall seconds, CPU seconds, peak memory in MB), its output, and True
    if it succeeded."""
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - began
        output.seek(0)
        scale = 1e6 if sys.platform == "darwin" else 1e3
        cost = seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / scale
        return cost, output.read(), process.returncode == 0


def ours(path: Path) -> tuple[list[int], int]:
    """Idle, compute and other time in ns from the first to the last activity, and the number of
    activities."""
    activities = read(path)[0].activities
    everything, compute = Intervals(activities.begin, activities.end), activities.kind == COMPUTE
    parts = exclusive(
        [Intervals(activities.begin[compute], activities.end[compute]), everything],
        int(activities.begin.min()),
        int(activities.end.max()),
    )
    compute_ns, other_ns, idle_ns = map(length, parts)
    return [idle_ns, compute_ns, other_ns], len(activities)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument(
        "--hta", required=True, help="a Python that has HolisticTraceAnalysis 0.5.0"
    )
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    worst = 0
    print(
        f"{'file':32} {'':7} {'s':>6} {'CPU s':>6} {'MB':>5} {'idle ms':>10} {'compute':>10} {'other':>10}"
    )
    for path in options.files:
        costs: dict[str, list[tuple[float, float, float]]] = {"mfulab": [], "HTA": []}
        for _ in range(options.rounds):  # interleaved, so that other load affects both alike
            costs["mfulab"].append(timed([sys.executable, "-m", "mfulab", "trace", str(path)])[0])
            cost, output, theirs_ok = timed([options.hta, "-c", HTA, str(path)])
            costs["HTA"].append(cost)
        try:
            parts, count = ours(path)
        except TraceError as error:
            print(error)
            continue
        lines = {name: _line(name, found) for name, found in costs.items()}
        print(f"{path.name.split('.')[0]:32} {lines['mfulab']}" + _ms(np.array(parts) / 1e6))
        if not theirs_ok:
            print(f"{'':32} {lines['HTA']}fails on this file")
            continue
        theirs = np.array(json.loads(output.splitlines()[-1])) * 1e3
        off = np.abs(theirs - parts)
        allowed = 2e3 * count  # ns that rounding down may shift
        worst += int((off > allowed).any())
        mark = "" if (off <= allowed).all() else "  DIFFERENT"
        print(f"{'':32} {lines['HTA']}{_ms(theirs / 1e6)}{mark}")
    return int(worst > 0)


def _line(name: str, costs: list[tuple[float, float, float]]) -> str:
    seconds, cpu_seconds, megabytes = (
        statistics.median(values) for values in zip(*costs, strict=True)
    )
    return f"{name:7} {seconds:6.2f} {cpu_seconds:6.2f} {megabytes:5.0f} "


def _ms(parts: np.ndarray) -> str:
    return " ".join(f"{part:10.3f}" for part in parts)


if __name__ == "__main__":
    sys.exit(main())
