"""Configs, rows, number formats and the registry of measurements: each fact of the data once."""
