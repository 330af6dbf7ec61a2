"""Measures one step of a model: `python scripts/profile_step.py model=resnet18 batch_size=4 precision=bf16`."""

from mfulab.cli.step import main

if __name__ == "__main__":
    main("profile_step")
