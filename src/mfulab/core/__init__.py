"""Definitions shared by all parts: configs, rows, number formats, files, errors and texts."""
