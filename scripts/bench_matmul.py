"""Measures one matmul: `python scripts/bench_matmul.py kernel=numba_parallel size=1024`."""

from mfulab.cli.step import main

if __name__ == "__main__":
    main("bench_matmul")
