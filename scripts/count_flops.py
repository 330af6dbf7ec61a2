"""Counts a model's FLOPs, layer by layer: `python scripts/count_flops.py model=resnet18 batch_size=1`."""

from mfulab.cli.step import main

if __name__ == "__main__":
    main("count_flops")
