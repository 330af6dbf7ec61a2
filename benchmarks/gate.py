"""Compares gate with other tools: how often each calls a command different from itself, and how
often it finds 5 % more work.

    python benchmarks/gate.py --minutes 0.6 --tools gate-cpu,gate,hyperfine,pyperf

Each work is a real command whose duration depends on the size of a file; the larger file has 5 %
more lines. hyperfine has no verdict: a ratio further from 1 than its own ± counts as different.
pyperf's verdict is that of `compare_to`, a t-test with a minimum of 2 %. Both must be on the PATH.
Tools take turns on each work, so that other load affects all alike.
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

PYTHON = f"{sys.executable} -S -E -c"
WORKS = {  # command, and the number of lines in the smaller file
    "gzip": ("gzip -6 -c {} > /dev/null", 20_000),
    "sha256sum": ("for i in 1 2 3 4 5 6; do cat {}; done | sha256sum", 150_000),
    "sort": ("LC_ALL=C sort {} > /dev/null", 200_000),
    "python json": (f"{PYTHON} 'import json; [json.loads(x) for x in open(\"{{}}\")]'", 60_000),
    "awk": ("awk '{{s += length($0) % 7}} END {{print s}}' {}", 600_000),
    "bzip2": ("bzip2 -c {} > /dev/null", 20_000),
    "xz": ("xz -1 -c {} > /dev/null", 20_000),
    "sed": ("sed -E 's/([0-9]+)\\.([0-9]+)/\\2.\\1/' {} > /dev/null", 40_000),
    "grep": ("grep -cE '(1|3).*5.*(7|9).*2.*4' {}", 600_000),
    "tac": ("for i in 1 2 3 4 5 6; do tac {}; done | md5sum", 100_000),
}
MORE = 1.05


def main() -> int:
    """Prints a line per work and tool: whether the pair was called different, and what could have
    been detected."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--minutes", type=float, default=0.5, help="most that one answer of the gate takes"
    )
    parser.add_argument(
        "--tools", default="gate,gate-cpu", help="of gate, gate-cpu, hyperfine and pyperf"
    )
    options = parser.parse_args()
    counts_by_tool = defaultdict[tuple[str, str], Counter[bool]](Counter)
    spent = defaultdict[str, list[float]](list)
    with tempfile.TemporaryDirectory(prefix="mfulab-") as folder:
        for name, (command, lines) in WORKS.items():
            files = [
                written(Path(folder) / f"{share}", round(lines * share)) for share in (1.0, MORE)
            ]
            smaller, larger = files
            compared = {"equal": (smaller, smaller), "more": (smaller, larger)}
            for tool in options.tools.split(",") * options.rounds:
                for kind, pair in compared.items():
                    both = [command.format(file) for file in pair]
                    began = time.monotonic()
                    called, description = TOOLS[tool](both, options.minutes, Path(folder))
                    spent[tool].append(time.monotonic() - began)
                    counts_by_tool[tool, kind][called] += 1
                    load = os.getloadavg()[0]
                    print(
                        f"{name}, {kind}, {tool}: {called}; {description}; {spent[tool][-1]:.0f} s, load {load:.1f}",
                        flush=True,
                    )
    for (tool, kind), counts in counts_by_tool.items():
        seconds = statistics.median(spent[tool])
        print(
            f"{tool}, {kind}: called different {counts[True]} of {counts.total()}, median {seconds:.0f} s an answer"
        )
    return 0


def gated(commands: list[str], minutes: float, _: Path, *more: str) -> tuple[bool, str]:
    """Result of the gate on two commands: whether they differ, and a description."""
    command = [sys.executable, "-m", "mfulab", "gate", "--json", "--minutes", str(minutes)]
    done = subprocess.run([*command, *more, *commands], stdout=subprocess.PIPE, text=True)
    if done.returncode == 2:
        raise SystemExit(2)
    result = json.loads(done.stdout)
    description = f"{result['verdict']}, ratio {result['ratio']:.3f}"
    description += f", from {result['detects_percent']:.1f} %, {result['pairs']} pairs"
    return result["verdict"] in ("slower", "faster"), description


def gated_by_cpu(commands: list[str], minutes: float, folder: Path) -> tuple[bool, str]:
    """Result of the gate on the CPU seconds of two commands."""
    return gated(commands, minutes, folder, "--cpu-time")


def hyperfine(commands: list[str], _: float, folder: Path) -> tuple[bool, str]:
    """Result of hyperfine: whether the ratio of two commands is further from 1 than its error, and
    both as text."""
    out = folder / "hyperfine.json"
    measuring = ["hyperfine", "--warmup", "1", "--export-json", str(out), *commands]
    subprocess.run(measuring, capture_output=True, check=True)
    old, new = json.loads(out.read_text())["results"]
    ratio = new["mean"] / old["mean"]
    relative_error = math.hypot(old["stddev"] / old["mean"], new["stddev"] / new["mean"])
    error = ratio * relative_error
    return abs(ratio - 1) > error, f"{ratio:.3f} ± {error:.3f}"


def pyperf(commands: list[str], _: float, folder: Path) -> tuple[bool, str]:
    """Result of `pyperf compare_to` on two commands, each measured in ten processes."""
    outs = list[str]()
    for number, command in enumerate(commands):
        outs.append(str(folder / f"pyperf-{number}.json"))
        Path(outs[-1]).unlink(missing_ok=True)
        measuring = ["pyperf", "command", "--fast", "--quiet", "--copy-env", "--name", "work"]
        measuring += ["-o", outs[-1], "--", "/bin/sh", "-c", command]
        subprocess.run(measuring, capture_output=True, check=True)
    comparing = ["pyperf", "compare_to", "--min-speed=2", *outs]
    done = subprocess.run(comparing, capture_output=True, text=True, check=True)
    line = " ".join(done.stdout.split())
    return "not significant" not in line, line[:90]


def written(path: Path, lines: int) -> Path:
    """Writes a file with this many lines of JSON, always the same. Returns its path."""
    drawn = random.Random(0)  # noqa: S311 (no secret)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(lines):
            file.write(f'{{"a": {drawn.random()}, "b": "{drawn.randrange(10**9)}"}}\n')
    return path


Tool = Callable[[list[str], float, Path], tuple[bool, str]]
TOOLS: dict[str, Tool] = {
    "gate": gated,
    "gate-cpu": gated_by_cpu,
    "hyperfine": hyperfine,
    "pyperf": pyperf,
}

if __name__ == "__main__":
    sys.exit(main())
