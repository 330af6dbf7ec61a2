"""Measures time: windows, repetitions, clocks and statistics."""
