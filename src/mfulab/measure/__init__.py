"""Clocks, windows, samplers and statistics."""
