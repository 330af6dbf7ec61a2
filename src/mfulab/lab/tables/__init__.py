"""Rows of runs joined into tables: MFU, the ladder, verdicts, recordings, comparisons."""
