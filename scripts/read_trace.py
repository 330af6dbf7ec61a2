"""Reads a profiler trace: `python scripts/read_trace.py experiment=traces trace=runs/step.json.gz`."""

from mfulab.cli.step import main

if __name__ == "__main__":
    main("read_trace")
