"""Selection of matmul rows that belong side by side."""

import pandas as pd

NEARLY_ALL = 0.75


def square(rows: pd.DataFrame) -> pd.DataFrame:
    """Unbatched n × n × n matmuls, the fastest block size of each."""
    return fastest(rows[cube(rows)])


def cube(rows: pd.DataFrame) -> pd.Series:
    """True for a matmul of n × n × n."""
    return (rows["m"] == rows["n"]) & (rows["n"] == rows["k"]) & (rows["batch"].fillna(1) == 1)


def fastest(rows: pd.DataFrame) -> pd.DataFrame:
    """Fastest row of each machine, implementation, size and precision, with the implementation's `family`."""
    rows = rows.sort_values("time_s").drop_duplicates(["machine", "kernel", "size", "precision"])
    families = rows["family"].where(rows["family"] != "", rows["kernel"].str.split("_").str[0])
    return rows.assign(family=families.mask(rows["kernel"] == "numpy", "library"))


def most_shared(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of each machine's largest size that NEARLY_ALL of the most implementations of any size have."""
    chosen = []
    for _, here in rows.groupby("machine", sort=False):
        counts = here.groupby(["precision", "n"])["kernel"].nunique().reset_index(name="kernels")
        best = counts[counts["kernels"] >= NEARLY_ALL * counts["kernels"].max()].sort_values(["n", "kernels"]).iloc[-1]
        chosen.append(here[(here["precision"] == best["precision"]) & (here["n"] == best["n"])])
    return pd.concat(chosen) if chosen else rows
