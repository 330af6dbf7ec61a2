"""Counting floating-point operations, the formulas they are checked against, and memory budgets."""
