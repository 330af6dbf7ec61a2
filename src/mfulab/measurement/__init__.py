"""Clocks, windows, samplers and statistics: what a step measures with."""
