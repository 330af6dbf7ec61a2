"""Reads profiler traces: intervals, kernels, operators, and where the time goes."""
