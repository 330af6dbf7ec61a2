"""Lets another tool count a model's FLOPs: `python scripts/compare_counters.py model=gpt2 counter=fvcore`."""

from mfulab.cli.step import main

if __name__ == "__main__":
    main("compare_counters")
