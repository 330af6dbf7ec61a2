"""Compares a step in `profile_step` with the same step in a plain script: time and page faults.

    python benchmarks/plain_script.py [--processes 3] [--only "simple_cnn inference 4"]
    python benchmarks/plain_script.py --heap-top [--processes 6]

Processes alternate: plain with a fresh heap, plain with a settled heap, mfulab. The plain script
uses mfulab only to create the model. "Settled" means that one tensor of 31.9 MiB was freed, as in
any script that has trained a large model. Each time is the minimum over processes of the 5th
percentile of steps, so that disturbances do not count. With `--heap-top`, compares instead the
spread between plain processes whose heap is trimmed and those whose heap is not.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from mfulab.core.files import read_csv, write_json
from mfulab.device.identity import hardware_slug
from mfulab.lab.planning.composition import compose_experiments
from mfulab.lab.planning.runs import plan

ROOT = Path(__file__).parents[1]
PLAIN = Path(__file__).with_name("plain_step.py")
CASES = {  # overrides by name, in addition to fp32 on the CPU
    "simple_cnn inference 4": ("model=simple_cnn", "workload=inference", "batch_size=4"),
    "simple_cnn training 4": ("model=simple_cnn", "workload=training", "batch_size=4"),
    "simple_cnn training 32": ("model=simple_cnn", "workload=training", "batch_size=32"),
    "digit_cnn training 64": ("model=digit_cnn", "workload=training", "batch_size=64"),
    "resnet18 inference 2": ("model=resnet18", "workload=inference", "batch_size=2"),
    "resnet18 inference 8": ("model=resnet18", "workload=inference", "batch_size=8"),
    "resnet18 training 2": ("model=resnet18", "workload=training", "batch_size=2"),
    "separable_cnn training 16": ("model=separable_cnn", "workload=training", "batch_size=16"),
    "plain_cnn inference 16": ("model=plain_cnn", "workload=inference", "batch_size=16"),
    "mobilenet_v2 inference 2": ("model=mobilenet_v2", "workload=inference", "batch_size=2"),
    "mobilenet_v2 inference 8": ("model=mobilenet_v2", "workload=inference", "batch_size=8"),
    "perceptron training 64": ("model=perceptron", "workload=training", "batch_size=64"),
    "lstm inference 4": ("model=lstm", "workload=inference", "batch_size=4"),
    "small_llama training 2×128": (
        "model=small_llama",
        "workload=training",
        "batch_size=2",
        "sequence_length=128",
    ),
    "gpt2 inference 1×64": (
        "model=gpt2",
        "workload=inference",
        "batch_size=1",
        "sequence_length=64",
    ),
    "norm_gelu_by_hand inference 16": (
        "model=norm_gelu_by_hand",
        "workload=inference",
        "batch_size=16",
    ),
}
LIMIT = 0.05  # allowed relative difference from the plain script's time
ALIKE = 50  # allowed difference in page faults per step


def planned(overrides: tuple[str, ...], folder: Path) -> Path:
    """Writes the config of the run with these overrides to a file below `folder`. Returns the
    path."""
    alone = ("device=cpu", "steps=[profile_step]", "replicates=1", "exclude=[]")
    configuration = [*overrides, *alone, "precision=fp32", "timing.patience_s=0"]
    hardware = hardware_slug("cpu")
    (composition,) = compose_experiments(configuration, ROOT / "config")
    (run,) = (run for run in plan(composition, hardware, "cpu").runs if run.step == "profile_step")
    path = folder / run.folder / "config.json"
    write_json(path, json.loads(run.text))
    return path


def plain(config: Path, state: str) -> tuple[float, float, float]:
    """Runs one plain process. Returns the 5th percentile and median of its steps in seconds, and
    page faults per step."""
    command = [sys.executable, str(PLAIN), str(config), state]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    least_s, median_s, faults = json.loads(done.stdout.splitlines()[-1])
    return least_s, median_s, faults


def profiled(config: Path) -> dict[str, str]:
    """Runs one process of profile_step and returns its row."""
    command = [sys.executable, "scripts/run.py", "profile_step", "--config", str(config)]
    subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (row,) = read_csv(config.with_name("row.csv"))
    return row


def compare(config: Path, processes: int) -> list[float]:
    """Minimum times in ms (plain with a fresh heap, plain with a settled heap, mfulab), followed by
    the minimum page faults per step of each."""
    fresh, settled, ours = [], [], []
    for _ in range(processes):
        fresh.append(plain(config, "fresh")[::2])
        settled.append(plain(config, "settled")[::2])
        row = profiled(config)
        ours.append(
            (float(row["time_p5_s"]), float(row["page_faults_per_s"]) * float(row["time_s"]))
        )
    columns = (fresh, settled, ours)
    times_ms = [1e3 * min(time_s for time_s, _ in column) for column in columns]
    faults = [min(count for _, count in column) for column in columns]
    return times_ms + faults


def heap_top(config: Path, processes: int) -> str:
    """Cells for both states of the heap: median time, relative standard deviation between
    processes, range of page faults."""
    states = ("settled", "kept_top")
    taken: dict[str, list[tuple[float, float, float]]] = {state: [] for state in states}
    for turn in range(processes):
        for state in states[:: 1 if turn % 2 else -1]:
            taken[state].append(plain(config, state))
    cells = []
    for processes_of_state in taken.values():
        _, medians, faults = zip(*processes_of_state, strict=True)
        spread = statistics.stdev(medians) / statistics.fmean(medians)
        fault_range = f"{min(faults):,.0f} to {max(faults):,.0f}"
        cells += [f"{1e3 * statistics.median(medians):.1f} ms", f"{spread:.0%}", fault_range]
    return " | ".join(cells)


def main() -> int:
    """Prints a line per case. Returns 1 if any misses its target."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=3, help="of each kind and case, in turn")
    parser.add_argument("--only", choices=CASES, nargs="+", default=list(CASES), metavar="CASE")
    parser.add_argument(
        "--heap-top", action="store_true", help="compare two states of the heap instead"
    )
    options = parser.parse_args()
    if options.heap_top:
        print(
            "| model, workload, batch | settled | spread | faults a step | top kept | spread | faults a step |"
        )
        print("|---|---|---|---|---|---|---|")
        with tempfile.TemporaryDirectory() as folder:
            for name in options.only:
                path = planned(CASES[name], Path(folder) / name.replace(" ", "_"))
                print(f"| {name} | {heap_top(path, options.processes)} |", flush=True)
        return 0
    print(
        "| model, workload, batch | plain, fresh | plain, settled | mfulab | mfulab ÷ settled | faults a step |"
    )
    print("|---|---|---|---|---|---|")
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only:
            config = planned(CASES[name], Path(folder) / name.replace(" ", "_"))
            found = compare(config, options.processes)
            fresh, settled, ours = found[:3]
            faults = found[3:]
            ratio = ours / settled
            fault_counts = " / ".join(f"{count:.0f}" for count in faults)
            print(
                f"| {name} | {fresh:.2f} ms | {settled:.2f} | {ours:.2f} | {ratio:.2f} | {fault_counts} |",
                flush=True,
            )
            if abs(ratio - 1) > LIMIT or abs(faults[2] - faults[1]) > ALIKE:
                missed.append(name)
    print(f"missed (time within {LIMIT:.0%}, faults within {ALIKE}): {', '.join(missed) or 'none'}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
