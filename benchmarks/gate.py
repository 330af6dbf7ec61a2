"""Counts how often tools call one command different from itself, and find five percent more work: gate beside others.

    python benchmarks/gate.py --minutes 0.6 --tools gate-cpu,gate,hyperfine,pyperf

Each work is a real command whose length the size of a file decides; the larger file holds 5 % more. hyperfine has no
verdict: a ratio further from 1 than its own ± counts as a call. pyperf's is that of `compare_to`, a t-test, of 2 % or
more. Both must be on the PATH. Tools take turns on each work, so that all of them meet the same neighbours.
"""

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

PYTHON = f"{sys.executable} -S -E -c"
WORKS = {  # a command, and the lines of the smaller file
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
    """Prints a line of each work and tool: whether each pair was called different, and what could
    have been found."""
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
    arguments = parser.parse_args()
    whole, spent = (
        defaultdict[tuple[str, str], Counter[bool]](Counter),
        defaultdict[str, list[float]](list),
    )
    with tempfile.TemporaryDirectory(prefix="mfulab-") as folder:
        for name, (command, lines) in WORKS.items():
            files = [
                written(Path(folder) / f"{share}", round(lines * share)) for share in (1.0, MORE)
            ]
            for tool in arguments.tools.split(",") * arguments.rounds:
                for kind in ("equal", "more"):
                    both = [command.format(file) for file in (files[0], files[kind == "more"])]
                    began = time.monotonic()
                    called, said = TOOLS[tool](both, arguments.minutes, Path(folder))
                    spent[tool].append(time.monotonic() - began)
                    whole[tool, kind][called] += 1
                    load = os.getloadavg()[0]
                    print(
                        f"{name}, {kind}, {tool}: {called}; {said}; {spent[tool][-1]:.0f} s, load {load:.1f}",
                        flush=True,
                    )
    for (tool, kind), counts in whole.items():
        seconds = statistics.median(spent[tool])
        print(
            f"{tool}, {kind}: called different {counts[True]} of {counts.total()}, median {seconds:.0f} s an answer"
        )
    return 0


def gated(commands: list[str], minutes: float, _: Path, *more: str) -> tuple[bool, str]:
    """The gate's answer on two commands: whether they differ, and in words."""
    words = [
        sys.executable,
        "-m",
        "mfulab",
        "gate",
        "--json",
        "--minutes",
        str(minutes),
        *more,
        *commands,
    ]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    if done.returncode == 2:
        raise SystemExit(2)
    told = json.loads(done.stdout)
    said = f"{told['verdict']}, ratio {told['ratio']:.3f}, from {told['detects_percent']:.1f} %, {told['pairs']} pairs"
    return told["verdict"] in ("slower", "faster"), said


def gated_by_cpu(commands: list[str], minutes: float, folder: Path) -> tuple[bool, str]:
    """The gate's answer on the CPU seconds of two commands."""
    return gated(commands, minutes, folder, "--cpu-time")


def hyperfine(commands: list[str], _: float, folder: Path) -> tuple[bool, str]:
    """The ratio of two commands as hyperfine prints it, and whether it is further from 1 than its
    ±."""
    out = folder / "hyperfine.json"
    words = ["hyperfine", "--warmup", "1", "--export-json", str(out), *commands]
    subprocess.run(words, capture_output=True, check=True)
    (old, old_off), (new, new_off) = (
        (one["mean"], one["stddev"]) for one in json.loads(out.read_text())["results"]
    )
    ratio = new / old
    off = ratio * ((old_off / old) ** 2 + (new_off / new) ** 2) ** 0.5
    return abs(ratio - 1) > off, f"{ratio:.3f} ± {off:.3f}"


def pyperf(commands: list[str], _: float, folder: Path) -> tuple[bool, str]:
    """The answer of `pyperf compare_to` on two commands, each measured in ten processes."""
    outs = list[str]()
    for number, command in enumerate(commands):
        outs.append(str(folder / f"pyperf-{number}.json"))
        Path(outs[-1]).unlink(missing_ok=True)
        words = [
            "pyperf",
            "command",
            "--fast",
            "--quiet",
            "--copy-env",
            "--name",
            "work",
            "-o",
            outs[-1],
            "--",
        ]
        subprocess.run([*words, "/bin/sh", "-c", command], capture_output=True, check=True)
    words = ["pyperf", "compare_to", "--min-speed=2", *outs]
    line = " ".join(
        subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    )
    return not re.search("not significant", line), line[:90]


def written(path: Path, lines: int) -> Path:
    """A file of so many lines of JSON, the same ones each time."""
    drawn = random.Random(0)  # noqa: S311 (no secret)
    path.write_text(
        "".join(
            f'{{"a": {drawn.random()}, "b": "{drawn.randrange(10**9)}"}}\n' for _ in range(lines)
        )
    )
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
