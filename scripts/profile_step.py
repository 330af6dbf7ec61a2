"""Measures a training or inference step: `python scripts/profile_step.py model=gpt2 batch_size=8 precision=bf16`."""

from mfulab.cli.step import main

if __name__ == "__main__":
    main("profile_step")
