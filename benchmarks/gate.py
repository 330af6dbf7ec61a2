"""Counts how often `mfulab gate` calls one command different from itself, and finds five percent more work.

    python benchmarks/gate.py --rounds 3 --minutes 0.5 --cpu-time

Each work is a real command whose length the size of a file decides; the larger file holds 5 % more.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

WORKS = {  # a command, and the lines of the smaller file
    "gzip": ("gzip -6 -c {} > /dev/null", 40_000),
    "sha256sum": ("for i in 1 2 3 4 5 6 7 8 9 10 11 12; do cat {}; done | sha256sum", 150_000),
    "sort": ("LC_ALL=C sort {} > /dev/null", 100_000),
    "python json": (f"{sys.executable} -S -E -c 'import json; [json.loads(x) for x in open(\"{{}}\")]'", 60_000),
    "awk": ("awk '{{s += length($0) % 7}} END {{print s}}' {}", 250_000),
}
MORE = 1.05


def main() -> int:
    """Prints a line of each work: verdicts on equal commands, on 5 % more work, and what could have been found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=0.5)
    parser.add_argument("--cpu-time", action="store_true")
    arguments = parser.parse_args()
    how = ["--minutes", str(arguments.minutes), *(["--cpu-time"] if arguments.cpu_time else [])]
    whole: dict[str, Counter[str]] = {"equal": Counter(), "more": Counter()}
    with tempfile.TemporaryDirectory(prefix="mfulab-") as folder:
        for name, (command, lines) in WORKS.items():
            files = [written(Path(folder) / f"{share}", round(lines * share)) for share in (1.0, MORE)]
            told: dict[str, list[dict[str, object]]] = {"equal": [], "more": []}
            for _ in range(arguments.rounds):
                for kind in told:
                    both = [command.format(file) for file in (files[0], files[kind == "more"])]
                    told[kind].append(gated(both, how))
            for kind, each in told.items():
                verdicts = Counter(str(one["verdict"]) for one in each)
                whole[kind] += verdicts
                detects = [round(float(str(one["detects_percent"])), 1) for one in each]
                pairs = [one["pairs"] for one in each]
                print(f"{name}, {kind}: {dict(verdicts)}; would have found {detects} %; {pairs} pairs", flush=True)
    print({kind: dict(verdicts) for kind, verdicts in whole.items()})
    return 0


def gated(commands: list[str], how: list[str]) -> dict[str, object]:
    """The gate's answer on two commands."""
    words = [sys.executable, "-m", "mfulab", "gate", "--json", *how, *commands]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    if done.returncode == 2:
        raise SystemExit(2)
    return dict(json.loads(done.stdout))


def written(path: Path, lines: int) -> Path:
    """A file of so many lines of JSON, the same ones each time."""
    drawn = random.Random(0)  # noqa: S311 (no secret)
    path.write_text("".join(f'{{"a": {drawn.random()}, "b": "{drawn.randrange(10**9)}"}}\n' for _ in range(lines)))
    return path


if __name__ == "__main__":
    sys.exit(main())
