"""Readings of what the device did: NVML, GPM, RAPL, CPU time, the input pipeline."""
