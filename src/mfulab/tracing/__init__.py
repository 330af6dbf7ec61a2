"""Profiler traces: intervals, kernels, operators, and what time goes to."""
