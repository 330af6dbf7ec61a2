"""Turns an experiment into a list of runs, without importing torch or touching a device."""
