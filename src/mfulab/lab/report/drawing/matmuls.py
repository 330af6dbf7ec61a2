"""Selects matmul rows that are compared with each other."""

import pandas as pd

NEARLY_ALL = 0.75  # share of implementations that a size must have


def square(rows: pd.DataFrame) -> pd.DataFrame:
    """Unbatched n × n × n matmuls, each with its fastest block size."""
    return fastest(rows[cube(rows)])


def cube(rows: pd.DataFrame) -> pd.Series:
    """True for unbatched matmuls of n × n × n."""
    is_square = rows["m"] == rows["n"]
    is_deep = rows["n"] == rows["k"]
    is_single = rows["batch"].fillna(1) == 1
    return is_square & is_deep & is_single


def fastest(rows: pd.DataFrame) -> pd.DataFrame:
    """Fastest row of each machine, implementation, size and precision. Adds the implementation's
    `family`."""
    rows = rows.sort_values("time_s")
    rows = rows.drop_duplicates(["machine", "kernel", "size", "precision"])
    first_words = rows["kernel"].str.split("_").str[0]
    families = rows["family"].where(rows["family"] != "", first_words)
    families = families.mask(rows["kernel"] == "numpy", "library")
    return rows.assign(family=families)


def most_shared(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of each machine and format at the largest size that nearly as many implementations have
    as any size."""
    chosen = []
    for _, here in rows.groupby(["machine", "precision"], sort=False):
        kernels = here.groupby("n")["kernel"].nunique()
        sizes = kernels.index[kernels >= NEARLY_ALL * kernels.max()]
        chosen.append(here[here["n"] == sizes.max()])
    if chosen:
        return pd.concat(chosen)
    return rows
