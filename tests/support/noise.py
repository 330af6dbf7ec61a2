"""Finds the columns of a row that are times or rates, for tests that make rows slower."""

import re

import numpy as np
import pandas as pd

RATE = re.compile(
    r"(_per_s|flop_s|gb_s|_per_j)$|^(mfu|hfu|useful_mfu|mbu|mfu_bf16|share_of_\w+)_percent$"
)
TIME = re.compile(r"_(s|ms)$")


def slower(rows: pd.DataFrame, factor: np.ndarray) -> pd.DataFrame:
    """Rows with their times multiplied by one factor each, and their rates divided by it."""
    changed = {}
    for column in rows.select_dtypes("number"):
        if RATE.search(column):
            changed[column] = rows[column] / factor
        elif TIME.search(column):
            changed[column] = rows[column] * factor
    return rows.assign(**changed).copy()  # in one piece
